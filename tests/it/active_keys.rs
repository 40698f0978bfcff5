//! Behaviour 36, for active keys: at most one run with a key is live, and a refused caller learns
//! which.

use std::time::Duration;

use runledger::prelude::*;
use runledger::{AnyCall, ClientError, Graph, RunState, enqueue_all};
use runledger_tests::Fixture;
use runledger_tests::rows::{scalar, soon, worker};
use sqlx::Connection;
use uuid::Uuid;

#[job]
async fn syncs(account: u64) -> Result<u64> {
    Ok(account)
}

#[job(max_attempts = 1)]
async fn refuses_to_sync(account: u64) -> Result<u64> {
    Err(Error::terminal(format!("{account} is gone")))
}

#[workflow]
async fn starts_a_sync(wf: &Wf) -> Result<String> {
    let refused = wf.start(syncs(1).active_key("1")).await.unwrap_err();
    Ok(refused.failure().message.clone())
}

/// Returns the run that owns the key, from the error of a refused call.
fn holder<T: std::fmt::Debug>(answer: Result<T, ClientError>) -> Uuid {
    match answer {
        Err(ClientError::Active { run_id, .. }) => run_id,
        other => panic!("{other:?}"),
    }
}

async fn n_runs(db: &Db) -> i64 {
    scalar(db, "select count(*) from runledger.run").await
}

#[tokio::test(flavor = "multi_thread")]
async fn active_key_refuses_second_run_naming_first_until_it_ends() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let first = syncs(7).active_key("account 7").enqueue(&db).await.unwrap();
    let refused = syncs(8).active_key("account 7").enqueue(&db).await.unwrap_err();
    assert_eq!(
        refused.to_string(),
        format!(
            "run `{}` of `syncs` has the active key `account 7` and has not ended; nothing was written; wait for its end or cancel it, or use another key",
            first.id()
        )
    );
    for other in [syncs(7).active_key("account 8"), syncs(7).active_key("account 7").tenant("acme"), syncs(7)]
    {
        other.enqueue(&db).await.unwrap();
    }
    refuses_to_sync(7).active_key("account 7").enqueue(&db).await.unwrap();
    assert_eq!(n_runs(&db).await, 5, "of another key, tenant or job, and without a key");

    let worker = worker(&db, jobs![syncs, refuses_to_sync]).await;
    soon(first.result()).await.unwrap();
    let second = syncs(8).active_key("account 7").delay(Duration::from_secs(60)).enqueue(&db).await.unwrap();
    assert_eq!(holder(syncs(9).active_key("account 7").enqueue(&db).await), second.id());
    second.cancel("not needed").await.unwrap();
    let third = syncs(9).active_key("account 7").enqueue(&db).await.unwrap();
    assert_eq!(soon(third.result()).await.unwrap(), 9);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_of_concurrent_enqueues_gets_active_key() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let asked = (0..20).map(|n| {
        let db = db.clone();
        tokio::spawn(async move { syncs(n).active_key("all").enqueue(&db).await })
    });
    let answers = futures::future::join_all(asked).await.into_iter().map(|answer| answer.unwrap());
    let (given, refused): (Vec<_>, Vec<_>) = answers.partition(Result::is_ok);
    let [Ok(given)] = &given[..] else { panic!("{given:?}") };
    assert_eq!(refused.into_iter().map(holder).collect::<Vec<_>>(), vec![given.id(); 19]);
    assert_eq!(n_runs(&db).await, 1);
}

#[tokio::test]
async fn refused_call_preserves_caller_transaction_and_rollback_leaves_no_key() {
    let Fixture { db, database } = Fixture::new().await;
    let mut connection = database.connect().await.unwrap();
    let mut tx = connection.begin().await.unwrap();
    let first = syncs(1).active_key("a").enqueue(db.on(&mut tx)).await.unwrap();
    assert_eq!(holder(syncs(2).active_key("a").enqueue(db.on(&mut tx)).await), first.id());
    syncs(3).active_key("b").enqueue(db.on(&mut tx)).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(n_runs(&db).await, 2);
    let mut tx = connection.begin().await.unwrap();
    syncs(4).active_key("c").enqueue(db.on(&mut tx)).await.unwrap();
    tx.rollback().await.unwrap();
    syncs(5).active_key("c").enqueue(&db).await.unwrap();
}

#[tokio::test]
async fn batch_with_live_or_duplicate_active_key_is_not_written() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let first = syncs(1).active_key("1").enqueue(&db).await.unwrap();
    let batch = (1..=3).map(|n| syncs(n).active_key(n.to_string()));
    assert_eq!(holder(enqueue_all(batch, &db).await), first.id());
    let twice = enqueue_all([4, 4].map(|n| syncs(n).active_key(n.to_string())), &db).await.unwrap_err();
    assert!(
        twice.to_string().contains("two calls of job `syncs` in one batch have the active key `4`"),
        "{twice}"
    );
    assert_eq!(n_runs(&db).await, 1);
    let others = enqueue_all((2..=3).map(|n| syncs(n).active_key(n.to_string())), db.pool()).await.unwrap();
    assert!(others.iter().all(|run| run.created));
    assert_eq!(n_runs(&db).await, 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn repeated_request_returns_existing_run_regardless_of_active_key_owner() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![syncs]).await;
    let request = |key: &str| syncs(1).active_key("1").idempotency_key(key);
    let first = request("monday").enqueue(&db).await.unwrap();
    let again = request("monday").enqueue(&db).await.unwrap();
    assert_eq!((again.id(), again.created()), (first.id(), false));
    soon(first.result()).await.unwrap();
    let second = request("tuesday").delay(Duration::from_secs(60)).enqueue(&db).await.unwrap();
    let again = request("monday").enqueue(&db).await.unwrap();
    assert_eq!((again.id(), again.created()), (first.id(), false));
    assert_eq!(holder(request("wednesday").enqueue(&db).await), second.id());
    let other = syncs(1).active_key("2").idempotency_key("monday").enqueue(&db).await.unwrap_err();
    assert!(other.to_string().contains("active_key differs"), "{other}");
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn revived_or_rerun_run_inherits_active_key_or_is_refused() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![syncs, refuses_to_sync]).await;
    let failed = refuses_to_sync(1).active_key("1").enqueue(&db).await.unwrap();
    soon(failed.result()).await.unwrap_err();
    worker.stop().await;
    let revived = failed.revive(RunState::Failed).await.unwrap();
    assert_eq!(failed.revive(RunState::Failed).await.unwrap().id(), revived.id(), "once");
    assert_eq!(holder(failed.rerun().await), revived.id());
    assert_eq!(holder(refuses_to_sync(2).active_key("1").enqueue(&db).await), revived.id());
    let by_name = AnyCall::by_name("refuses_to_sync", &serde_json::json!({ "account": 1 })).active_key("1");
    assert_eq!(holder(enqueue_all([by_name], &db).await), revived.id());
    revived.cancel("on purpose").await.unwrap();
    let again = failed.rerun().await.unwrap();
    assert_eq!(holder(failed.rerun().await), again.id());
}

fn graph(n: u64) -> Graph<u64> {
    let mut graph = Graph::new("accounts");
    let synced = graph.call(syncs(n));
    graph.result(synced).active_key("all")
}

#[tokio::test(flavor = "multi_thread")]
async fn live_active_key_refuses_second_graph_and_second_recovery() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let first = graph(1).enqueue(&db).await.unwrap();
    let refused = graph(2).enqueue(&db).await.unwrap_err();
    assert!(
        refused.to_string().contains("of `runledger.graph:accounts` has the active key `all`"),
        "{refused}"
    );
    assert_eq!(holder(graph(2).enqueue(db.pool()).await), first.id());
    syncs(3).active_key("all").enqueue(&db).await.unwrap();
    assert_eq!(n_runs(&db).await, 3, "the graph, its node, and a job of its own");
    let worker = worker(&db, jobs![syncs]).await;
    soon(first.result()).await.unwrap();
    worker.stop().await;
    let recovered = first.recover("again").await.unwrap();
    assert_eq!(first.recover("again").await.unwrap().id(), recovered.id());
    assert_eq!(holder(first.recover("and again").await), recovered.id());
    assert_eq!(holder(graph(2).enqueue(&db).await), recovered.id());
}

#[tokio::test(flavor = "multi_thread")]
async fn active_key_is_refused_on_children_nodes_and_repeatable_read() {
    let Fixture { db, database } = Fixture::new().await;
    let worker = worker(&db, jobs![starts_a_sync, syncs]).await;
    let said = soon(starts_a_sync().enqueue(&db).await.unwrap().result()).await.unwrap();
    assert!(said.contains("the call of job `syncs` has a `active_key`, which a child cannot have"), "{said}");
    worker.stop().await;
    let mut of_node = Graph::new("accounts");
    of_node.call(syncs(1).active_key("1"));
    let refused = of_node.enqueue(&db).await.unwrap_err().to_string();
    assert!(refused.contains("active key `1`") && refused.contains("give the key to the graph"), "{refused}");
    let too_long = syncs(1).active_key("k".repeat(257)).enqueue(&db).await.unwrap_err();
    assert!(matches!(too_long, ClientError::Name(_)), "{too_long}");
    let mut connection = database.connect().await.unwrap();
    let mut tx = connection.begin_with("begin isolation level repeatable read").await.unwrap();
    let above = syncs(1).active_key("1").enqueue(db.on(&mut tx)).await.unwrap_err();
    assert!(
        above.to_string().starts_with("a call with an active key needs a transaction at `read committed`"),
        "{above}"
    );
    tx.commit().await.unwrap();
    assert_eq!(scalar::<i64>(&db, "select count(*) from runledger.active").await, 0);
}
