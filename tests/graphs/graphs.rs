//! Declared graphs: behaviours 26 to 35.

use std::time::Duration;

use runledger::prelude::*;
use runledger::{AnyCall, Cancelled, ClientError, FailureKind, Graph, GraphState, NodeInfo, RunState, value};
use runledger_tests::rows::{execute, scalar, soon, until, worker};
use runledger_tests::{Fixture, eventually};
use serde_json::json;
use tokio::sync::Semaphore;

use crate::graph_jobs::{add, refuses, sum, tells};

#[job]
async fn extract(region: &str) -> Result<u64> {
    Ok(region.len() as u64)
}

#[job]
async fn publishes(total: u64, approved: bool) -> Result<String> {
    Ok(format!("{total} {approved}"))
}

fn all() -> [&'static runledger::Definition; 7] {
    jobs![extract, add, sum, refuses, tells, publishes, held_up]
}

fn named<'n>(nodes: &'n [NodeInfo], name: &str) -> &'n NodeInfo {
    nodes.iter().find(|node| node.name == name).unwrap_or_else(|| panic!("no node `{name}` in {nodes:?}"))
}

#[tokio::test]
async fn graph_reports_all_errors_with_names_before_any_write() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let mut graph = Graph::new("Nightly");
    let a = graph.node("a", extract("a".to_owned().as_str()));
    let twin = graph.node("twin", extract("b"));
    graph.node("twin", extract("c"));
    let blank = graph.node(" ", extract("d"));
    let gate = graph.gate::<bool>("gate");
    graph.configure(gate).max_attempts(3);
    graph.after(a, "absent").after(twin, twin).after(blank, a).after(a, blank);
    graph.feed(a, "regoin", gate);
    graph.node("unfed", AnyCall::by_name("add", &json!({"a": 1})));
    let mut other = Graph::new("other");
    let foreign = other.call(extract("x"));
    graph.after(gate, foreign);
    let graph = graph.result(foreign);
    let Err(ClientError::Graph(error)) = graph.enqueue(&db).await else { panic!("it was submitted") };
    let said = error.to_string();
    for part in [
        "nothing was written",
        "graph `Nightly` does not begin with a lower-case letter",
        "2 nodes are called `twin`",
        "node ` ` is blank",
        "`a` needs `absent`, which is not in it",
        "`twin` needs itself",
        "in a circle: `a` → ` ` → `a`",
        "the gate `gate` has `max_attempts`",
        "`a` is given the parameter `regoin`, which its job `extract` does not have; did you mean `region`?",
        "nothing gives `unfed` the parameter `b`, which its job `add` needs",
        "`gate` needs a node of another graph",
        "`result` is given a node of another graph",
    ] {
        assert!(said.contains(part), "{part:?} is not said in:\n{said}");
    }
    let empty = Graph::new("empty").enqueue(&db).await.unwrap_err().to_string();
    assert!(empty.contains("it has no nodes"), "{empty}");
    assert_eq!(scalar::<i64>(&db, "select count(*) from runledger.run").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn outputs_flow_along_edges_and_result_node_gives_graph_result() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, all()).await;
    let mut graph = Graph::new("nightly");
    let eu = graph.call(extract("eu").key("eu"));
    let us = graph.call(extract("usa").key("us"));
    let total = graph.then(add, (eu, us));
    let twice = graph.then(add, (total, total));
    let all = graph.then(sum, (vec![eu, us, total, twice],));
    let none = graph.then(sum, (Vec::<runledger::Node<u64>>::new(),));
    let more = graph.then(add, (all, value(100)));
    graph.after(none, more);
    let handle = graph.result(more).enqueue(&db).await.unwrap();
    assert_eq!(soon(handle.result()).await.unwrap(), 2 + 3 + 5 + 10 + 100);
    let nodes = handle.nodes().await.unwrap();
    let names: Vec<&str> = nodes.iter().map(|node| node.name.as_str()).collect();
    assert_eq!(names, ["add", "add#2", "add#3", "extract[eu]", "extract[us]", "sum", "sum#2"]);
    assert_eq!(named(&nodes, "add").dependencies, ["extract[eu]", "extract[us]"]);
    assert!(nodes.iter().all(|node| node.state == RunState::Completed && node.attempt == 1), "{nodes:?}");
    assert_eq!(handle.graph_state().await.unwrap(), GraphState::Completed);
    let left: i64 = scalar(&db, "select count(*) from runledger.graph_counter").await;
    assert_eq!(left, 0, "what was counted is forgotten");
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn node_failure_cancels_success_dependents_but_runs_any_outcome_dependents() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, all()).await;
    let mut graph = Graph::new("failing");
    let fails = graph.call(refuses(7));
    let hopeless = graph.then(add, (fails, value(1)));
    let beyond = graph.then(add, (hopeless, value(1)));
    let told = graph.then(tells, (fails.on_any_outcome(),));
    let told_too = graph.then(tells, (beyond.on_any_outcome(),));
    graph.configure(told_too).name("told-too");
    let handle = graph.result(told).enqueue(&db).await.unwrap();
    assert_eq!(soon(handle.result()).await.unwrap(), "failed: 7 is refused");
    let nodes = handle.nodes().await.unwrap();
    assert_eq!(named(&nodes, "refuses").state, RunState::Failed);
    for name in ["add", "add#2"] {
        let node = named(&nodes, name);
        assert_eq!((node.state, node.attempt), (RunState::Cancelled, 0));
        let error = node.error.as_ref().unwrap();
        assert_eq!(error.kind, FailureKind::Cancelled);
        assert_eq!(error.message, "cancelled: the node `refuses` failed, and this one needs its success");
    }
    assert_eq!(
        named(&nodes, "told-too").state,
        RunState::Completed,
        "any end of a node that never ran is an end"
    );
    assert_eq!(handle.graph_state().await.unwrap(), GraphState::CompletedWithErrors);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn graph_without_result_fails_when_leaf_node_does_not_complete() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, all()).await;
    let mut graph = Graph::new("failing");
    let fails = graph.call(refuses(7));
    graph.then(add, (fails, value(1)));
    graph.call(extract("fine"));
    let handle = graph.enqueue(&db).await.unwrap();
    let Err(ClientError::RunFailed { failure, .. }) = soon(handle.result()).await else {
        panic!("it completed")
    };
    assert_eq!(failure.message, "nodes of the graph did not complete: 1 failed, 1 cancelled");
    assert_eq!(failure.causes, ["`refuses`: 7 is refused"]);
    assert_eq!(handle.graph_state().await.unwrap(), GraphState::Failed);

    let mut graph = Graph::new("caught");
    let fails = graph.call(refuses(7));
    graph.then(tells, (fails.on_any_outcome(),));
    let handle = graph.enqueue(&db).await.unwrap();
    soon(handle.result()).await.unwrap();
    assert_eq!(handle.graph_state().await.unwrap(), GraphState::CompletedWithErrors);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn gate_accepts_repeated_identical_decision_and_refuses_different_one() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, all()).await;
    let mut graph = Graph::new("gated");
    let first = graph.gate::<bool>("first");
    let total = graph.call(add(1, 2));
    let second = graph.gate::<bool>("second");
    graph.after(second, first).after(second, total);
    let published = graph.then(publishes, (total, second));
    let handle = graph.result(published).enqueue(&db).await.unwrap();
    until(&db, handle.nodes().await.unwrap()[0].run_id, |info| info.state == RunState::Completed).await;
    assert_eq!(handle.graph_state().await.unwrap(), GraphState::Waiting, "only for the outside");

    let early = handle.gate("second").complete(&true).await.unwrap_err();
    assert!(matches!(&early, ClientError::GateNotOpen { n_live_dependencies: 1, .. }), "{early}");
    let absent = handle.gate("secnd").complete(&true).await.unwrap_err().to_string();
    assert!(absent.contains("has no gate `secnd`; did you mean `second`?"), "{absent}");
    let job = handle.gate("add").complete(&true).await.unwrap_err();
    assert!(matches!(job, ClientError::NoSuchGate { .. }), "{job}");

    handle.gate("first").by("ann").reason("looks good").complete(&true).await.unwrap();
    handle.gate("first").by("bob").complete(&true).await.unwrap();
    let other = handle.gate("first").complete(&false).await.unwrap_err().to_string();
    assert!(other.contains("has a decision already by `ann` and is completed"), "{other}");
    let other = handle.gate("first").fail("no").await.unwrap_err();
    assert!(matches!(other, ClientError::GateDecided { .. }), "{other}");
    handle.gate("second").complete(&false).await.unwrap();
    assert_eq!(soon(handle.result()).await.unwrap(), "3 false");
    let nodes = handle.nodes().await.unwrap();
    let gate = named(&nodes, "first");
    assert_eq!((gate.decided_by.as_deref(), gate.reason.as_deref()), (Some("ann"), Some("looks good")));
    assert!(gate.decided_at.is_some() && gate.job.is_none());
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_gate_cancels_success_dependents_and_gate_can_time_out() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, all()).await;
    let mut graph = Graph::new("refused");
    let gate = graph.gate::<u64>("gate");
    graph.then(add, (gate, gate));
    let told = graph.then(tells, (gate.on_any_outcome(),));
    let handle = graph.result(told).enqueue(&db).await.unwrap();
    handle.gate("gate").fail("not today").await.unwrap();
    handle.gate("gate").fail("not today").await.unwrap();
    assert_eq!(soon(handle.result()).await.unwrap(), "failed: not today");
    assert_eq!(named(&handle.nodes().await.unwrap(), "add").state, RunState::Cancelled);

    let mut graph = Graph::new("timed-out");
    let before = graph.call(add(1, 1));
    let gate = graph.gate::<u64>("gate");
    graph.after(gate, before);
    graph.configure(gate).deadline(Duration::from_millis(1));
    let told = graph.then(tells, (gate.on_any_outcome(),));
    let handle = graph.result(told).enqueue(&db).await.unwrap();
    let told = soon(handle.result()).await.unwrap();
    assert_eq!(told, "cancelled: cancelled: it did not end within its deadline of 1ms");
    worker.stop().await;
}

static HELD_UP: Semaphore = Semaphore::const_new(0);

#[job]
async fn held_up(n: u64) -> Result<u64> {
    HELD_UP.acquire().await?.forget();
    Ok(n)
}

#[tokio::test(flavor = "multi_thread")]
async fn graph_cancel_cancels_every_live_node_and_releases_none() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, all()).await;
    let mut graph = Graph::new("doomed");
    let runs = graph.call(held_up(1));
    let waits = graph.then(add, (runs, value(1)));
    let waits_on = graph.then(tells, (waits.on_any_outcome(),));
    let gate = graph.gate::<bool>("gate");
    graph.after(waits_on, gate);
    let queued = graph.node("queued", AnyCall::by_name("held_up", &json!({"n": 2})));
    graph.configure(queued).delay(Duration::from_secs(3600));
    let handle = graph.enqueue(&db).await.unwrap();
    let running = named(&handle.nodes().await.unwrap(), "held_up").run_id;
    until(&db, running, |info| info.state == RunState::Running).await;
    assert_eq!(handle.cancel("enough").await.unwrap(), Cancelled::Now);
    // A worker may cancel some of the nodes at the same time.
    let nodes = async || handle.nodes().await.unwrap();
    eventually(nodes, |nodes| nodes.iter().all(|node| node.state == RunState::Cancelled)).await;
    assert_eq!(handle.graph_state().await.unwrap(), GraphState::Cancelled);
    assert_eq!(handle.cancel("again").await.unwrap(), Cancelled::AlreadyEnded(RunState::Cancelled));
    let attempts: i64 = scalar(&db, "select count(*) from runledger.lease").await;
    assert_eq!(attempts, 0);
    assert_eq!(scalar::<i64>(&db, "select count(*) from runledger.graph_counter").await, 0);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cancelled_node_cancels_success_dependent_and_releases_any_outcome_dependent() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let mut graph = Graph::new("one-less");
    let node = graph.call(add(1, 1));
    graph.then(add, (node, value(1)));
    let told = graph.then(tells, (node.on_any_outcome(),));
    let handle = graph.result(told).enqueue(&db).await.unwrap();
    let id = named(&handle.nodes().await.unwrap(), "add").run_id;
    runledger::RunHandle::attach(add, &db, id).cancel("not this one").await.unwrap();
    let nodes = handle.nodes().await.unwrap();
    assert_eq!(named(&nodes, "add#2").state, RunState::Cancelled);
    assert_eq!(named(&nodes, "tells").state, RunState::Queued);
    let worker = worker(&db, all()).await;
    assert_eq!(soon(handle.result()).await.unwrap(), "cancelled: cancelled: not this one");
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn same_key_returns_same_graph_and_conflict_names_changed_part() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let build = |regions: [&str; 2], priority: i16, on_terminal: bool| {
        let mut graph = Graph::new("keyed");
        let nodes: Vec<_> = regions.iter().map(|region| graph.call(extract(region).key(region))).collect();
        let both = graph.then(sum, (Vec::<runledger::Node<u64>>::new(),));
        for node in nodes {
            let need = runledger::Need::from(node);
            graph.after(both, if on_terminal { need.on_any_outcome() } else { need });
        }
        graph.configure(both).priority(priority);
        graph.idempotency_key("monday")
    };
    let first = build(["eu", "us"], 1, false).enqueue(&db).await.unwrap();
    let again = build(["us", "eu"], 1, false).enqueue(&db).await.unwrap();
    assert_eq!((first.id(), first.created(), again.created()), (again.id(), true, false));
    for (other, part) in [
        (build(["eu", "jp"], 1, false), "`nodes"),
        (build(["eu", "us"], 2, false), "`nodes.sum.priority`"),
        (build(["eu", "us"], 1, true), "on_terminal`"),
    ] {
        let error = other.enqueue(&db).await.unwrap_err();
        assert!(matches!(error, ClientError::Conflict { .. }), "{error}");
        assert!(error.to_string().contains(part), "{error}");
    }
    let mut tx = db.begin().await.unwrap();
    sqlx::query("set transaction isolation level repeatable read").execute(&mut *tx).await.unwrap();
    let above = build(["eu", "us"], 1, false).enqueue(&mut tx).await.unwrap_err();
    assert!(matches!(above, ClientError::Isolation { .. }), "{above}");
    drop(tx);
    assert_eq!(scalar::<i64>(&db, "select count(*) from runledger.run").await, 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn graph_in_caller_transaction_exists_only_after_commit() {
    let Fixture { db, database: _database } = Fixture::new().await;
    execute(&db, "create table sale (id int)").await;
    let graph = || {
        let mut graph = Graph::new("tx");
        let a = graph.call(extract("a"));
        graph.result(a)
    };
    let mut tx = db.begin().await.unwrap();
    graph().enqueue(&mut tx).await.unwrap();
    tx.rollback().await.unwrap();
    assert_eq!(scalar::<i64>(&db, "select count(*) from runledger.run").await, 0);
    let mut tx = db.begin().await.unwrap();
    sqlx::query("insert into sale values (1)").execute(&mut *tx).await.unwrap();
    let handle = graph().enqueue(&mut tx).await.unwrap();
    tx.commit().await.unwrap();
    let worker = worker(&db, all()).await;
    assert_eq!(soon(handle.with_db(&db).result()).await.unwrap(), 1);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn recover_of_terminal_graph_creates_linked_copy_once_per_key() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, all()).await;
    let mut graph = Graph::new("recovered");
    let one = graph.call(extract("eu").key("eu"));
    let gate = graph.gate::<u64>("gate");
    let both = graph.then(add, (one, gate));
    graph.configure(both).priority(7).max_attempts(2);
    let told = graph.then(tells, (both.on_any_outcome(),));
    let handle = graph.result(told).tenant("acme").idempotency_key("monday").enqueue(&db).await.unwrap();
    let early = handle.recover("again").await.unwrap_err().to_string();
    assert!(early.contains("is waiting, so it cannot be recovered"), "{early}");
    handle.gate("gate").fail("not today").await.unwrap();
    soon(handle.result()).await.unwrap();

    let again = handle.recover("again").await.unwrap();
    let twin = handle.recover("again").await.unwrap();
    let other = handle.recover("once more").await.unwrap();
    assert_eq!((again.id(), again.created(), twin.created()), (twin.id(), true, false));
    assert_ne!(again.id(), other.id());
    let info = again.info().await.unwrap();
    assert_eq!(
        (info.origin_id, info.tenant.as_str(), info.idempotency_key),
        (Some(handle.id()), "acme", None)
    );
    again.gate("gate").complete(&40_u64).await.unwrap();
    assert_eq!(soon(again.result()).await.unwrap(), "completed with 42");
    let node = named(&again.nodes().await.unwrap(), "add").run_id;
    assert_eq!(db.run(node).info().await.unwrap().priority, 7);
    let absent = db.graph::<String>(node).recover("again").await.unwrap_err();
    assert!(matches!(absent, ClientError::NoSuchRun { .. }), "{absent}");
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn graph_and_node_refuse_unsupported_pause_and_rerun_with_remedy() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let mut graph = Graph::new("parts");
    let one = graph.call(extract("eu"));
    let two = graph.then(add, (one, value(1)));
    let handle = graph.result(two).enqueue(&db).await.unwrap();
    let id = named(&handle.nodes().await.unwrap(), "add").run_id;
    let node = runledger::RunHandle::attach(add, &db, id);
    let waits = node.pause("later").await.unwrap_err();
    let of_graph = handle.pause("later").await.unwrap_err();
    for (error, run_id) in [(waits, id), (of_graph, handle.id())] {
        assert!(matches!(error, ClientError::NotPausable { run_id: of } if of == run_id), "{error}");
        assert!(error.to_string().contains("pause nodes that are queued or running"), "{error}");
    }
    let first =
        runledger::RunHandle::attach(extract, &db, named(&handle.nodes().await.unwrap(), "extract").run_id);
    first.pause("later").await.unwrap();
    let worker = worker(&db, all()).await;
    first.resume().await.unwrap();
    assert_eq!(soon(handle.result()).await.unwrap(), 3);
    for error in [node.rerun().await.unwrap_err(), handle.rerun().await.unwrap_err()] {
        assert!(matches!(error, ClientError::BelongsToGraph { .. }), "{error}");
        assert!(error.to_string().contains("`handle.recover(key)`"), "{error}");
    }
    worker.stop().await;
}

#[tokio::test]
async fn graph_gate_and_map_node_refuse_signals_live_or_terminal() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let mut graph = Graph::new("deaf");
    let gate = graph.gate::<u64>("gate");
    let mapped = graph.map(refuses, value(vec![1, 2]));
    graph.after(mapped, gate);
    let handle = graph.enqueue(&db).await.unwrap();
    let nodes = handle.nodes().await.unwrap();
    let deaf = [handle.id(), named(&nodes, "gate").run_id, named(&nodes, "refuses").run_id];
    for _ in 0..2 {
        for run_id in deaf {
            let error = db.run(run_id).signal("go", &true).await.unwrap_err();
            assert!(
                matches!(error, ClientError::PartTakesNoSignals { run_id: of } if of == run_id),
                "{error}"
            );
            assert!(
                error.to_string().contains("graph, a gate or a map node, and takes no signals"),
                "{error}"
            );
        }
        let error = handle.signal("go", &true).await.unwrap_err();
        assert!(matches!(error, ClientError::PartTakesNoSignals { .. }), "{error}");
        handle.cancel("enough").await.unwrap();
    }
    let mut tx = db.begin().await.unwrap();
    let error = db.run(handle.id()).signal("go", &true).send(&mut tx).await.unwrap_err();
    assert!(matches!(error, ClientError::PartTakesNoSignals { .. }), "{error}");
    tx.commit().await.unwrap();
    assert_eq!(scalar::<i64>(&db, "select count(*) from runledger.signal").await, 0);
}

/// The purpose of the design: nodes of one graph end at the same moment on several workers, and
/// each has a waiting dependent.
#[tokio::test(flavor = "multi_thread")]
async fn siblings_ending_at_same_moment_release_dependents_without_deadlock() {
    let Fixture { db, database } = Fixture::new().await;
    let mut workers = Vec::new();
    for _ in 0..4 {
        workers.push(worker(&Db::connect(database.url()).await.unwrap(), all()).await);
    }
    let mut handles = Vec::new();
    for _ in 0..25 {
        let mut graph = Graph::new("siblings");
        let chains: Vec<_> = (0..8)
            .map(|n| {
                let first = graph.call(add(n, 1).key(n));
                graph.then(add, (first, value(1)))
            })
            .collect();
        let total = graph.then(sum, (chains,));
        handles.push(graph.result(total).enqueue(&db).await.unwrap());
    }
    for handle in &handles {
        assert_eq!(soon(handle.result()).await.unwrap(), 28 + 16);
    }
    let deadlocks: i64 =
        scalar(&db, "select deadlocks from pg_stat_database where datname = current_database()").await;
    assert_eq!(deadlocks, 0);
    let again: i64 = scalar(&db, "select count(*) from runledger.outcome where attempt <> 1").await;
    assert_eq!(again, 0, "no body ran twice");
    for worker in workers {
        worker.stop().await;
    }
}

#[workflow]
async fn doubles(wf: &Wf, n: u64) -> Result<u64> {
    let twice = wf.run(add(n, n)).await?;
    wf.signal::<()>("go").await?;
    Ok(twice)
}

#[tokio::test(flavor = "multi_thread")]
async fn workflow_node_is_verified_and_exported_with_inputs_from_dependencies() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![extract, add, doubles]).await;
    let mut graph = Graph::new("verified");
    let one = graph.call(extract("eu"));
    let twice = graph.then(doubles, (one,));
    let gate = graph.gate::<u64>("gate");
    let sum = graph.then(add, (twice, gate));
    let handle = graph.result(sum).enqueue(&db).await.unwrap();
    let node =
        async || handle.nodes().await.unwrap().iter().find(|node| node.name == "doubles").unwrap().clone();
    let run = node().await.run_id;
    until(&db, run, |info| info.state == RunState::Waiting && !info.awaited_signals.is_empty()).await;
    let verified = App::new(db.clone()).with(jobs![extract, add, doubles]).verify().await.unwrap();
    assert!(verified.is_ok(), "{verified}");
    let history = runledger::RunHandle::attach(doubles, &db, run).export().await.unwrap();
    let text = history.to_json().unwrap();
    assert!(text.contains("\"n\""), "{text}");
    db.run(run).signal("go", &()).await.unwrap();
    handle.gate("gate").complete(&10_u64).await.unwrap();
    assert_eq!(soon(handle.result()).await.unwrap(), 14);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn result_wait_returns_and_times_out_with_one_connection_pool() {
    let Fixture { db: working, database } = Fixture::new().await;
    let worker = worker(&working, all()).await;
    let db = Db::connect_with(database.url().parse().unwrap(), 1).await.unwrap();
    let mut graph = Graph::new("slow");
    let gate = graph.gate::<u64>("gate");
    let sum = graph.then(add, (gate, value(1)));
    let handle = graph.result(sum).enqueue(&db).await.unwrap();
    let error = handle.result_within(Duration::from_millis(50)).await.unwrap_err();
    assert!(matches!(error, ClientError::WaitTimedOut { .. }), "{error}");
    let waiting = tokio::spawn({
        let handle = handle.clone();
        async move { handle.result().await }
    });
    // The wait holds no connection: the only one is free for the decision.
    handle.gate("gate").complete(&41_u64).await.unwrap();
    assert_eq!(soon(waiting).await.unwrap().unwrap(), 42);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn undeclared_missing_failed_and_unknown_results_have_distinct_errors() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, all()).await;
    let mut graph = Graph::new("undeclared");
    graph.call(add(1, 2));
    let undeclared = graph.enqueue(&db).await.unwrap();
    soon(undeclared.result()).await.unwrap();
    let error = db.graph::<u64>(undeclared.id()).result().await.unwrap_err();
    assert!(matches!(error, ClientError::NoResult { .. }), "{error:?}");
    assert!(error.to_string().contains("was submitted without `graph.result(node)`"), "{error}");

    let mut graph = Graph::new("typed");
    let sum = graph.call(add(1, 2));
    let typed = graph.result(sum).enqueue(&db).await.unwrap();
    assert_eq!(soon(typed.result()).await.unwrap(), 3);
    let error = db.graph::<String>(typed.id()).result().await.unwrap_err();
    assert!(matches!(error, ClientError::Decode { .. }), "{error:?}");

    let mut graph = Graph::new("unsuccessful");
    let refused = graph.call(refuses(3));
    let unsuccessful = graph.result(refused).enqueue(&db).await.unwrap();
    let error = soon(unsuccessful.result()).await.unwrap_err();
    let ClientError::RunFailed { failure, .. } = &error else { panic!("{error:?}") };
    assert_eq!(failure.causes, ["`refuses`: 3 is refused"]);

    let mut graph = Graph::new("missing");
    let sum = graph.call(add(1, 2));
    let gate = graph.gate::<()>("gate");
    graph.after(gate, sum);
    let missing = graph.result(sum).enqueue(&db).await.unwrap();
    let node = named(&missing.nodes().await.unwrap(), "add").run_id;
    until(&db, node, |info| info.state == RunState::Completed).await;
    execute(&db, &format!("delete from runledger.outcome where run_id = '{node}'")).await;
    missing.gate("gate").complete(&()).await.unwrap();
    let error = soon(missing.result()).await.unwrap_err();
    let ClientError::RunFailed { failure, .. } = &error else { panic!("{error:?}") };
    assert!(failure.message.contains("the result of the graph is gone: its node `add`"), "{failure}");

    let error = db.graph::<u64>(uuid::Uuid::now_v7()).result().await.unwrap_err();
    assert!(matches!(error, ClientError::NoSuchRun { .. }), "{error:?}");
    worker.stop().await;
}
