//! The parts of behaviours 27, 30, 31, 33 and 34 that no other test shows, and graphs of data.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use runledger::prelude::*;
use runledger::{
    AnyCall, Cancelled, ClientError, FailureKind, Graph, GraphHandle, GraphState, Need, RunState, Timings,
    value,
};
use runledger_tests::Fixture;
use runledger_tests::check::graphs;
use runledger_tests::proxy::{Fault, Proxy};
use runledger_tests::rows::{execute, scalar, soon, until, worker};
use serde_json::json;
use tokio::sync::Semaphore;

use crate::graph_jobs::{add, node, refuses, sum, tells};

static DOORS: [Semaphore; 3] = [const { Semaphore::const_new(0) }; 3];
static JOINED: AtomicU32 = AtomicU32::new(0);

/// Ends when its door is opened.
#[job]
async fn behind_door(door: usize) -> Result<u64> {
    DOORS[door].acquire().await?.forget();
    Ok(1)
}

#[job]
async fn joins(one: u64, two: u64) -> Result<u64> {
    JOINED.fetch_add(1, Ordering::SeqCst);
    Ok(one + two)
}

#[tokio::test(flavor = "multi_thread")]
async fn roots_start_immediately_and_dependent_starts_once_after_last_dependency() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![behind_door, joins]).await;
    let mut graph = Graph::new("joined");
    let [one, two] = [0, 1].map(|door| graph.call(behind_door(door).key(door)));
    let joined = graph.then(joins, (one, two));
    let handle = graph.result(joined).enqueue(&db).await.unwrap();
    let roots = [node(&handle, "behind_door[0]").await, node(&handle, "behind_door[1]").await];
    for root in &roots {
        until(&db, root.run_id, |info| info.state == RunState::Running).await;
    }
    for (door, n_needs) in [(0, 1), (1, 0)] {
        let before = node(&handle, "joins").await;
        assert_eq!(
            (before.state, before.attempt, before.n_live_dependencies),
            (RunState::Waiting, 0, n_needs + 1)
        );
        DOORS[door].add_permits(1);
        until(&db, roots[door].run_id, |info| info.state == RunState::Completed).await;
    }
    assert_eq!(soon(handle.result()).await.unwrap(), 2);
    let joined = node(&handle, "joins").await;
    assert_eq!((joined.attempt, JOINED.load(Ordering::SeqCst)), (1, 1), "once");
    assert!(joined.started_at >= node(&handle, "behind_door[1]").await.finished_at, "{joined:?}");
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn graph_state_follows_from_node_states() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![behind_door, add, refuses, tells]).await;
    let stands = async |handle: &GraphHandle<()>| handle.graph_state().await.unwrap();
    let submitted = async |fails: bool, told: bool| {
        let mut graph = Graph::new("stands");
        let held = graph.call(behind_door(2));
        let gate = graph.gate::<u64>("gate");
        let last = if fails { graph.then(refuses, (gate,)) } else { graph.then(add, (gate, held)) };
        if told {
            graph.then(tells, (last.on_any_outcome(),));
        }
        graph.enqueue(&db).await.unwrap()
    };
    for (fails, told, end) in [
        (false, true, GraphState::Completed),
        (true, true, GraphState::CompletedWithErrors),
        (true, false, GraphState::Failed),
        (false, false, GraphState::Cancelled),
    ] {
        let handle = submitted(fails, told).await;
        let held = node(&handle, "behind_door").await.run_id;
        until(&db, held, |info| info.state == RunState::Running).await;
        assert_eq!(stands(&handle).await, GraphState::Running, "a gate is open, and a node runs beside it");
        DOORS[2].add_permits(1);
        until(&db, held, |info| info.state == RunState::Completed).await;
        assert_eq!(stands(&handle).await, GraphState::Waiting, "only for the outside");
        if end == GraphState::Cancelled {
            handle.cancel("enough").await.unwrap();
        } else {
            handle.gate("gate").complete(&1_u64).await.unwrap();
        }
        let _ = soon(handle.result()).await;
        assert_eq!(stands(&handle).await, end);
    }
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn graph_without_gate_never_reports_waiting() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![add]).await;
    for n in 0..40 {
        let mut graph = Graph::new("never-waits");
        graph.call(add(n, 1));
        let handle = graph.enqueue(&db).await.unwrap();
        loop {
            match handle.graph_state().await.unwrap() {
                GraphState::Completed => break,
                state => assert_eq!(state, GraphState::Running, "nobody outside is waited for"),
            }
        }
    }
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn graph_past_deadline_is_cancelled_with_all_nodes() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![never_ends, add, tells]).await;
    let mut graph = Graph::new("late").deadline(Duration::from_secs(3600));
    let runs = graph.call(never_ends());
    let waits = graph.then(add, (runs, value(1)));
    graph.then(tells, (waits.on_any_outcome(),));
    graph.gate::<()>("gate");
    let handle = graph.enqueue(&db).await.unwrap();
    until(&db, node(&handle, "never_ends").await.run_id, |info| info.state == RunState::Running).await;
    execute(&db, "update runledger.deadline set deadline_at = now()").await;
    let info = until(&db, handle.id(), |info| info.state.is_terminal()).await;
    assert!(info.error.unwrap().to_string().contains("within its deadline of 3600s"));
    for name in ["never_ends", "add", "tells", "gate"] {
        let run_id = node(&handle, name).await.run_id;
        let info = until(&db, run_id, |info| info.state.is_terminal()).await;
        assert_eq!(info.state, RunState::Cancelled, "{name}");
    }
    assert_eq!(handle.graph_state().await.unwrap(), GraphState::Cancelled);
    worker.stop().await;
}

#[job(max_attempts = 1)]
async fn never_ends() -> Result<u64> {
    std::future::pending().await
}

#[job(max_attempts = 3)]
async fn gathers_parts(parts: Vec<u64>) -> Result<u64> {
    Ok(parts.iter().sum())
}

#[tokio::test(flavor = "multi_thread")]
async fn untyped_graph_is_checked_against_registered_jobs_and_types() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let mut graph = Graph::new("data");
    graph.node("typo", AnyCall::by_name("ad", &json!({"a": 1, "b": 2})));
    graph.node("absent", AnyCall::by_name("nobody.has_it", &json!({})));
    let said = graph.enqueue(&db).await.unwrap_err().to_string();
    for part in ["`typo`", "`ad`", "`absent`", "`nobody.has_it`"] {
        assert!(said.contains(part), "{part:?} is not said in:\n{said}");
    }
    assert_eq!(scalar::<i64>(&db, "select count(*) from runledger.run").await, 0);

    let worker = worker(&db, jobs![add, gathers_parts]).await;
    let mut graph = Graph::new("data");
    graph.gate::<()>("window");
    let handle = graph.enqueue(&db).await.unwrap();
    let mut more = Graph::new("data");
    more.node("typo", AnyCall::by_name("ad", &json!({"a": 1, "b": 2})));
    let said = handle.extend_from("window").append("1", more).await.unwrap_err().to_string();
    assert!(said.contains("the call of `typo` is refused: no job `ad` is known"), "{said}");
    assert_eq!(handle.nodes().await.unwrap().len(), 1);

    let mut graph = Graph::new("data");
    graph.node("own", AnyCall::by_name("add", &json!({"a": "text", "b": 2})));
    graph.node("gives", AnyCall::by_name("add", &json!({"a": 1, "b": 2})));
    let given_node = graph.node("given", AnyCall::by_name("gathers_parts", &json!({})));
    graph.feed(given_node, "parts", Need::from("gives".to_owned()));
    let handle = graph.enqueue(&db).await.unwrap();
    assert!(soon(handle.result()).await.is_err());
    for (name, parameter) in [("own", "a"), ("given", "parts")] {
        let node = node(&handle, name).await;
        assert_eq!((node.state, node.attempt), (RunState::Failed, 1), "no retry mends it");
        let error = node.error.unwrap();
        assert_eq!(error.kind, FailureKind::Decode);
        assert!(error.to_string().contains(parameter), "{error}");
    }
    worker.stop().await;
}

#[tokio::test]
#[ignore = "slow: `cargo exhaustive`"]
async fn graph_accepts_ten_thousand_nodes_and_refuses_more() {
    let Fixture { db, database: _database } = Fixture::new().await;
    for (n_nodes, n_written) in [(100_000_u64, 0), (10_001, 0), (10_000, 10_001)] {
        let mut graph = Graph::new("large");
        for n in 0..n_nodes {
            graph.call(add(n, 1));
        }
        let answer = graph.enqueue(&db).await;
        if n_written == 0 {
            let said = answer.unwrap_err().to_string();
            assert!(said.contains(&format!("it has {n_nodes} nodes, and 10000 is the most")), "{said:.500}");
            assert!(said.len() < 10_000, "{} bytes", said.len());
        } else {
            answer.unwrap();
        }
        assert_eq!(scalar::<i64>(&db, "select count(*) from runledger.run").await, n_written);
    }
}

/// When a graph is cancelled, relative to a completion and an addition.
enum Order {
    CancelLast,
    CancelFirst,
    AtOnce,
}

impl Order {
    /// Three of five at once, and one of five in each of the two serial orders.
    fn of(n: u64) -> Self {
        match n % 5 {
            0 => Self::CancelLast,
            1 => Self::CancelFirst,
            _ => Self::AtOnce,
        }
    }
}

/// Nodes released before the cancel are cancelled. Other nodes never start.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: `cargo exhaustive`"]
async fn cancel_racing_completion_release_or_addition_ends_in_serial_order() {
    let Fixture { db, database } = Fixture::new().await;
    let mut workers = Vec::new();
    for _ in 0..2 {
        workers.push(worker(&Db::connect(database.url()).await.unwrap(), jobs![add, sum]).await);
    }
    let one = async |n: u64| {
        let mut graph = Graph::new("raced");
        let gate = graph.gate::<u64>("gate");
        let window = graph.gate::<u64>("window");
        let chains: Vec<_> = (0..4)
            .map(|n| {
                let first = graph.call(add(n, 1).key(n));
                graph.then(add, (first, gate))
            })
            .collect();
        let all = graph.then(sum, (chains,));
        graph.after(all, window);
        let handle = graph.result(all).enqueue(&db).await.unwrap();
        let mut more = Graph::new("raced");
        let first = more.existing_node::<u64>("add[0]");
        let sum = more.then(add, (first, value(1)));
        more.configure(sum).name("added");
        let complete = async || handle.gate("gate").complete(&1_u64).await;
        let append = async || handle.extend_from("window").append("1", more).await;
        let cancel = async || handle.cancel(&format!("race {n}")).await;
        let (completed, appended, cancelled) = match Order::of(n) {
            Order::CancelLast => {
                let (completed, appended) = futures::join!(complete(), append());
                (completed, appended, cancel().await)
            }
            Order::CancelFirst => {
                let cancelled = cancel().await;
                let (completed, appended) = futures::join!(complete(), append());
                (completed, appended, cancelled)
            }
            Order::AtOnce => futures::join!(complete(), append(), cancel()),
        };
        assert_eq!(cancelled.unwrap(), Cancelled::Now);
        assert!(soon(handle.result()).await.is_err());
        let nodes = handle.nodes().await.unwrap();
        for node in &nodes {
            until(&db, node.run_id, |info| info.state.is_terminal()).await;
        }
        let nodes = handle.nodes().await.unwrap();
        assert_eq!(handle.graph_state().await.unwrap(), GraphState::Cancelled);
        let of = |name: &str| nodes.iter().find(|node| node.name == name);
        let gate = of("gate").unwrap().state;
        assert_eq!(completed.is_ok(), gate == RunState::Completed, "{completed:?}: {gate}");
        assert_eq!(appended.is_ok(), of("added").is_some(), "{appended:?}");
        if let Err(error) = completed {
            assert!(matches!(error, ClientError::GateDecided { .. }), "{error:?}");
        }
        if let Err(error) = appended {
            assert!(matches!(error, ClientError::ExtensionClosed { .. }), "{error:?}");
        }
        assert_eq!((of("sum").unwrap().state, of("sum").unwrap().attempt), (RunState::Cancelled, 0));
        let were = (gate == RunState::Completed, of("added").is_some());
        match Order::of(n) {
            Order::CancelLast => assert_eq!(were, (true, true)),
            Order::CancelFirst => assert_eq!(were, (false, false)),
            Order::AtOnce => {}
        }
    };
    for first in [0, 20, 40] {
        soon(futures::future::join_all((first..first + 20).map(one))).await;
    }
    let mut connection = database.connect().await.unwrap();
    assert_eq!(graphs::wrong(&mut connection, 0).await.unwrap(), Vec::<String>::new());
    let left =
        "select (select count(*) from runledger.graph_counter) + (select count(*) from runledger.waiting)
                + (select count(*) from runledger.ready) + (select count(*) from runledger.lease)";
    assert_eq!(scalar::<i64>(&db, left).await, 0);
    let deadlocks = "select deadlocks from pg_stat_database where datname = current_database()";
    assert_eq!(scalar::<i64>(&db, deadlocks).await, 0);
    for worker in workers {
        worker.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_gate_decisions_accept_one_value_and_refuse_others() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let mut graph = Graph::new("decided");
    for n in 0..10 {
        graph.gate::<u64>(format!("gate {n}"));
    }
    let handle = graph.enqueue(&db).await.unwrap();
    for n in 0..10 {
        let name = format!("gate {n}");
        let deciders = (0..8).map(|who| {
            let (handle, name) = (handle.clone(), name.clone());
            async move { handle.gate(&name).by(format!("who {who}")).complete(&(who % 4)).await }
        });
        let answers = futures::future::join_all(deciders).await;
        let output = format!(
            "select output::text from runledger.outcome where run_id = '{}'",
            node(&handle, &name).await.run_id
        );
        let output: u64 = scalar::<String>(&db, &output).await.parse().unwrap();
        for (who, answer) in (0..).zip(answers) {
            match answer {
                Ok(()) => assert_eq!(who % 4, output),
                Err(ClientError::GateDecided { .. }) => assert_ne!(who % 4, output),
                Err(error) => panic!("{error:?}"),
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_keyed_submissions_write_one_graph_and_differing_ones_conflict() {
    let Fixture { db, database: _database } = Fixture::new().await;
    for key in 0..10 {
        let submitted = (0..8_u64).map(|n| {
            let db = db.clone();
            tokio::spawn(async move {
                let mut graph = Graph::new("keyed");
                let first = graph.call(add(n % 2, 1));
                graph.then(add, (first, value(1)));
                graph.idempotency_key(format!("key {key}")).enqueue(&db).await
            })
        });
        let answers = futures::future::join_all(submitted).await.into_iter().map(|answer| answer.unwrap());
        let (given, refused): (Vec<_>, Vec<_>) = answers.partition(Result::is_ok);
        assert_eq!((given.len(), refused.len()), (4, 4));
        let given: Vec<_> = given.into_iter().map(Result::unwrap).collect();
        assert!(given.iter().all(|handle| handle.id() == given[0].id()));
        assert_eq!(given.iter().filter(|handle| handle.created()).count(), 1);
        for error in refused.into_iter().map(Result::unwrap_err) {
            assert!(matches!(error, ClientError::Conflict { .. }), "{error:?}");
        }
    }
    assert_eq!(scalar::<i64>(&db, "select count(*) from runledger.run").await, 30);
}

#[tokio::test(flavor = "multi_thread")]
async fn recovered_graph_keeps_settings_conditions_and_additions() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let app =
        App::new(db.clone()).with(jobs![add, tells]).queues(["default", "other"]).timings(Timings::FAST);
    let worker = app.start().await.unwrap();
    let mut graph = Graph::new("settings").tenant("acme").queue("other").priority(4);
    let approved = graph.gate::<bool>("approved");
    let one = graph.call(add(1, 1));
    graph.only_if(one, approved);
    let told = graph.then(tells, (one.on_any_outcome(),));
    graph.configure(told).tenant("bolt").priority(7).max_attempts(2).timeout(Duration::from_secs(9));
    graph.configure(told).resource("printer").metadata("of", "the node");
    graph.gate::<()>("window");
    let graph = graph.deadline(Duration::from_secs(3600)).metadata("region", "eu");
    let handle = graph.idempotency_key("monday").enqueue(&db).await.unwrap();
    let mut more = Graph::new("settings");
    let one = more.existing_node::<u64>("add");
    let added = more.then(add, (one, value(40)));
    more.configure(added).name("added").priority(5);
    handle.extend_from("window").append("1", more).await.unwrap();
    handle.cancel("another time").await.unwrap();
    let again = handle.recover("again").await.unwrap();

    let rows = async |handle: &GraphHandle<()>| {
        let rows = format!(
            "select string_agg(concat_ws(' ', node, graph, job, tenant, queue, priority, input, options), e'\\n' order by node)
             from runledger.run where run_id = '{0}' or parent_id = '{0}'",
            handle.id()
        );
        scalar::<String>(&db, &rows).await
    };
    let text = rows(&again).await;
    assert_eq!(
        text.replace(&again.id().to_string(), "id"),
        rows(&handle).await.replace(&handle.id().to_string(), "id")
    );
    let deadlines = format!("select count(*) from runledger.deadline where run_id = '{}'", again.id());
    assert_eq!(scalar::<i64>(&db, &deadlines).await, 1, "counted anew");
    again.gate("approved").complete(&true).await.unwrap();
    again.gate("window").complete(&()).await.unwrap();
    soon(again.result()).await.unwrap();
    let output = format!(
        "select output::text from runledger.outcome where run_id = '{}'",
        node(&again, "added").await.run_id
    );
    assert_eq!(scalar::<String>(&db, &output).await, "42");
    worker.stop().await;
}

/// A cancel ends the run of the graph first, then one node after another. It can be stopped in
/// between.
#[tokio::test(flavor = "multi_thread")]
async fn gate_of_cancelled_graph_refuses_decision_before_its_own_cancel() {
    let Fixture { db, database } = Fixture::new().await;
    let mut graph = Graph::new("cancelled");
    let gate = graph.gate::<u64>("gate");
    graph.then(add, (gate, value(1)));
    let handle = graph.enqueue(&db).await.unwrap();
    let proxy = Proxy::start(database.url()).await.unwrap();
    let other = Db::connect(proxy.url()).await.unwrap();
    proxy.arm("-- cancel_below:", Fault::Strand);
    let (there, id) = (other.clone(), handle.id());
    let cancel = tokio::spawn(async move { there.graph::<()>(id).cancel("enough").await });
    until(&db, handle.id(), |info| info.state == RunState::Cancelled).await;
    assert_eq!(node(&handle, "gate").await.state, RunState::Waiting, "nobody has come to it");
    for error in [
        handle.gate("gate").complete(&1_u64).await.unwrap_err(),
        handle.gate("gate").fail("no").await.unwrap_err(),
    ] {
        let ClientError::GateDecided { ended, .. } = &error else { panic!("{error:?}") };
        assert_eq!(*ended, RunState::Cancelled);
    }
    cancel.abort();
    assert_eq!(handle.cancel("again").await.unwrap(), Cancelled::AlreadyEnded(RunState::Cancelled));
    for name in ["gate", "add"] {
        let node = node(&handle, name).await;
        assert_eq!((node.state, node.attempt, node.decided_at), (RunState::Cancelled, 0, None), "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn graph_ends_despite_unreadable_failure_of_node() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![refuses]).await;
    let mut graph = Graph::new("unreadable");
    graph.call(refuses(1));
    graph.gate::<()>("gate");
    let handle = graph.enqueue(&db).await.unwrap();
    until(&db, node(&handle, "refuses").await.run_id, |info| info.state == RunState::Failed).await;
    let unreadable = r#"update runledger.outcome set error = '{"kind": "error", "message": "\u0000"}'"#;
    execute(&db, unreadable).await;
    handle.gate("gate").complete(&()).await.unwrap();
    until(&db, handle.id(), |info| info.state == RunState::Failed).await;
    worker.stop().await;
}
