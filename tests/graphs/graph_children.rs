//! Graphs as children of workflows.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use runledger::prelude::*;
use runledger::{ClientError, Graph, GraphHandle, GraphState, RunState, Worker};
use runledger_tests::rows::{scalar, soon, until, worker};
use runledger_tests::{Fixture, eventually};
use uuid::Uuid;

#[job]
async fn half_of(n: u64) -> Result<u64> {
    Ok(n / 2)
}

#[job]
async fn sum_of(left: u64, right: u64) -> Result<u64> {
    Ok(left + right)
}

#[job]
async fn gated(sum: u64, is_approved: bool) -> Result<String> {
    Ok(format!("{sum} {is_approved}"))
}

#[job(max_attempts = 1)]
async fn fails_so_often(n: u32) -> Result<u64> {
    static TRIES: AtomicU32 = AtomicU32::new(0);
    match TRIES.fetch_add(1, Ordering::SeqCst) {
        tried if tried < n => Err(Error::terminal("on purpose")),
        tried => Ok(tried.into()),
    }
}

fn halves(a: u64, b: u64) -> Graph<u64> {
    let mut graph = Graph::new("halves");
    let a = graph.call(half_of(a).key("a"));
    let b = graph.call(half_of(b).key("b"));
    let sum = graph.then(sum_of, (a, b));
    graph.result(sum)
}

#[workflow]
async fn starts_a_graph(wf: &Wf, a: u64, b: u64) -> Result<u64> {
    let before = wf.step("before", || async { Ok::<u64, Error>(100) }).await?;
    let graph = wf.start_graph(halves(a, b)).await?;
    Ok(before + graph.result().await?)
}

/// Returns the failure of a run, with its causes.
fn why(error: ClientError) -> String {
    let ClientError::RunFailed { failure, .. } = error else { panic!("{error}") };
    std::iter::once(failure.message).chain(failure.causes).collect::<Vec<_>>().join(": ")
}

async fn one_slot(db: &Db) -> Worker {
    let app = App::new(db.clone()).with(jobs![
        starts_a_graph,
        waits_at_a_gate,
        half_of,
        sum_of,
        gated,
        tries_a_graph_again,
        fails_so_often,
        goes_down,
        starts_what_is_wrong,
        names_a_tenant
    ]);
    app.concurrency(1).start().await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn workflow_receives_graph_result_and_frees_its_slot_for_nodes() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = one_slot(&db).await;
    let handle = starts_a_graph(10, 20).tenant("acme").enqueue(&db).await.unwrap();
    assert_eq!(soon(handle.result()).await.unwrap(), 115);
    let keys: Vec<String> = handle.steps().await.unwrap().into_iter().map(|step| step.key).collect();
    assert_eq!(keys, ["before", "halves", "halves.result"]);
    let graph = format!("select run_id from runledger.run where parent_id = '{}'", handle.id());
    let graph = db.graph::<u64>(scalar::<Uuid>(&db, &graph).await);
    assert_eq!(graph.info().await.unwrap().tenant, "acme");
    let nodes = graph.nodes().await.unwrap();
    assert_eq!(
        nodes.iter().map(|node| node.name.as_str()).collect::<Vec<_>>(),
        ["half_of[a]", "half_of[b]", "sum_of"]
    );
    assert_eq!(
        scalar::<i64>(&db, "select count(*) from runledger.run where tenant = 'acme' and depth = 2").await,
        3
    );
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fork_reuses_graph_of_recorded_step_and_rerun_starts_another() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = one_slot(&db).await;
    let handle = starts_a_graph(10, 20).enqueue(&db).await.unwrap();
    assert_eq!(soon(handle.result()).await.unwrap(), 115);
    let n_graphs =
        async || scalar::<i64>(&db, "select count(*) from runledger.run where graph = 'halves'").await;
    let behind = handle.fork("halves.result").await.unwrap();
    assert_eq!((soon(behind.result()).await.unwrap(), n_graphs().await), (115, 1));
    let before = handle.fork("halves").await.unwrap();
    assert_eq!((soon(before.result()).await.unwrap(), n_graphs().await), (115, 2));
    let again = handle.rerun().await.unwrap();
    assert_eq!((soon(again.result()).await.unwrap(), n_graphs().await), (115, 3));
    worker.stop().await;
}

#[workflow]
async fn waits_at_a_gate(wf: &Wf) -> Result<String> {
    let mut graph = Graph::new("approval");
    let sum = graph.call(half_of(10));
    let gate = graph.gate::<bool>("approved");
    let end = graph.then(gated, (sum, gate));
    let graph = wf.start_graph(graph.result(end)).await?;
    Ok(graph.result().await?)
}

async fn graph_of(db: &Db, workflow: Uuid) -> GraphHandle<String> {
    let graph = format!("select run_id from runledger.run where parent_id = '{workflow}'");
    let started = async || {
        sqlx::query_scalar::<_, Uuid>(sqlx::AssertSqlSafe(graph.clone()))
            .fetch_optional(db.pool())
            .await
            .unwrap()
    };
    let run_id = eventually(started, Option::is_some).await.unwrap();
    db.graph(run_id)
}

#[tokio::test(flavor = "multi_thread")]
async fn workflow_waits_for_graph_gate_and_its_cancel_reaches_nodes() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = one_slot(&db).await;
    let [opened, cancelled] =
        [waits_at_a_gate().enqueue(&db).await, waits_at_a_gate().enqueue(&db).await].map(Result::unwrap);
    for handle in [&opened, &cancelled] {
        until(&db, handle.id(), |info| info.state == RunState::Waiting).await;
        let graph = graph_of(&db, handle.id()).await;
        eventually(async || graph.graph_state().await.unwrap(), |state| *state == GraphState::Waiting).await;
    }
    graph_of(&db, opened.id()).await.gate("approved").complete(&true).await.unwrap();
    assert_eq!(soon(opened.result()).await.unwrap(), "5 true");
    cancelled.cancel("given up").await.unwrap();
    let graph = graph_of(&db, cancelled.id()).await;
    eventually(async || graph.graph_state().await.unwrap(), |state| *state == GraphState::Cancelled).await;
    // Maintenance cancels a node that was locked at the moment of the cancel.
    let going_on = "select count(*) from runledger.run_state where state not in ('completed', 'cancelled')";
    eventually(async || scalar::<i64>(&db, going_on).await, |n| *n == 0).await;
    worker.stop().await;
}

#[workflow]
async fn tries_a_graph_again(wf: &Wf) -> Result<u64> {
    let mut graph = Graph::new("unsteady");
    let node = graph.call(fails_so_often(1));
    let graph = wf.start_graph(graph.result(node)).await?;
    wf.step("charge", || async { Ok::<_, Error>(CHARGED.fetch_add(1, Ordering::SeqCst)) }).await?;
    Ok(graph.result().await?)
}

static CHARGED: AtomicU32 = AtomicU32::new(0);

#[tokio::test(flavor = "multi_thread")]
async fn graph_failure_fails_workflow_and_revive_starts_new_graph() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = one_slot(&db).await;
    let handle = tries_a_graph_again().enqueue(&db).await.unwrap();
    let said = why(soon(handle.result()).await.unwrap_err());
    assert!(said.contains("`unsteady.result`") && said.contains("fails_so_often"), "{said}");
    let revived = handle.revive(RunState::Failed).await.unwrap();
    assert_eq!(soon(revived.result()).await.unwrap(), 1);
    assert_eq!(scalar::<i64>(&db, "select count(*) from runledger.run where graph = 'unsteady'").await, 2);
    assert_eq!(CHARGED.load(Ordering::SeqCst), 1, "it is on record");
    let forked = handle.fork("unsteady.result").await.unwrap();
    assert_eq!((soon(forked.result()).await.unwrap(), CHARGED.load(Ordering::SeqCst)), (2, 1));
    worker.stop().await;
}

#[workflow]
async fn goes_down(wf: &Wf, depth: u32) -> Result<u64> {
    let mut graph = Graph::new("down");
    let node = graph.call(goes_down(depth + 1));
    let graph = wf.start_graph(graph.result(node)).await?;
    Ok(graph.result().await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn nested_graphs_and_workflows_fail_at_depth_limit() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = one_slot(&db).await;
    let handle = goes_down(0).enqueue(&db).await.unwrap();
    assert!(matches!(soon(handle.result()).await, Err(ClientError::RunFailed { .. })));
    let deepest = scalar::<i16>(&db, "select max(depth) from runledger.run").await;
    assert_eq!(deepest, 100);
    let why = "select error::text from runledger.step where error::text like '%no child `down` is started%'";
    assert!(scalar::<String>(&db, why).await.contains(&handle.id().to_string()));
    worker.stop().await;
}

#[workflow]
async fn starts_what_is_wrong(wf: &Wf) -> Result<u64> {
    let mut graph = Graph::new("wrong");
    let one = graph.call(half_of(1));
    graph.after(one, "two");
    graph.after(one, one);
    Ok(wf.start_graph(graph.result(one)).await?.result().await?)
}

#[workflow]
async fn names_a_tenant(wf: &Wf) -> Result<u64> {
    Ok(wf.start_graph(halves(1, 2).tenant("other")).await?.result().await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_graph_fails_workflow_with_every_error_and_writes_nothing() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = one_slot(&db).await;
    let wrong = why(soon(starts_what_is_wrong().enqueue(&db).await.unwrap().result()).await.unwrap_err());
    assert!(
        wrong.contains("`half_of` needs `two`, which is not in it")
            && wrong.contains("`half_of` needs itself"),
        "{wrong}"
    );
    let tenant = why(soon(names_a_tenant().enqueue(&db).await.unwrap().result()).await.unwrap_err());
    assert!(tenant.contains("the graph `halves` has a `tenant`, which a child cannot have"), "{tenant}");
    assert_eq!(scalar::<i64>(&db, "select count(*) from runledger.run where graph is not null").await, 0);
    worker.stop().await;
}

static HAS_CHANGED: AtomicBool = AtomicBool::new(false);

/// The same job before and after a deploy that gives it a deadline and another queue.
mod before {
    use runledger::prelude::*;

    #[job(name = "graph_children.changing")]
    pub async fn changing(n: u64) -> Result<u64> {
        Ok(n)
    }
}

mod after {
    use runledger::prelude::*;

    #[job(name = "graph_children.changing", deadline = "1h", queue = "other")]
    pub async fn changing(n: u64) -> Result<u64> {
        Ok(n)
    }
}

fn made_of(name: &str) -> Graph<Vec<u64>> {
    let mut graph = Graph::new(name);
    let gate = graph.gate::<bool>("approved");
    if HAS_CHANGED.load(Ordering::SeqCst) {
        let one = graph.call(after::changing(1));
        let many = graph.map(after::changing, vec![one]);
        graph.configure(many).name("many");
        graph.after(one, gate);
        graph.result(many)
    } else {
        let one = graph.call(before::changing(1));
        let many = graph.map(before::changing, vec![one]);
        graph.configure(many).name("many");
        graph.after(one, gate);
        graph.result(many)
    }
}

#[workflow]
async fn starts_what_changes(wf: &Wf) -> Result<Vec<u64>> {
    Ok(wf.start_graph(made_of("changing_jobs")).await?.result().await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn graph_stays_identical_when_deploy_changes_options_of_its_job() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![starts_what_changes, before::changing]).await;
    let handle = starts_what_changes().enqueue(&db).await.unwrap();
    let keyed = made_of("keyed").idempotency_key("once").enqueue(&db).await.unwrap();
    until(&db, handle.id(), |info| info.state == RunState::Waiting).await;
    HAS_CHANGED.store(true, Ordering::SeqCst);
    let again = made_of("keyed").idempotency_key("once").enqueue(&db).await.unwrap();
    assert_eq!((again.id(), again.created()), (keyed.id(), false));
    graph_of(&db, handle.id()).await.gate("approved").complete(&true).await.unwrap();
    assert_eq!(soon(handle.result()).await.unwrap(), [1]);
    worker.stop().await;
}

static CHANGED: AtomicBool = AtomicBool::new(false);

#[workflow]
async fn changes_its_graph(wf: &Wf) -> Result<String> {
    let mut graph = Graph::new("changing");
    let sum = graph.call(half_of(if CHANGED.load(Ordering::SeqCst) { 12 } else { 10 }));
    let gate = graph.gate::<bool>("approved");
    let end = graph.then(gated, (sum, gate));
    let graph = wf.start_graph(graph.result(end)).await?;
    Ok(graph.result().await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn changed_graph_blocks_run_until_recorded_graph_is_restored() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![changes_its_graph, half_of, gated]).await;
    let handle = changes_its_graph().enqueue(&db).await.unwrap();
    until(&db, handle.id(), |info| info.state == RunState::Waiting).await;
    CHANGED.store(true, Ordering::SeqCst);
    graph_of(&db, handle.id()).await.gate("approved").complete(&true).await.unwrap();
    let ClientError::RunBlocked { failure, .. } = soon(handle.result()).await.unwrap_err() else { panic!() };
    assert!(failure.to_string().contains("`changing`"), "{failure}");
    CHANGED.store(false, Ordering::SeqCst);
    handle.resume().await.unwrap();
    assert_eq!(soon(handle.result()).await.unwrap(), "5 true");
    worker.stop().await;
}
