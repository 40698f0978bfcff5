//! Behaviours 1, 5 and 6: what an enqueue creates, in whose transaction, and with which
//! requirements.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

use runledger::prelude::*;
use runledger::{AnyCall, ClientError, RunState, enqueue_all};
use runledger_tests::proxy::{Fault, Proxy};
use runledger_tests::{Fixture, PATIENCE, eventually};
use serde_json::json;
use sqlx::postgres::PgPoolOptions;
use sqlx::{Connection, PgPool};

#[job]
async fn enqueue_greet(name: String) -> Result<String> {
    Ok(format!("hello {name}"))
}

#[job(queue = "elsewhere")]
async fn enqueue_nobody_serves() -> Result<()> {
    Ok(())
}

fn greet() -> Call<impl runledger::Job<Output = String>> {
    enqueue_greet("ada".to_owned())
}

async fn n_runs(db: &Db) -> i64 {
    let count = "select count(*) from runledger.run join runledger.ready using (run_id)";
    sqlx::query_scalar(count).fetch_one(db.pool()).await.unwrap()
}

#[tokio::test]
async fn unkeyed_enqueue_always_creates_new_run_with_uuid_v7() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let one = greet().enqueue(&db).await.unwrap();
    let two = greet().enqueue(&db).await.unwrap();
    assert_ne!(one.id(), two.id());
    assert!(one.created() && two.created());
    assert_eq!([one.id().get_version_num(), two.id().get_version_num()], [7, 7]);
    assert_eq!(n_runs(&db).await, 2);
}

#[tokio::test]
async fn enqueue_retried_after_ambiguous_commit_creates_one_run_reported_created() {
    let Fixture { db, database } = Fixture::new().await;
    let proxy = Proxy::start(database.url()).await.unwrap();
    let far = Db::connect_with(proxy.url().parse().unwrap(), 2).await.unwrap();
    proxy.arm("-- enqueue_fresh:", Fault::LoseReply);
    let run = greet().enqueue(&far).await.unwrap();
    assert_eq!((proxy.n_faults(), n_runs(&db).await), (1, 1));
    assert!(run.created());
    assert_eq!(run.with_db(&db).state().await.unwrap(), RunState::Queued);
}

#[tokio::test]
async fn retry_after_ambiguous_commit_on_application_pool_is_no_op() {
    let Fixture { db, database } = Fixture::new().await;
    let proxy = Proxy::start(database.url()).await.unwrap();
    let pool = PgPoolOptions::new().max_connections(2).connect(proxy.url()).await.unwrap();
    proxy.arm("COMMIT", Fault::LoseReply);
    let calls = [greet(), greet(), greet().idempotency_key("k")];
    let runs = enqueue_all(calls, &pool).await.unwrap();
    assert_eq!((proxy.n_faults(), n_runs(&db).await), (1, 3));
    assert_eq!(runs.iter().map(|run| run.created).collect::<Vec<_>>(), [true, true, false]);
}

#[tokio::test]
async fn enqueue_after_connection_cut_creates_one_run() {
    let Fixture { db, database } = Fixture::new().await;
    let proxy = Proxy::start(database.url()).await.unwrap();
    let far = Db::connect_with(proxy.url().parse().unwrap(), 2).await.unwrap();
    greet().enqueue(&far).await.unwrap();
    proxy.cut();
    greet().enqueue(&far).await.unwrap();
    assert_eq!(n_runs(&db).await, 2);
}

#[tokio::test]
async fn concurrent_enqueues_take_at_most_two_statements() {
    let Fixture { db, database } = Fixture::new().await;
    let proxy = Proxy::start(database.url()).await.unwrap();
    let far = Db::connect_with(proxy.url().parse().unwrap(), 2).await.unwrap();
    greet().enqueue(&far).await.unwrap();
    let alone = proxy.count("-- enqueue_fresh:");
    assert_eq!(alone, 1);
    let many = futures::future::join_all((0..200).map(|_| greet().enqueue(&far))).await;
    assert!(many.iter().all(|run| run.as_ref().unwrap().created()));
    assert_eq!(n_runs(&db).await, 201);
    let shared = proxy.count("-- enqueue_fresh:") - alone;
    assert!(shared <= 2, "the first goes at once, the others together, not in {shared} statements");
}

#[tokio::test(flavor = "multi_thread")]
async fn steady_enqueue_stream_does_not_starve_single_connection_pool() {
    let Fixture { db: _db, database } = Fixture::new().await;
    let own = Db::connect_with(database.url().parse().unwrap(), 1).await.unwrap();
    let stream = tokio::spawn({
        let own = own.clone();
        async move {
            loop {
                greet().enqueue(&own).await.unwrap();
            }
        }
    });
    for _ in 0..20 {
        eventually(async || n_runs(&own).await, |n| *n > 0).await;
        own.begin().await.unwrap().commit().await.unwrap();
    }
    stream.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn dropped_enqueue_does_not_fail_concurrent_enqueues() {
    let Fixture { db, database: _database } = Fixture::new().await;
    for round in 0..40 {
        let others = futures::future::join_all((0..4).map(|_| greet().enqueue(&db)));
        let ((), others) = futures::join!(drop_in_flight(greet().enqueue(&db), 1 + round % 3), others);
        assert!(others.iter().all(Result::is_ok), "{others:?}");
    }
    assert!(n_runs(&db).await >= 160);
}

#[tokio::test(flavor = "multi_thread")]
async fn enqueue_waiting_for_key_does_not_block_others() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let mut tx = db.begin().await.unwrap();
    greet().idempotency_key("slow").enqueue(&mut tx).await.unwrap();
    let waiting = tokio::spawn({
        let db = db.clone();
        async move { greet().idempotency_key("slow").enqueue(&db).await.map(|run| run.created()) }
    });
    let waits = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'";
    eventually(async || runledger_tests::rows::scalar::<i64>(&db, waits).await, |n| *n == 1).await;
    greet().enqueue(&db).await.unwrap();
    assert!(!waiting.is_finished());
    tx.commit().await.unwrap();
    assert!(!waiting.await.unwrap().unwrap());
}

#[tokio::test]
async fn caller_transaction_rollback_leaves_no_run() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let mut tx = db.begin().await.unwrap();
    greet().enqueue(&mut tx).await.unwrap();
    greet().idempotency_key("k").enqueue(&mut tx).await.unwrap();
    tx.rollback().await.unwrap();
    assert_eq!(n_runs(&db).await, 0);
    assert!(greet().idempotency_key("k").enqueue(&db).await.unwrap().created());
}

#[tokio::test]
async fn caller_transaction_commit_creates_run() {
    let Fixture { db, database } = Fixture::new().await;
    let pool = database.pool(1).await.unwrap();
    let mut tx = pool.begin().await.unwrap();
    let run = greet().enqueue(&mut tx).await.unwrap();
    assert_eq!(n_runs(&db).await, 0);
    tx.commit().await.unwrap();
    assert!(matches!(run.state().await, Err(ClientError::Detached { .. })));
    assert_eq!(run.with_db(&db).state().await.unwrap(), RunState::Queued);
}

#[tokio::test]
async fn keyed_enqueue_above_read_committed_is_refused_without_write() {
    let Fixture { db, database: _database } = Fixture::new().await;
    for (statement, name) in [
        ("set transaction isolation level repeatable read", "repeatable read"),
        ("set transaction isolation level serializable", "serializable"),
    ] {
        let mut tx = db.begin().await.unwrap();
        sqlx::query(statement).execute(&mut *tx).await.unwrap();
        let alone = greet().idempotency_key("k").enqueue(&mut tx).await.unwrap_err();
        assert!(matches!(alone, ClientError::Isolation { level, .. } if level == name));
        let batch = enqueue_all([greet(), greet().idempotency_key("k")], &mut tx).await.unwrap_err();
        assert!(matches!(batch, ClientError::Isolation { .. }));
        tx.commit().await.unwrap();
    }
    assert_eq!(n_runs(&db).await, 0);
}

#[tokio::test]
async fn unkeyed_enqueue_works_in_serializable_transaction() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let mut tx = db.begin().await.unwrap();
    sqlx::query("set transaction isolation level serializable").execute(&mut *tx).await.unwrap();
    greet().enqueue(&mut tx).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(n_runs(&db).await, 1);
}

#[tokio::test]
async fn batch_conflict_rolls_back_batch_and_leaves_caller_transaction_usable() {
    let Fixture { db, database: _database } = Fixture::new().await;
    greet().idempotency_key("k").enqueue(&db).await.unwrap();
    let mut tx = db.begin().await.unwrap();
    let calls = [greet(), greet().idempotency_key("k").priority(1), greet()];
    assert!(matches!(enqueue_all(calls, &mut tx).await, Err(ClientError::Conflict { .. })));
    greet().enqueue(&mut tx).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(n_runs(&db).await, 2);
}

/// Polls a future a few times and drops it, like a `select!` or a timeout in an application.
async fn drop_in_flight<F: Future>(future: F, polls: usize) {
    let (mut future, mut left) = (pin!(future), polls);
    poll_fn(|cx| {
        left -= 1;
        let ready = future.as_mut().poll(cx).is_ready();
        if ready || left == 0 { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

const ROUNDS: usize = 120;

/// Drops a `begin()` at each point where it can wait.
async fn forget_a_transaction(pool: &PgPool, round: usize) {
    drop_in_flight(pool.begin(), 1 + round % 4).await;
}

#[tokio::test]
async fn begin_dropped_in_flight_loses_no_acknowledged_write() {
    let Fixture { db, database } = Fixture::new().await;
    let small = Db::connect_with((*db.pool().connect_options()).clone(), 1).await.unwrap();
    sqlx::query("create table written (n bigint)").execute(db.pool()).await.unwrap();
    for round in 0..ROUNDS {
        forget_a_transaction(small.pool(), round).await;
        sqlx::query("insert into written values (1)").execute(small.pool()).await.unwrap();
    }
    let mut other = database.connect().await.unwrap();
    let n_written: i64 =
        sqlx::query_scalar("select count(*) from written").fetch_one(&mut other).await.unwrap();
    assert_eq!(usize::try_from(n_written).unwrap(), ROUNDS);
}

#[tokio::test]
async fn begin_dropped_in_flight_loses_no_acknowledged_enqueue() {
    let Fixture { db, database } = Fixture::new().await;
    let ours = Db::connect_with((*db.pool().connect_options()).clone(), 1).await.unwrap();
    let theirs = database.pool(1).await.unwrap();
    for round in 0..ROUNDS {
        forget_a_transaction(ours.pool(), round).await;
        greet().enqueue(&ours).await.unwrap();
        forget_a_transaction(&theirs, round).await;
        greet().enqueue(&theirs).await.unwrap();
        forget_a_transaction(&theirs, round).await;
        enqueue_all([greet().idempotency_key(round.to_string())], &theirs).await.unwrap();
    }
    assert_eq!(usize::try_from(n_runs(&db).await).unwrap(), 3 * ROUNDS);
}

#[tokio::test]
async fn enqueue_works_on_bare_connection_without_workers() {
    let Fixture { db, database } = Fixture::new().await;
    let mut connection = database.connect().await.unwrap();
    let run = greet().enqueue(&mut connection).await.unwrap();
    connection.close().await.unwrap();
    assert!(db.workers().await.unwrap().is_empty());
    assert_eq!(run.with_db(&db).state().await.unwrap(), RunState::Queued);
}

#[tokio::test]
async fn batch_returns_ids_in_input_order_and_preserves_item_options() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let calls = (0..50_i16).map(|n| {
        let call = greet().priority(n).queue(format!("q{n}")).tenant(format!("t{n}"));
        // Keyed ids are unordered, so the order of the answer is not the order of the ids.
        if n % 2 == 0 { call.idempotency_key(n.to_string()) } else { call }
    });
    let runs = enqueue_all(calls, &db).await.unwrap();
    assert_eq!(runs.len(), 50);
    for (n, run) in (0..50_i16).zip(&runs) {
        let info = db.run(run.run_id).info().await.unwrap();
        assert_eq!((info.priority, info.queue, info.tenant), (n, format!("q{n}"), format!("t{n}")));
        assert!(run.created);
    }
}

#[tokio::test]
async fn empty_batch_is_no_op() {
    let Fixture { db, database: _database } = Fixture::new().await;
    assert_eq!(enqueue_all(Vec::<AnyCall>::new(), &db).await.unwrap(), []);
    let mut tx = db.begin().await.unwrap();
    assert_eq!(enqueue_all(Vec::<AnyCall>::new(), &mut tx).await.unwrap(), []);
    tx.commit().await.unwrap();
    assert_eq!(n_runs(&db).await, 0);
}

#[tokio::test]
async fn unknown_job_name_is_refused_with_nearest_known_name() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let calls = [AnyCall::by_name("enqueue_greet", &json!({"name": "ada"})), misspelt()];
    let refused = enqueue_all(calls, &db).await.unwrap_err();
    assert!(refused.to_string().contains("did you mean `enqueue_greet`?"), "{refused}");
    assert!(matches!(refused, ClientError::UnknownJob { name, .. } if name == "enqueue_grete"));
    assert_eq!(n_runs(&db).await, 0);
}

fn misspelt() -> AnyCall {
    AnyCall::by_name("enqueue_grete", &json!({"name": "ada"}))
}

#[tokio::test]
async fn job_name_known_only_to_live_worker_is_accepted() {
    let Fixture { db, database: _database } = Fixture::new().await;
    sqlx::query(
        "insert into runledger.worker (name, version, session_name, jobs, queues)
         values ('far', '1', 'far', '{enqueue_grete}', '{default}')",
    )
    .execute(db.pool())
    .await
    .unwrap();
    assert_eq!(enqueue_all([misspelt()], &db).await.unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn call_by_name_runs_like_typed_call() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let call = AnyCall::by_name("enqueue_greet", &json!({"name": "ada"}));
    let run = enqueue_all([call], &db).await.unwrap()[0].run_id;
    let worker = App::new(db.clone()).with(jobs![enqueue_greet]).start().await.unwrap();
    let run = RunHandle::attach(enqueue_greet, &db, run);
    assert_eq!(run.result_within(PATIENCE).await.unwrap(), "hello ada");
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn run_without_serving_worker_stays_queued_and_is_reported_unserved() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let waits = enqueue_nobody_serves().enqueue(&db).await.unwrap();
    let worker = App::new(db.clone())
        .with(jobs![enqueue_greet])
        .queues(["default", "elsewhere"])
        .start()
        .await
        .unwrap();
    greet().enqueue(&db).await.unwrap().result_within(PATIENCE).await.unwrap();
    let unserved = db.unserved().await.unwrap();
    assert_eq!(
        (unserved[0].queue.as_str(), unserved[0].job.as_str()),
        ("elsewhere", "enqueue_nobody_serves")
    );
    let hint = "runs of `enqueue_nobody_serves`, version 1, wait in the queue `elsewhere`, and no living worker serves them: start one that has its code";
    assert_eq!((unserved.len(), unserved[0].to_string().as_str()), (1, hint));
    worker.stop().await;
    let info = waits.info().await.unwrap();
    assert_eq!((info.state, info.attempt, info.error), (RunState::Queued, 0, None));
}
