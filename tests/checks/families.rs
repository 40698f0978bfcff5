//! I9, I14: parents and children, while workers are killed.

use std::collections::{HashMap, VecDeque};

use runledger::{Graph, RunState};
use runledger_tests::check::fleet::completes;
use runledger_tests::check::{Fleet, What, graphs, jobs, shapes};
use runledger_tests::eventually;
use runledger_tests::seed::seed;

use super::WORKER;

#[tokio::test(flavor = "multi_thread")]
async fn last_child_completion_wakes_parent_once_although_workers_are_killed() -> anyhow::Result<()> {
    let fleet = Fleet::new().await?;
    let first = fleet.process(WORKER).await?;
    let run = jobs::check_joining(fleet.place.clone()).enqueue(&fleet.db).await?;
    eventually(|| async { run.state().await.ok() }, |state| *state == Some(RunState::Waiting)).await;
    fleet.place.open("0")?;
    eventually(|| n_ended(&fleet), |n| *n == 1).await;
    first.kill().await?;
    let second = fleet.process(WORKER).await?;
    fleet.place.open("2")?;
    eventually(|| n_ended(&fleet), |n| *n == 2).await;
    second.kill().await?;
    let _third = fleet.process(WORKER).await?;
    fleet.place.open("1")?;
    completes(&run).await;
    fleet.drained().await?;
    assert_eq!(fleet.verdict(&[]).await?, Vec::<String>::new());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn cancel_reaches_children_although_shared_worker_is_killed() -> anyhow::Result<()> {
    let fleet = Fleet::new().await?;
    let first = fleet.process(WORKER).await?;
    let run = jobs::check_joining(fleet.place.clone()).enqueue(&fleet.db).await?;
    eventually(|| async { run.state().await.ok() }, |state| *state == Some(RunState::Waiting)).await;
    first.kill().await?;
    run.cancel("nobody wants it").await?;
    let _second = fleet.process(WORKER).await?;
    // Their gates are closed, so only the cancel can end them.
    fleet.drained().await?;
    let children: Vec<String> =
        sqlx::query_scalar("select state from runledger.run_state where parent_id is not null")
            .fetch_all(fleet.db.pool())
            .await?;
    assert_eq!(children, ["cancelled"; 3]);
    assert_eq!(fleet.verdict(&[]).await?, Vec::<String>::new());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn node_starts_after_last_dependency_although_workers_are_killed() -> anyhow::Result<()> {
    let fleet = Fleet::new().await?;
    let first = fleet.process(WORKER).await?;
    let mut graph = Graph::new("check.killed");
    let [one, two] = [1, 2].map(|n| graph.call(jobs::check_sum(vec![n]).key(n)));
    let held = graph.call(jobs::check_gated(fleet.place.clone()));
    let joined = graph.then(jobs::check_sum, (vec![one, two],));
    graph.after(joined, held);
    let last = graph.then(jobs::check_sum, (vec![joined, one],));
    let run = graph.result(last).enqueue(&fleet.db).await?;
    eventually(|| n_ended(&fleet), |n| *n >= 2).await;
    assert_eq!(graphs::wrong(&mut fleet.connect().await?, 0).await?, Vec::<String>::new());
    first.kill().await?;
    let second = fleet.process(WORKER).await?;
    fleet.place.open("all")?;
    completes(&run).await;
    second.kill().await?;
    let _third = fleet.process(WORKER).await?;
    fleet.drained().await?;
    assert_eq!(run.result().await?, 4);
    assert_eq!(fleet.verdict(&[]).await?, Vec::<String>::new());
    Ok(())
}

/// Graphs of eight chains with two nodes each.
const N_GRAPHS: usize = 1000;
const N_NODES: usize = N_GRAPHS * 16;

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: `cargo exhaustive`"]
async fn concurrent_siblings_on_eight_processes_run_once_without_deadlock() -> anyhow::Result<()> {
    let fleet = Fleet::new().await?;
    for _ in 0..N_GRAPHS {
        let mut graph = Graph::new("check.siblings");
        for n in 0..8 {
            let first = graph.call(jobs::check_quick(fleet.place.clone()).key(format!("{n}.1")));
            let second = graph.call(jobs::check_quick(fleet.place.clone()).key(format!("{n}.2")));
            graph.after(second, first);
        }
        graph.enqueue(&fleet.db).await?;
    }
    let mut crew = Vec::new();
    for _ in 0..8 {
        crew.push(fleet.process(WORKER).await?);
    }
    // In 20 parts, each with the full time limit.
    for part in 1..=20 {
        eventually(
            || n_ended(&fleet),
            |n| *n >= i64::try_from(part * (N_NODES + N_GRAPHS) / 20).unwrap_or(0),
        )
        .await;
    }
    fleet.drained().await?;
    let completed = "select count(*) from runledger.outcome where state = 'completed' and attempt <= 1";
    let completed: i64 = sqlx::query_scalar(completed).fetch_one(fleet.db.pool()).await?;
    assert_eq!(usize::try_from(completed)?, N_NODES + N_GRAPHS);
    let mut begun: HashMap<_, u32> = HashMap::new();
    for event in fleet.place.events()?.iter().filter(|event| event.what == What::Start) {
        *begun.entry(event.run_id).or_default() += 1;
    }
    assert_eq!(begun.len(), N_NODES);
    assert!(begun.values().all(|n| *n == 1), "some bodies ran twice");
    let deadlocks = "select deadlocks from pg_stat_database where datname = current_database()";
    let deadlocks: i64 = sqlx::query_scalar(deadlocks).fetch_one(fleet.db.pool()).await?;
    assert_eq!(deadlocks, 0);
    assert_eq!(fleet.verdict(&[]).await?, Vec::<String>::new());
    drop(crew);
    Ok(())
}

async fn n_ended(fleet: &Fleet) -> i64 {
    let ended = sqlx::query_scalar("select count(*) from runledger.outcome");
    ended.fetch_one(fleet.db.pool()).await.unwrap_or_default()
}

/// Graphs of random shapes, and how many are submitted before each kill of a worker.
const SHAPES: u64 = 2_000;
const A_KILL: usize = 100;

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: `cargo exhaustive`"]
async fn random_graphs_match_expected_outcomes_although_workers_are_killed() -> anyhow::Result<()> {
    let fleet = Fleet::new().await?;
    let mut workers = VecDeque::new();
    for _ in 0..3 {
        workers.push_back(fleet.process(WORKER).await?);
    }
    let first = seed() >> 16;
    let seeds: Vec<u64> = (first..first + SHAPES).collect();
    for (n, seeds) in seeds.chunks(A_KILL).enumerate() {
        for seed in seeds {
            let graph = shapes::graph_of(&shapes::shapes(*seed)).idempotency_key(shapes::key_of(*seed));
            graph.enqueue(&fleet.db).await?;
        }
        // The worker is killed while it executes nodes.
        let n_held = async || count(&fleet, "select count(*) from runledger.lease").await;
        eventually(n_held, |n_held| *n_held > 0).await;
        if let Some(oldest) = workers.pop_front() {
            oldest.kill().await?;
        }
        workers.push_back(fleet.process(WORKER).await?);
        if n % 5 == 4 {
            fleet.drained().await?;
        }
    }
    fleet.drained().await?;
    let (n_graphs, wrong) = shapes::wrong(&fleet.db).await?;
    assert_eq!(wrong, Vec::<String>::new());
    assert_eq!(u64::try_from(n_graphs)?, SHAPES);
    let n_crashed = count(&fleet, "select count(*) from audit.recovery where cause = 'crashed'").await;
    assert!(n_crashed > 0, "the kills have hit nothing");
    assert_eq!(fleet.verdict(&[]).await?, Vec::<String>::new());
    Ok(())
}

async fn count(fleet: &Fleet, query: &'static str) -> i64 {
    sqlx::query_scalar(query).fetch_one(fleet.db.pool()).await.unwrap_or_default()
}
