//! Behaviour 20: attempts of steps.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use runledger::prelude::*;
use runledger::{ClientError, FailureKind, RunState, Timings};
use runledger_tests::rows::{execute, scalar, soon, take_away, until, worker};
use runledger_tests::{Fixture, eventually};
use tokio::sync::Semaphore;

const SOON: Duration = Duration::from_millis(10);

#[job(max_attempts = 4, backoff = "10ms..20ms")]
async fn third_time_lucky(#[inject] context: &Context) -> Result<u32> {
    if context.attempt() < 3 {
        Err(format!("try {} failed", context.attempt()))?;
    }
    Ok(context.attempt())
}

#[workflow]
async fn is_lucky(wf: &Wf) -> Result<u32> {
    wf.run(third_time_lucky()).await.map_err(Into::into)
}

#[tokio::test(flavor = "multi_thread")]
async fn step_follows_job_retry_policy_within_one_run_attempt() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![is_lucky, third_time_lucky]).await;
    let handle = is_lucky().enqueue(&db).await.unwrap();
    assert_eq!(soon(handle.result()).await.unwrap(), 3);
    assert_eq!(handle.info().await.unwrap().attempt, 1);
    let tries: Vec<(String, i32, String)> = handle
        .attempts()
        .await
        .unwrap()
        .into_iter()
        .filter(|tried| !tried.step_key.is_empty())
        .map(|tried| (tried.step_key, tried.attempt, tried.error.unwrap().message))
        .collect();
    let expected = [1, 2].map(|n| ("third_time_lucky".to_owned(), n, format!("try {n} failed")));
    assert_eq!(tries, expected);
    worker.stop().await;
}

static TERMINAL: AtomicUsize = AtomicUsize::new(0);

#[job(max_attempts = 9, backoff = "10ms..20ms")]
async fn refuses() -> Result<u32> {
    TERMINAL.fetch_add(1, Ordering::Relaxed);
    Err(Error::terminal("nothing to charge"))
}

#[workflow]
async fn is_refused(wf: &Wf) -> Result<u32> {
    wf.run(refuses()).await.map_err(Into::into)
}

#[tokio::test(flavor = "multi_thread")]
async fn terminal_error_stops_step_without_retry() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![is_refused, refuses]).await;
    let handle = is_refused().enqueue(&db).await.unwrap();
    let error = soon(handle.result()).await.unwrap_err();
    let ClientError::RunFailed { failure, .. } = error else { panic!("{error}") };
    assert_eq!(failure.to_string(), "step `refuses` failed: nothing to charge");
    assert_eq!(TERMINAL.load(Ordering::Relaxed), 1);
    worker.stop().await;
}

static SPENT: AtomicUsize = AtomicUsize::new(0);

#[workflow]
async fn goes_on_after_a_failed_step(wf: &Wf) -> Result<String> {
    let failing = wf
        .step("failing", || async {
            SPENT.fetch_add(1, Ordering::Relaxed);
            Err::<u32, _>(Error::from("out of stock"))
        })
        .max_attempts(2)
        .backoff(SOON, SOON);
    let error = failing.await.unwrap_err();
    wf.step("after", || async { Ok::<_, Error>(format!("{}: {}", error.key(), error.failure())) })
        .await
        .map_err(Into::into)
}

#[tokio::test(flavor = "multi_thread")]
async fn exhausted_step_gives_its_last_error_to_workflow() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![goes_on_after_a_failed_step]).await;
    let handle = goes_on_after_a_failed_step().enqueue(&db).await.unwrap();
    assert_eq!(soon(handle.result()).await.unwrap(), "failing: out of stock");
    assert_eq!(SPENT.load(Ordering::Relaxed), 2);
    worker.stop().await;
}

#[job(max_attempts = 1)]
async fn panics() -> Result<()> {
    panic!("a number was there {}", "yesterday")
}

#[workflow]
async fn survives_a_panic(wf: &Wf) -> Result<String> {
    let error = wf.run(panics()).await.unwrap_err();
    let inline = wf.step("inline", || async { if true { panic!("in line") } else { Ok::<u32, Error>(1) } });
    let second = inline.max_attempts(1).await.unwrap_err();
    Ok(format!("{} / {}", error.failure().message, second.failure().message))
}

#[job(max_attempts = 1)]
async fn panics_as_a_run() -> Result<()> {
    panic!("{}", 6 * 7)
}

#[tokio::test(flavor = "multi_thread")]
async fn panic_is_recorded_with_message_and_location_and_worker_continues() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![panics_as_a_run, survives_a_panic, panics]).await;
    let handle = panics_as_a_run().enqueue(&db).await.unwrap();
    let error = soon(handle.result()).await.unwrap_err();
    let ClientError::RunFailed { failure, .. } = error else { panic!("{error}") };
    assert_eq!((failure.kind, failure.message.as_str()), (FailureKind::Panic, "panicked: 42"));
    let place = failure.location.unwrap();
    assert!(place.contains("workflows/steps.rs:"), "{place}");

    let handle = survives_a_panic().enqueue(&db).await.unwrap();
    let messages = soon(handle.result()).await.unwrap();
    assert_eq!(messages, "panicked: a number was there yesterday / panicked: in line");
    let steps = handle.steps().await.unwrap();
    assert!(steps.iter().all(|step| step.result.as_ref().is_err_and(|failure| failure.location.is_some())));
    worker.stop().await;
}

static DROPS: AtomicUsize = AtomicUsize::new(0);

struct NotesItsDrop;

impl Drop for NotesItsDrop {
    fn drop(&mut self) {
        DROPS.fetch_add(1, Ordering::Relaxed);
    }
}

#[job(max_attempts = 2, backoff = "10ms..10ms", timeout = "40ms")]
async fn never_answers() -> Result<u32> {
    let _guard = NotesItsDrop;
    std::future::pending().await
}

#[workflow]
async fn waits_for_no_answer(wf: &Wf) -> Result<u32> {
    wf.run(never_answers()).await.map_err(Into::into)
}

#[tokio::test(flavor = "multi_thread")]
async fn timeout_drops_step_body_and_counts_as_attempt() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![waits_for_no_answer, never_answers]).await;
    let handle = waits_for_no_answer().enqueue(&db).await.unwrap();
    let error = soon(handle.result()).await.unwrap_err();
    let ClientError::RunFailed { failure, .. } = error else { panic!("{error}") };
    assert!(failure.to_string().contains("did not end within its timeout of 40ms"), "{failure}");
    assert_eq!(DROPS.load(Ordering::Relaxed), 2, "both tries were dropped");
    let steps = handle.steps().await.unwrap();
    assert_eq!(steps[0].result.as_ref().unwrap_err().kind, FailureKind::Timeout);
    worker.stop().await;
}

static LATER: AtomicUsize = AtomicUsize::new(0);

#[workflow]
async fn retries_much_later(wf: &Wf) -> Result<usize> {
    let step = wf.step("later", || async {
        match LATER.fetch_add(1, Ordering::Relaxed) {
            0 => Err(Error::retry_after("come back later", Duration::from_secs(3))),
            n => Ok(n),
        }
    });
    step.await.map_err(Into::into)
}

#[tokio::test(flavor = "multi_thread")]
async fn step_waiting_for_long_retry_suspends_run_without_consuming_attempt() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![retries_much_later]).await;
    let handle = retries_much_later().enqueue(&db).await.unwrap();
    runledger_tests::rows::until(&db, handle.id(), |info| {
        info.state == RunState::Queued && info.cause.as_deref() == Some("slept")
    })
    .await;
    assert_eq!(soon(handle.result()).await.unwrap(), 1);
    let steps = handle.steps().await.unwrap();
    assert_eq!(steps[0].claim, 2, "it was claimed again for its second try");
    assert_eq!(handle.info().await.unwrap().attempt, 1);
    worker.stop().await;
}

static OUTER: AtomicUsize = AtomicUsize::new(0);

#[workflow]
async fn nests_steps(wf: &Wf) -> Result<u32> {
    let outer = wf.step("outer", || async {
        OUTER.fetch_add(1, Ordering::Relaxed);
        Ok::<u32, Error>(wf.step("inner", || async { Ok::<u32, Error>(1) }).await?)
    });
    outer.await.map_err(Into::into)
}

#[tokio::test(flavor = "multi_thread")]
async fn step_inside_step_body_is_refused_without_retry() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![nests_steps]).await;
    let handle = nests_steps().enqueue(&db).await.unwrap();
    let error = soon(handle.result()).await.unwrap_err();
    let ClientError::RunFailed { failure, .. } = error else { panic!("{error}") };
    let text = failure.to_string();
    assert!(text.contains("step `inner` was started inside the body of another step"), "{text}");
    assert_eq!(OUTER.load(Ordering::Relaxed), 1, "it is not tried again");
    worker.stop().await;
}

#[workflow]
async fn options_without_meaning(wf: &Wf, n: u32) -> Result<()> {
    let minute = Duration::from_secs(60);
    match n {
        0 => wf.run(options_plain().delay(minute)).await?,
        1 => wf.run(options_plain().queue("other")).await?,
        2 => wf.run(options_plain().tenant("acme")).await?,
        3 => wf.start(options_plain().idempotency_key("k")).await.map(drop_child)?,
        _ => wf.start(options_plain().tenant("acme")).await.map(drop_child)?,
    }
    Ok(())
}

fn drop_child<T>(_: runledger::Child<'_, T>) {}

#[job]
async fn options_plain() -> Result<()> {
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn meaningless_call_option_in_workflow_is_refused_by_name() {
    let fixture = runledger_tests::Fixture::new().await;
    let worker =
        runledger_tests::rows::worker(&fixture.db, jobs![options_without_meaning, options_plain]).await;
    for (n, option) in (0..).zip(["delay", "queue", "tenant", "idempotency_key", "tenant"]) {
        let result = runledger_tests::rows::soon(
            options_without_meaning(n).enqueue(&fixture.db).await.unwrap().result(),
        )
        .await;
        let Err(runledger::ClientError::RunFailed { failure, .. }) = result else {
            panic!("{option}: {result:?}")
        };
        assert!(failure.to_string().contains(&format!("has a `{option}`")), "{failure}");
    }
    worker.stop().await;
}

static PAYING: Semaphore = Semaphore::const_new(0);

/// Records the id of its payment, and is blocked the first time.
#[job(max_attempts = 1)]
async fn pays(id: uuid::Uuid, #[inject] db: &Db) -> Result<()> {
    sqlx::query("insert into payment (id) values ($1)").bind(id).execute(db.pool()).await?;
    PAYING.acquire().await?.forget();
    Ok(())
}

#[workflow]
async fn pays_once(wf: &Wf) -> Result<()> {
    let id = wf.uuid();
    Ok(wf.run(pays(id)).await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn body_executed_again_receives_same_workflow_uuid() {
    let Fixture { db, database: _database } = Fixture::new().await;
    execute(&db, "create table payment (id uuid)").await;
    let app = App::new(db.clone()).provide(db.clone()).with(jobs![pays_once, pays]).timings(Timings::FAST);
    let worker = app.start().await.unwrap();
    let handle = pays_once().enqueue(&db).await.unwrap();
    let n_payments = async |db: &Db| scalar::<i64>(db, "select count(*) from payment").await;
    eventually(async || n_payments(&db).await, |n| *n == 1).await;
    take_away(&db, handle.id()).await;
    eventually(async || n_payments(&db).await, |n| *n == 2).await;
    PAYING.add_permits(2);
    soon(handle.result()).await.unwrap();
    assert_eq!(scalar::<i64>(&db, "select count(distinct id) from payment").await, 1);
    worker.stop().await;
}

/// Returns its log representation, once after a replay.
#[workflow]
async fn is_logged(wf: &Wf) -> Result<String> {
    let branch = wf.branch("inner");
    wf.step("secret", || async { Ok::<_, Error>("hunter2".to_owned()) }).await?;
    wf.emit(&"hunter2");
    wf.signal::<()>("go").await?;
    Ok(format!("{wf:?} {branch:?} {:?}", wf.saga()))
}

#[tokio::test(flavor = "multi_thread")]
async fn workflow_debug_output_shows_no_recorded_data() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let app =
        App::new(db.clone()).with(jobs![is_logged]).timings(Timings::FAST).idle_residency(Duration::ZERO);
    let worker = app.start().await.unwrap();
    let handle = is_logged().enqueue(&db).await.unwrap();
    eventually(async || handle.state().await.unwrap(), |state| *state == RunState::Waiting).await;
    handle.signal("go", &()).await.unwrap();
    let logged = soon(handle.result()).await.unwrap();
    assert!(!logged.contains("hunter2") && logged.contains(&handle.id().to_string()), "{logged}");
    worker.stop().await;
}

#[derive(Debug, thiserror::Error)]
#[error("cause {0}")]
struct Chain(u32, #[source] Option<Box<Self>>);

/// Fails with a text that is not recorded unchanged.
#[job(max_attempts = 1)]
async fn fails_at_length(how: u8) -> Result<()> {
    match how {
        0 => Err("a page of HTML ".repeat(2_000).into()),
        1 => Err("with a \0 in it".into()),
        _ => Err((0..40).fold(Chain(0, None), |cause, n| Chain(n, Some(Box::new(cause)))).into()),
    }
}

#[job]
async fn hears_of_it(text: String) -> Result<usize> {
    Ok(text.len())
}

/// Passes the text of a failure to a step, and then continues as new.
#[workflow]
async fn tells_of_a_failure(wf: &Wf, how: u8, by_child: bool) -> Result<usize> {
    let failed = if by_child {
        wf.start(fails_at_length(how)).await?.result().await
    } else {
        wf.run(fails_at_length(how)).await
    };
    let n_bytes = wf.run(hears_of_it(failed.unwrap_err().to_string())).await?;
    wf.signal::<()>("go-on").await?;
    Ok(n_bytes)
}

#[tokio::test(flavor = "multi_thread")]
async fn failure_text_replays_identically_even_when_recorded_incompletely() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![tells_of_a_failure, fails_at_length, hears_of_it]).await;
    for how in 0..3 {
        for by_child in [false, true] {
            let run = tells_of_a_failure(how, by_child).enqueue(&db).await.unwrap();
            until(&db, run.id(), |info| info.awaited_signals.contains(&"go-on".to_owned())).await;
            run.signal("go-on", &()).await.unwrap();
            assert!(soon(run.result()).await.unwrap() > 0, "{how} {by_child}");
        }
    }
    worker.stop().await;
}
