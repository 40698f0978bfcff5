//! Behaviour 45: an app's hook for failed runs.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use runledger::prelude::*;
use runledger::{ClientError, FailedRun, RunState, Timings, Worker};
use runledger_tests::rows::{soon, until};
use runledger_tests::{Fixture, eventually};

#[derive(serde::Serialize, serde::Deserialize)]
struct Input {
    order: u32,
}

#[job(max_attempts = 2, backoff = "1ms..1ms")]
async fn ships(order: u32, #[inject] context: &Context) -> Result<u32> {
    context.progress("packed").await?;
    if order == 0 { Ok(order) } else { Err(Error::from("no carrier")) }
}

/// Starts a worker with this hook. Returns it with the failed runs that the hook received.
async fn hooked(db: &Db, then: fn()) -> (Worker, Arc<Mutex<Vec<FailedRun>>>) {
    let told = Arc::new(Mutex::new(Vec::new()));
    let app = App::new(db.clone()).with(jobs![ships]).timings(Timings::FAST).drain(Duration::from_millis(10));
    let app = app.concurrency(4).on_failure({
        let told = Arc::clone(&told);
        move |failed| {
            told.lock().unwrap().push(failed);
            async move { then() }
        }
    });
    (app.start().await.unwrap(), told)
}

#[tokio::test(flavor = "multi_thread")]
async fn failure_hook_receives_input_failure_and_last_progress() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let (worker, told) = hooked(&db, || ()).await;
    let fine = ships(0).enqueue(&db).await.unwrap();
    let cancelled = ships(7).delay(Duration::from_secs(3600)).enqueue(&db).await.unwrap();
    cancelled.cancel("not wanted").await.unwrap();
    let handle = ships(42).tenant("acme").enqueue(&db).await.unwrap();
    soon(fine.result()).await.unwrap();
    assert!(matches!(soon(handle.result()).await, Err(ClientError::RunFailed { .. })));
    eventually(async || told.lock().unwrap().len(), |n| *n == 1).await;
    worker.stop().await;
    let told = told.lock().unwrap();
    assert_eq!(told.len(), 1, "once, and only for a run that has failed: {told:?}");
    let failed = &told[0];
    assert_eq!((failed.run_id(), failed.job(), failed.tenant()), (handle.id(), "ships", "acme"));
    assert_eq!(failed.input::<Input>().unwrap().order, 42);
    assert_eq!((failed.failure().message.as_str(), failed.attempts()), ("no carrier", 2));
    assert_eq!(failed.last_progress::<String>().unwrap().as_deref(), Some("packed"));
}

#[tokio::test(flavor = "multi_thread")]
async fn panicking_failure_hook_changes_no_outcome() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let (worker, told) = hooked(&db, || panic!("in the hook")).await;
    for order in 1..=8 {
        let handle = ships(order).enqueue(&db).await.unwrap();
        let info = until(&db, handle.id(), |info| info.state.is_terminal()).await;
        assert_eq!((info.state, info.attempt), (RunState::Failed, 2));
        assert_eq!(info.error.unwrap().message, "no carrier");
    }
    eventually(async || told.lock().unwrap().len(), |n| *n == 8).await;
    soon(ships(0).enqueue(&db).await.unwrap().result()).await.unwrap();
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn hanging_failure_hook_changes_no_outcome_and_lets_worker_stop() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let app = App::new(db.clone()).with(jobs![ships]).timings(Timings::FAST).drain(Duration::from_millis(10));
    let worker = app.on_failure(|_| std::future::pending()).start().await.unwrap();
    let handle = ships(1).enqueue(&db).await.unwrap();
    let info = until(&db, handle.id(), |info| info.state.is_terminal()).await;
    assert_eq!((info.state, info.attempt), (RunState::Failed, 2));
    soon(ships(0).enqueue(&db).await.unwrap().result()).await.unwrap();
    soon(worker.stop()).await;
    assert_eq!(handle.state().await.unwrap(), RunState::Failed);
}
