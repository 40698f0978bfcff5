//! Behaviours 2, 3 and 4: enqueues with a key.

use std::collections::HashSet;
use std::time::{Duration, UNIX_EPOCH};

use runledger::prelude::*;
use runledger::{ClientError, Job, RunState, enqueue_all};
use runledger_tests::{Fixture, PATIENCE};
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Order {
    id: u64,
    lines: Vec<u32>,
}

fn order() -> Order {
    Order { id: 7, lines: vec![1, 2, 3] }
}

#[job]
async fn keyed_ship(order: Order) -> Result<u64> {
    Ok(order.id)
}

#[job(max_attempts = 3, backoff = "1ms..1ms")]
async fn keyed_fails_once(#[inject] context: &Context) -> Result<u32> {
    match context.attempt() {
        1 => Err("not yet")?,
        attempt => Ok(attempt),
    }
}

#[workflow]
async fn keyed_steps(wf: &Wf) -> Result<u64> {
    Ok(wf.step("one", || async { Ok::<u64, Error>(1) }).await?)
}

fn ship() -> Call<impl Job<Output = u64>> {
    keyed_ship(order()).idempotency_key("k")
}

async fn rows(db: &Db) -> String {
    let rows = "select json_build_array((select json_agg(run) from runledger.run), (select json_agg(ready) from runledger.ready))::text";
    sqlx::query_scalar(rows).fetch_one(db.pool()).await.unwrap()
}

/// Returns the first difference that a conflict names.
async fn difference<J: Job>(call: Call<J>, db: &Db) -> String {
    match call.enqueue(db).await {
        Err(ClientError::Conflict { difference, .. }) => difference,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn repeated_keyed_enqueue_returns_existing_run() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let first = ship().enqueue(&db).await.unwrap();
    let again = ship().enqueue(&db).await.unwrap();
    assert_eq!(first.id(), again.id());
    assert_eq!((first.created(), again.created()), (true, false));
    let mut tx = db.begin().await.unwrap();
    let within = ship().enqueue(&mut tx).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!((within.id(), within.created()), (first.id(), false));
}

#[tokio::test]
async fn key_repeated_within_batch_creates_one_run() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let runs = enqueue_all([ship(), ship().idempotency_key("other"), ship()], &db).await.unwrap();
    assert_eq!(runs[0].run_id, runs[2].run_id);
    assert_eq!(runs.iter().map(|run| run.created).collect::<Vec<_>>(), [true, true, false]);
    let conflict = enqueue_all([ship().priority(1), ship().priority(2)], &db).await;
    assert!(matches!(conflict, Err(ClientError::Conflict { difference, .. }) if difference == "priority"));
}

#[tokio::test]
async fn keyed_conflict_names_changed_part_and_writes_nothing() {
    let Fixture { db, database: _database } = Fixture::new().await;
    ship().enqueue(&db).await.unwrap();
    let before = rows(&db).await;
    let changed = Order { lines: vec![1, 5, 3], ..order() };
    let other_input = keyed_ship(changed).idempotency_key("k");
    assert_eq!(difference(other_input, &db).await, "input `order.lines[1]`");
    assert_eq!(difference(ship().queue("fast"), &db).await, "queue");
    assert_eq!(difference(ship().priority(1), &db).await, "priority");
    assert_eq!(difference(ship().max_attempts(9), &db).await, "max_attempts");
    assert_eq!(difference(ship().timeout(Duration::from_secs(9)), &db).await, "timeout");
    let second = Duration::from_secs(1);
    assert_eq!(difference(ship().backoff(second, second), &db).await, "backoff");
    assert_eq!(difference(ship().delay(second), &db).await, "delay");
    assert_eq!(difference(ship().start_at(UNIX_EPOCH + second), &db).await, "start_at");
    assert_eq!(rows(&db).await, before);
}

#[tokio::test]
async fn equal_request_with_every_option_does_not_conflict() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let full = || {
        let (one, two) = (Duration::from_secs(1), Duration::from_secs(2));
        let call = ship().queue("fast").priority(3).max_attempts(9).timeout(one).backoff(one, two);
        call.start_at(UNIX_EPOCH + two)
    };
    let first = full().enqueue(&db).await.unwrap();
    let again = full().enqueue(&db).await.unwrap();
    assert_eq!((again.id(), again.created()), (first.id(), false));
    assert_eq!(difference(ship(), &db).await, "queue");
}

#[tokio::test]
async fn conflict_names_job_key_and_existing_run() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let first = ship().enqueue(&db).await.unwrap();
    let conflict = ship().priority(1).enqueue(&db).await.unwrap_err();
    let ClientError::Conflict { job, key, run_id, .. } = &conflict else { panic!("{conflict}") };
    assert_eq!((job.as_str(), key.as_str(), *run_id), ("keyed_ship", "k", first.id()));
    assert!(conflict.to_string().contains("nothing was written"), "{conflict}");
}

#[tokio::test(flavor = "multi_thread")]
async fn repeated_key_matches_run_after_completion_retry_and_recorded_steps() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let ran = ship().enqueue(&db).await.unwrap();
    let retried = keyed_fails_once().idempotency_key("k").enqueue(&db).await.unwrap();
    let stepped = keyed_steps().idempotency_key("k").enqueue(&db).await.unwrap();
    let worker =
        App::new(db.clone()).with(jobs![keyed_ship, keyed_fails_once, keyed_steps]).start().await.unwrap();
    ran.result_within(PATIENCE).await.unwrap();
    assert_eq!(retried.result_within(PATIENCE).await.unwrap(), 2);
    stepped.result_within(PATIENCE).await.unwrap();
    worker.stop().await;
    let again = ship().enqueue(&db).await.unwrap();
    assert_eq!((again.id(), again.created()), (ran.id(), false));
    let again = keyed_fails_once().idempotency_key("k").enqueue(&db).await.unwrap();
    assert_eq!((again.id(), again.created()), (retried.id(), false));
    let again = keyed_steps().idempotency_key("k").enqueue(&db).await.unwrap();
    assert_eq!((again.id(), again.created()), (stepped.id(), false));
    assert_eq!(again.state().await.unwrap(), RunState::Completed);
}

#[tokio::test]
async fn repeated_key_matches_cancelled_run() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let first = ship().enqueue(&db).await.unwrap();
    first.cancel("not wanted").await.unwrap();
    let again = ship().enqueue(&db).await.unwrap();
    assert_eq!((again.id(), again.created()), (first.id(), false));
    assert_eq!(again.state().await.unwrap(), RunState::Cancelled);
    assert_eq!(difference(ship().priority(1), &db).await, "priority");
}

#[tokio::test]
async fn same_key_in_different_tenants_creates_independent_runs() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let none = ship().enqueue(&db).await.unwrap();
    let one = ship().tenant("one").enqueue(&db).await.unwrap();
    let two = ship().tenant("two").priority(4).enqueue(&db).await.unwrap();
    assert!(none.created() && one.created() && two.created());
    assert_eq!(HashSet::from([none.id(), one.id(), two.id()]).len(), 3);
    assert_eq!(ship().tenant("one").enqueue(&db).await.unwrap().id(), one.id());
}

#[tokio::test]
async fn same_key_of_two_jobs_creates_two_runs() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let one = ship().enqueue(&db).await.unwrap();
    let two = keyed_fails_once().idempotency_key("k").enqueue(&db).await.unwrap();
    assert!(one.created() && two.created());
    assert_ne!(one.id(), two.id());
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_equal_keyed_enqueues_create_and_return_one_run() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let db8 = Db::connect_with((*db.pool().connect_options()).clone(), 8).await.unwrap();
    for round in 0..10 {
        let submissions: Vec<_> = (0..32)
            .map(|_| {
                let db = db8.clone();
                let call = keyed_ship(order()).idempotency_key(format!("round {round}"));
                tokio::spawn(async move { call.enqueue(&db).await.map(|run| (run.id(), run.created())) })
            })
            .collect();
        let mut answers = Vec::new();
        for submission in submissions {
            answers.push(submission.await.unwrap().unwrap());
        }
        assert_eq!(answers.iter().map(|(id, _)| id).collect::<HashSet<_>>().len(), 1);
        assert_eq!(answers.iter().filter(|(_, created)| *created).count(), 1);
    }
    let n_rows: i64 =
        sqlx::query_scalar("select count(*) from runledger.run").fetch_one(db.pool()).await.unwrap();
    assert_eq!(n_rows, 10);
}

#[tokio::test(flavor = "multi_thread")]
async fn keyed_enqueue_waits_for_open_transaction_with_same_key() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let mut tx = db.begin().await.unwrap();
    let first = ship().enqueue(&mut tx).await.unwrap();
    let second = tokio::spawn({
        let db = db.clone();
        async move { ship().enqueue(&db).await.map(|run| (run.id(), run.created())) }
    });
    let waits = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'";
    let asks = async || sqlx::query_scalar::<_, i64>(waits).fetch_one(db.pool()).await.unwrap();
    runledger_tests::eventually(asks, |waiting| *waiting == 1).await;
    tx.commit().await.unwrap();
    assert_eq!(second.await.unwrap().unwrap(), (first.id(), false));
}

#[tokio::test(flavor = "multi_thread")]
async fn batches_with_same_keys_in_reverse_order_do_not_deadlock() {
    let Fixture { db, database: _database } = Fixture::new().await;
    for round in 0..10 {
        let batch = |keys: Vec<u32>| {
            keys.into_iter().map(move |n| batch_item(n).idempotency_key(format!("{round}-{n}")))
        };
        let (up, down) = (batch((0..500).collect()), batch((0..500).rev().collect()));
        let (up, down) = futures::join!(runledger::enqueue_all(up, &db), runledger::enqueue_all(down, &db));
        assert_eq!((up.unwrap().len(), down.unwrap().len()), (500, 500));
    }
    let n_deadlocks: i64 = runledger_tests::rows::scalar(
        &db,
        "select deadlocks from pg_stat_database where datname = current_database()",
    )
    .await;
    assert_eq!(n_deadlocks, 0);
}

#[job]
async fn batch_item(n: u32) -> Result<u32> {
    Ok(n)
}

#[tokio::test]
async fn keyed_enqueue_on_pool_works_at_any_default_isolation_level() {
    let Fixture { db, database } = Fixture::new().await;
    for level in ["repeatable read", "serializable", "read uncommitted"] {
        let name = database.url().parse::<sqlx::postgres::PgConnectOptions>().unwrap();
        let options = name.options([("default_transaction_isolation", level)]);
        let own = Db::connect_with(options.clone(), 2).await.unwrap();
        let pool =
            sqlx::postgres::PgPoolOptions::new().max_connections(1).connect_with(options).await.unwrap();
        for created in [true, false] {
            let key = format!("{level} own");
            assert_eq!(
                batch_item(1).idempotency_key(key).enqueue(&own).await.unwrap().created(),
                created,
                "{level}"
            );
            let key = format!("{level} pool");
            assert_eq!(
                batch_item(1).idempotency_key(key).enqueue(&pool).await.unwrap().created(),
                created,
                "{level}"
            );
        }
    }
    drop(db);
}

/// One job in three programs: before it was renamed, after that, and after a second renaming.
mod renamed {
    use runledger::prelude::*;

    pub mod first {
        use super::*;

        #[job(name = "renamed.pay")]
        pub async fn pay(cents: u64) -> Result<u64> {
            Ok(cents)
        }
    }

    pub mod second {
        use super::*;

        #[job(name = "renamed.payment", aliases = ["renamed.pay"])]
        pub async fn payment(cents: u64) -> Result<u64> {
            Ok(cents)
        }
    }

    pub mod third {
        use super::*;

        #[job(name = "renamed.payout", aliases = ["renamed.pay", "renamed.payment"])]
        pub async fn payout(cents: u64) -> Result<u64> {
            Ok(cents)
        }
    }
}

#[tokio::test]
async fn renamed_job_shares_idempotency_keys_across_program_versions() {
    use renamed::{first::pay, second::payment, third::payout};
    let Fixture { db, database: _database } = Fixture::new().await;
    for (key, order) in [("old first", [0, 1, 2]), ("new first", [2, 1, 0]), ("in between first", [1, 0, 2])]
    {
        let mut runs = Vec::new();
        for program in order {
            let call: runledger::AnyCall = match program {
                0 => pay(5).idempotency_key(key).into(),
                1 => payment(5).idempotency_key(key).into(),
                _ => payout(5).idempotency_key(key).into(),
            };
            runs.extend(enqueue_all([call], &db).await.unwrap());
        }
        assert_eq!(runs.iter().map(|run| run.created).collect::<Vec<_>>(), [true, false, false], "{key}");
        assert!(runs.iter().all(|run| run.run_id == runs[0].run_id), "{key}");
        assert_eq!(difference(payment(6).idempotency_key(key), &db).await, "input `cents`");
    }
    let n_runs: i64 =
        sqlx::query_scalar("select count(*) from runledger.run").fetch_one(db.pool()).await.unwrap();
    assert_eq!(n_runs, 3);
}

#[job(name = "keyed.moved", aliases = ["keyed.place", "keyed.spot"])]
async fn keyed_moved(x: u64) -> Result<u64> {
    Ok(x)
}

#[tokio::test]
async fn call_by_any_job_alias_matches_same_key() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let typed = keyed_moved(1).idempotency_key("k").enqueue(&db).await.unwrap();
    let input = std::collections::HashMap::from([("x", 1)]);
    for name in ["keyed.moved", "keyed.place", "keyed.spot"] {
        let call = runledger::AnyCall::by_name(name, &input).idempotency_key("k");
        let runs = enqueue_all([call], &db).await.unwrap();
        assert_eq!((runs[0].run_id, runs[0].created), (typed.id(), false), "{name}");
    }
}
