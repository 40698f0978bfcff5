//! The costs of runs and steps, counted in statements by a proxy in front of the server. Enqueues
//! do not pass the proxy.

use std::collections::BTreeMap;
use std::time::Duration;

use runledger::prelude::*;
use runledger::{DEFAULT_CONCURRENCY, Graph, enqueue_all, value};
use runledger_tests::proxy::Proxy;
use runledger_tests::rows::{scalar, soon};
use runledger_tests::{Fixture, eventually};

#[job]
async fn add(a: u64, b: u64) -> Result<u64> {
    Ok(a + b)
}

#[workflow]
async fn costed(wf: &Wf, n_steps: u64) -> Result<u64> {
    let mut sum = 0;
    for n in 0..n_steps {
        sum += wf.step("costed", || async { Ok::<u64, Error>(n) }).await?;
    }
    Ok(sum)
}

/// Claims and scans from a notification to the next sleep. The pauses between them double from 1 ms
/// to 64 ms, twice if the notification comes late. That makes about 20 pauses, each with at most a
/// claim and a scan.
const MOST_LOOKS: usize = 40;

/// A worker whose statements all pass the proxy.
struct Counted {
    fixture: Fixture,
    proxy: Proxy,
    worker: runledger::Worker,
}

impl Counted {
    /// Starts the worker and waits until it sleeps. Nothing is counted yet.
    async fn new(concurrency: usize) -> Self {
        let fixture = Fixture::new().await;
        let proxy = Proxy::start(fixture.database.url()).await.unwrap();
        let db = Db::connect(proxy.url()).await.unwrap();
        let worker = App::new(db).with(jobs![costed, add]).concurrency(concurrency).start().await.unwrap();
        let counted = Self { fixture, proxy, worker };
        counted.until_asleep().await;
        // The last statement of the safety sweeps. They run at the start of a worker, then after 30
        // s.
        eventually(async || counted.proxy.count("-- cancel_left"), |n_casts| *n_casts == 1).await;
        // Overrides and configurations are read before the worker starts and at its first
        // heartbeat.
        eventually(async || counted.proxy.count("-- overrides"), |n_reads| *n_reads == 2).await;
        eventually(async || counted.proxy.count("-- configs"), |n_reads| *n_reads == 2).await;
        counted.proxy.forget();
        counted
    }

    fn db(&self) -> &Db {
        &self.fixture.db
    }

    async fn until_asleep(&self) {
        let asleep = "select count(*) from runledger.worker where sleeping";
        eventually(async || scalar::<i64>(self.db(), asleep).await, |n_asleep| *n_asleep == 1).await;
    }

    /// Enqueues this many runs at once and waits until all have completed.
    async fn run(&self, n_runs: i64, n_steps: u64) {
        enqueue_all((0..n_runs).map(|_| costed(n_steps)), self.db()).await.unwrap();
        let left = "select (select count(*) from runledger.run) - (select count(*) from runledger.outcome where state = 'completed')";
        eventually(async || scalar::<i64>(self.db(), left).await, |n_left| *n_left == 0).await;
    }

    fn verbs(&self) -> Vec<String> {
        verbs(&self.proxy)
    }

    /// Returns the number of statements of each verb.
    fn kinds(&self) -> BTreeMap<String, usize> {
        let mut kinds = BTreeMap::new();
        for verb in self.verbs() {
            *kinds.entry(verb).or_default() += 1;
        }
        kinds
    }
}

/// Returns the statements in order: the verb in the header of ours, others in full.
fn verbs(proxy: &Proxy) -> Vec<String> {
    let verb =
        |line: &String| line.trim_start_matches("-- ").split(':').next().unwrap_or_default().to_owned();
    proxy.statements().iter().map(verb).collect()
}

fn is_of_a_new_connection(verb: &str) -> bool {
    verb == "timeline" || ["set ", "prepare "].iter().any(|begin| verb.starts_with(begin))
}

/// Counts every statement from the end of the second run to the end of the last one. Not counted:
/// heartbeats, scans of the lanes (at most one in 60 ms) and the setup of connections. A worker
/// with one slot shares no statement between runs and does not sleep before they end.
#[tokio::test(flavor = "multi_thread")]
async fn three_step_workflow_alone_costs_five_statements() {
    let counted = Counted::new(1).await;
    counted.run(6, 3).await;
    let mut verbs = counted.verbs();
    verbs.retain(|verb| !["heartbeat", "lanes"].contains(&verb.as_str()) && !is_of_a_new_connection(verb));
    let runs: Vec<&[String]> = verbs.split_inclusive(|verb| verb == "settle_completed").collect();
    for run in &runs[2..6] {
        assert_eq!(
            *run,
            ["claim", "checkpoint_fresh", "checkpoint_fresh", "checkpoint_fresh", "settle_completed"],
            "{verbs:?}"
        );
    }
    counted.worker.stop().await;
}

/// Counts every statement from one sleep of the worker to the first scan of the next sleep, except
/// for heartbeats and the setup of connections.
///
/// Beyond the costs of the run itself, these are the costs of one wake-up and one falling asleep,
/// however many runs arrive in between. A worker with work for only a moment does not report that
/// it is awake: under an old snapshot, every claim would read the dead rows of those reports.
#[tokio::test(flavor = "multi_thread")]
async fn run_waking_worker_costs_bounded_extra_statements() {
    let counted = Counted::new(DEFAULT_CONCURRENCY).await;
    counted.run(1, 3).await;
    eventually(async || counted.proxy.count("-- settle_completed"), |n_settled| *n_settled == 1).await;
    let n_looks = counted.proxy.count("-- lanes");
    eventually(async || counted.proxy.count("-- lanes"), |n_now| *n_now > n_looks).await;
    let mut kinds = counted.kinds();
    kinds.retain(|kind, _| kind != "heartbeat" && !is_of_a_new_connection(kind));
    let mut count = |kind: &str| kinds.remove(kind).unwrap_or(0);
    assert_eq!((count("checkpoint_fresh"), count("settle_completed"), count("worker_sleep")), (3, 1, 0));
    let n_looks = count("claim") + count("lanes");
    assert!(n_looks <= MOST_LOOKS, "{n_looks} claims and looks at the lanes");
    assert!(kinds.is_empty(), "no statement beside: {kinds:?}");
    counted.worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_three_step_workflows_cost_at_most_five_statements_each() {
    let counted = Counted::new(DEFAULT_CONCURRENCY).await;
    counted.run(400, 3).await;
    let kinds = counted.kinds();
    let n_statements: usize = kinds.values().sum();
    assert!(n_statements <= 5 * 400, "{n_statements} statements for 400 runs: {kinds:?}");
    counted.worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn steps_of_concurrent_runs_share_statements() {
    let counted = Counted::new(256).await;
    counted.run(256, 8).await;
    let kinds = counted.kinds();
    let n_checkpoints = kinds["checkpoint_fresh"];
    assert!(n_checkpoints * 8 <= 256 * 8, "{n_checkpoints} statements for {} steps", 256 * 8);
    counted.worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_worker_queries_database_at_most_once_per_second() {
    let counted = Counted::new(DEFAULT_CONCURRENCY).await;
    counted.run(1, 1).await;
    counted.until_asleep().await;
    counted.proxy.forget();
    // A worker that has just fallen asleep has shorter pauses: 16 ms, then four times as long each
    // time.
    let n_looks = async || {
        counted.kinds().into_iter().filter(|(verb, _)| verb != "heartbeat").map(|(_, n)| n).sum::<usize>()
    };
    eventually(n_looks, |n_looks| *n_looks >= 5).await;
    counted.proxy.forget();
    let window = Duration::from_secs(10);
    tokio::time::sleep(window).await;
    let kinds = counted.kinds();
    let n_statements: usize = kinds.values().sum();
    assert!(n_statements <= 10, "{n_statements} statements in {window:?}: {kinds:?}");
    assert!(kinds.contains_key("heartbeat"), "{kinds:?}");
    soon(counted.worker.stop()).await;
}

/// Counts every statement of a client that has prepared them, except for begin and commit.
#[tokio::test]
async fn graph_costs_one_statement_and_append_five_at_any_size() {
    let fixture = Fixture::new().await;
    let proxy = Proxy::start(fixture.database.url()).await.unwrap();
    let db = Db::connect_with(proxy.url().parse().unwrap(), 1).await.unwrap();
    let nodes = |graph: &mut Graph, prefix: &str, n_nodes: u64| {
        for n in 0..n_nodes {
            let node = graph.node(format!("{prefix}{n}"), costed(n));
            if n > 0 {
                graph.after(node, format!("{prefix}{}", n - 1));
            }
        }
    };
    let ours = |proxy: &Proxy| {
        let mut verbs = verbs(proxy);
        verbs.retain(|verb| {
            !["begin", "commit", "rollback"].iter().any(|end| verb.to_lowercase().starts_with(end))
        });
        verbs
    };
    for (round, n_nodes) in [1, 1, 400].into_iter().enumerate() {
        let mut graph = Graph::new("costed");
        nodes(&mut graph, "first ", n_nodes);
        graph.gate::<()>("window");
        proxy.forget();
        let handle = graph.enqueue(&db).await.unwrap();
        let submission = ours(&proxy);
        let mut more = Graph::new("costed");
        more.existing_node::<u64>("first 0");
        nodes(&mut more, "second ", n_nodes);
        proxy.forget();
        handle.extend_from("window").append("1", more).await.unwrap();
        if round > 0 {
            assert_eq!(submission, ["submit_graph"]);
            let all = ["lock_runs", "addition", "append_lock", "append_look", "submit_graph"];
            assert_eq!(ours(&proxy), all);
        }
    }
}

/// Counts as for a workflow alone. No poll comes between two nodes: the worker that ends a node
/// claims the next.
#[tokio::test(flavor = "multi_thread")]
async fn node_releasing_dependent_costs_one_statement_beyond_settlement() {
    let counted = Counted::new(1).await;
    let mut graph = Graph::new("chain");
    let mut last = graph.call(add(0, 1));
    for _ in 1..6 {
        last = graph.then(add, (last, value(1)));
    }
    let handle = graph.result(last).enqueue(counted.db()).await.unwrap();
    assert_eq!(soon(handle.result()).await.unwrap(), 6);
    let mut verbs = counted.verbs();
    verbs.retain(|verb| ["claim", "settle_completed", "release"].contains(&verb.as_str()));
    let nodes: Vec<&[String]> = verbs.split_inclusive(|verb| verb == "release").collect();
    assert_eq!(nodes.len(), 7, "six nodes, and the graph: {verbs:?}");
    for node in &nodes[1..6] {
        assert_eq!(*node, ["claim", "settle_completed", "release"], "{verbs:?}");
    }
    counted.worker.stop().await;
}
