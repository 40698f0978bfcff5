//! Behaviours 17 and 18: step keys, and code that does not follow the record.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use runledger::prelude::*;
use runledger::{ClientError, FailureKind, RunState, Timings, Worker};
use runledger_tests::rows::{self, execute, scalar, soon, until, worker};
use runledger_tests::{Fixture, eventually};
use uuid::Uuid;

#[job]
async fn keyed_step(n: u64) -> Result<u64> {
    Ok(n)
}

#[workflow]
async fn many_keys(wf: &Wf) -> Result<u64> {
    let mut sum = wf.run(keyed_step(1)).await?;
    sum += wf.run(keyed_step(2)).await?;
    sum += wf.run(keyed_step(3).key("a")).await?;
    let (b, c) = tokio::try_join!(wf.run(keyed_step(4).key("a")), wf.run(keyed_step(5).key("b")))?;
    sum += wf.step("keyed_step", || async { Ok::<u64, Error>(6) }).await?;
    wf.sleep(Duration::ZERO).await?;
    Ok(sum + b + c)
}

#[tokio::test(flavor = "multi_thread")]
async fn step_keys_combine_name_call_key_and_occurrence_number() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![many_keys, keyed_step]).await;
    let handle = many_keys().enqueue(&db).await.unwrap();
    assert_eq!(soon(handle.result()).await.unwrap(), 21);
    let keys: Vec<String> = handle.steps().await.unwrap().into_iter().map(|step| step.key).collect();
    let expected = [
        "keyed_step",
        "keyed_step#2",
        "keyed_step[a]",
        "keyed_step[a]#2",
        "keyed_step[b]",
        "keyed_step#3",
        "sleep",
    ];
    assert_eq!(keys, expected);
    worker.stop().await;
}

#[workflow]
async fn branches_in_any_order(
    wf: &Wf,
    first: String,
    second: String,
    #[inject] db: &Db,
) -> Result<Vec<String>> {
    let mut order = Vec::new();
    let run_id = wf.run_id();
    let branch = |name: &'static str| {
        let waits = (name == second).then(|| first.clone());
        wf.step(name, move || {
            let waits = waits.clone();
            async move {
                if let Some(other) = waits {
                    is_recorded(db.clone(), run_id, other).await;
                }
                Ok::<String, Error>(name.to_owned())
            }
        })
    };
    let mut branches: futures::stream::FuturesUnordered<_> =
        [branch("left"), branch("right")].into_iter().collect();
    while let Some(name) = futures::StreamExt::next(&mut branches).await {
        order.push(name?);
    }
    drop(branches);
    wf.sleep(Duration::from_millis(400)).await?;
    Ok(order)
}

/// Waits until a step of a run is recorded. The caller limits the wait.
async fn is_recorded(db: Db, run_id: Uuid, key: String) {
    let recorded =
        format!("select exists (select from runledger.step where run_id = '{run_id}' and key = '{key}')");
    while !scalar::<bool>(&db, &recorded).await {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn parallel_steps_keep_keys_and_completion_order_across_replay() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let app = App::new(db.clone()).with(jobs![branches_in_any_order]).provide(db.clone());
    let worker = app.timings(Timings::FAST).start().await.unwrap();
    for order in [["right", "left"], ["left", "right"]] {
        let [first, second] = order.map(str::to_owned);
        let handle = branches_in_any_order(first, second).enqueue(&db).await.unwrap();
        assert_eq!(soon(handle.result()).await.unwrap(), order);
        let steps = handle.steps().await.unwrap();
        let keys: Vec<_> = steps.iter().map(|step| (step.key.as_str(), step.ordinal)).collect();
        assert_eq!(keys, [("left", 0), ("right", 1), ("sleep", 2)]);
    }
    worker.stop().await;
}

/// The code at the time when the runs started.
mod before {
    use super::{Duration, is_recorded, keyed_step};
    use runledger::prelude::*;

    #[workflow(name = "divergence.evolving")]
    pub async fn evolving(wf: &Wf, how: String, #[inject] db: &Db) -> Result<u64> {
        let run_id = wf.run_id();
        let left = wf.step("left", || async {
            if how == "reordered" {
                is_recorded(db.clone(), run_id, "keyed_step".to_owned()).await;
            }
            Ok::<u64, Error>(10)
        });
        let right = wf.run(keyed_step(1));
        let (left, right) = tokio::try_join!(left, right)?;
        wf.sleep(Duration::from_secs(3)).await?;
        Ok(left + right)
    }
}

/// The code after a change that breaks runs in flight.
mod after {
    use super::{Duration, keyed_step};
    use runledger::prelude::*;

    #[workflow(name = "divergence.evolving")]
    pub async fn evolving(wf: &Wf, how: String) -> Result<u64> {
        if how == "shortened" {
            return Ok(0);
        }
        if how == "inserted" {
            wf.run(keyed_step(99).key("new")).await?;
        }
        if how == "retyped" {
            let left = wf.step("left", || async { Ok::<_, Error>("10".to_owned()) });
            let (left, right) = tokio::try_join!(left, wf.run(keyed_step(1)))?;
            return Ok(left.parse::<u64>()? + right);
        }
        let left =
            wf.step(if how == "renamed" { "links" } else { "left" }, || async { Ok::<u64, Error>(10) });
        let right = wf.run(keyed_step(if how == "input" { 2 } else { 1 }));
        if how == "reordered" {
            let sleep = wf.sleep(Duration::from_secs(3));
            let (left, right) = (left.await?, right.await?);
            sleep.await?;
            return Ok(left + right);
        }
        let (left, right) = tokio::try_join!(left, right)?;
        wf.sleep(Duration::from_secs(3)).await?;
        Ok(left + right)
    }
}

async fn served_before(db: &Db) -> Worker {
    let app = App::new(db.clone()).with(jobs![before::evolving, keyed_step]).provide(db.clone());
    app.timings(Timings::FAST).start().await.unwrap()
}

async fn served_after(db: &Db) -> Worker {
    worker(db, jobs![after::evolving, keyed_step]).await
}

async fn n_steps(db: &Db, run_id: Uuid) -> i64 {
    scalar(db, &format!("select count(*) from runledger.step where run_id = '{run_id}'")).await
}

/// Starts a run with the old code and continues it with the new. Returns the error of a waiting
/// `result()`, then repairs the run with the old code.
async fn diverge(how: &str) -> String {
    let Fixture { db, database: _database } = Fixture::new().await;
    let old = served_before(&db).await;
    let handle = before::evolving(how.to_owned()).enqueue(&db).await.unwrap();
    eventually(async || n_steps(&db, handle.id()).await, |n_steps| *n_steps == 3).await;
    old.stop().await;
    let waiting = tokio::spawn({
        let handle = handle.clone();
        async move { soon(handle.result()).await }
    });

    let new = served_after(&db).await;
    let error = soon(waiting).await.unwrap().unwrap_err();
    let ClientError::RunBlocked { run_id, failure } = error else { panic!("{error}") };
    assert_eq!((run_id, failure.kind), (handle.id(), FailureKind::Diverged));
    let info = handle.info().await.unwrap();
    assert_eq!((info.state, info.attempt), (RunState::Blocked, 0), "it consumed no attempt");
    assert_eq!(n_steps(&db, run_id).await, 3, "nothing was written");
    new.stop().await;

    let mended = served_before(&db).await;
    handle.resume().await.unwrap();
    assert_eq!(soon(handle.result()).await.unwrap(), 11);
    assert!(matches!(handle.resume().await, Err(ClientError::WrongState { .. })));
    mended.stop().await;
    failure.to_string()
}

/// Checks that the line named by the message contains this code.
fn says_the_line(text: &str, code: &str) {
    let (_, place) = text.split_once("the present step is at ").unwrap_or_else(|| panic!("{text}"));
    let mut place = place.split([':', ';']);
    assert!(place.next().is_some_and(|file| file.ends_with("divergence.rs")), "{text}");
    let line: usize = place.next().unwrap().parse().unwrap();
    let line = include_str!("divergence.rs").lines().nth(line - 1).unwrap();
    assert!(line.contains(code), "{line}");
}

#[tokio::test(flavor = "multi_thread")]
async fn different_step_at_recorded_place_blocks_run_until_code_matches() {
    let text = diverge("renamed").await;
    assert!(text.contains("step `links` stands where `left` was recorded (step 1)"), "{text}");
    says_the_line(&text, "wf.step(if how == \"renamed\"");
    let page: Vec<&str> = include_str!("../../docs/concepts/determinism.md").split_whitespace().collect();
    let (what, behind) = text.split_once(" is at ").unwrap();
    let (_, then) = behind.split_once("; ").unwrap();
    assert!(page.join(" ").contains(what) && page.join(" ").contains(then), "the page shows another: {text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn step_inserted_before_recorded_ones_blocks_run_until_code_matches() {
    let text = diverge("inserted").await;
    assert!(text.contains("step `keyed_step[new]` stands where `left` was recorded (step 1)"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn changed_step_input_blocks_run_until_code_matches() {
    let text = diverge("input").await;
    assert!(text.contains("step `keyed_step` was recorded with another input"), "{text}");
    says_the_line(&text, "wf.run(keyed_step(if how == \"input\"");
}

#[tokio::test(flavor = "multi_thread")]
async fn unreadable_recorded_output_blocks_run_until_code_matches() {
    let text = diverge("retyped").await;
    assert!(text.contains("step `left`: the recorded output does not fit the type of the code"), "{text}");
    assert!(text.contains("expected a string"), "{text}");
}

#[workflow]
async fn asks_the_world(wf: &Wf) -> Result<()> {
    let _ = (wf.now(), wf.uuid(), wf.random());
    wf.sleep(Duration::from_micros(1)).await?;
    wf.signal::<()>("go").await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn unreadable_engine_record_blocks_run_until_record_is_repaired() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![asks_the_world]).await;
    let handle = asks_the_world().enqueue(&db).await.unwrap();
    until(&db, handle.id(), |run| run.state == RunState::Waiting).await;
    worker.stop().await;
    execute(&db, "create table kept as select run_id, key, output::text from runledger.step").await;
    handle.signal("go", &()).await.unwrap();
    let mut worker = None;
    for key in ["now", "uuid", "random", "sleep"] {
        let unreadable = format!("update runledger.step set output = 'true' where key = '{key}'");
        execute(&db, &unreadable).await;
        if worker.is_none() {
            worker = Some(rows::worker(&db, jobs![asks_the_world]).await);
        } else {
            handle.resume().await.unwrap();
        }
        let failure = until(&db, handle.id(), |run| run.state == RunState::Blocked).await.error.unwrap();
        assert_eq!(failure.kind, FailureKind::Diverged, "{failure}");
        assert!(failure.message.contains(&format!("step `{key}`")), "{failure}");
        execute(
            &db,
            "update runledger.step set output = kept.output::json from kept where kept.key = step.key",
        )
        .await;
    }
    handle.resume().await.unwrap();
    soon(handle.result()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn unreached_recorded_steps_block_run_until_code_matches() {
    let text = diverge("shortened").await;
    assert!(
        text.contains("step `left` is recorded, but the workflow no longer reaches it (3 such)"),
        "{text}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn reordered_awaits_of_recorded_steps_block_run_instead_of_hanging() {
    let text = diverge("reordered").await;
    assert!(
        text.contains("the result of step `keyed_step` was awaited next when this run was recorded"),
        "{text}"
    );
}

static NEW_BODIES: AtomicU32 = AtomicU32::new(0);

/// The same workflow before and after its branch was renamed.
mod renamed {
    use super::{Duration, NEW_BODIES, Ordering};
    use runledger::prelude::*;

    #[workflow(name = "divergence.branching")]
    pub async fn before(wf: &Wf) -> Result<u64> {
        let branch = wf.branch("left");
        let n = branch.step("a", || async { Ok::<u64, Error>(1) }).await?;
        branch.step("b", || async { Ok::<(), Error>(()) }).await?;
        wf.sleep(Duration::from_secs(3)).await?;
        Ok(n)
    }

    #[workflow(name = "divergence.branching")]
    pub async fn after(wf: &Wf) -> Result<u64> {
        let branch = wf.branch("links");
        let n = branch
            .step("a", || async {
                NEW_BODIES.fetch_add(1, Ordering::Relaxed);
                Ok::<u64, Error>(1)
            })
            .await?;
        branch.step("b", || async { Ok::<(), Error>(()) }).await?;
        wf.sleep(Duration::from_secs(3)).await?;
        Ok(n)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn diverged_code_executes_nothing_before_divergence_is_found() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let old = worker(&db, jobs![renamed::before]).await;
    let handle = renamed::before().enqueue(&db).await.unwrap();
    eventually(async || n_steps(&db, handle.id()).await, |n_steps| *n_steps == 3).await;
    old.stop().await;
    let new = worker(&db, jobs![renamed::after]).await;
    let info = until(&db, handle.id(), |info| info.state == RunState::Blocked).await;
    let text = info.error.unwrap().to_string();
    assert!(text.contains("step `left/a` is recorded, but the workflow no longer reaches it"), "{text}");
    assert_eq!((NEW_BODIES.load(Ordering::Relaxed), n_steps(&db, handle.id()).await), (0, 3));
    new.stop().await;
    let mended = worker(&db, jobs![renamed::before]).await;
    handle.resume().await.unwrap();
    assert_eq!(soon(handle.result()).await.unwrap(), 1);
    mended.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn blocked_run_can_be_cancelled() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let old = served_before(&db).await;
    let handle = before::evolving("renamed".to_owned()).enqueue(&db).await.unwrap();
    eventually(async || n_steps(&db, handle.id()).await, |n_steps| *n_steps == 3).await;
    old.stop().await;
    let new = served_after(&db).await;
    until(&db, handle.id(), |info| info.state == RunState::Blocked).await;
    assert_eq!(handle.cancel("given up").await.unwrap(), runledger::Cancelled::Now);
    assert!(matches!(handle.result().await, Err(ClientError::RunCancelled { .. })));
    new.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn blocked_run_can_be_forked_from_diverging_step() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let old = served_before(&db).await;
    let handle = before::evolving("input".to_owned()).enqueue(&db).await.unwrap();
    eventually(async || n_steps(&db, handle.id()).await, |n_steps| *n_steps == 3).await;
    old.stop().await;
    let new = served_after(&db).await;
    until(&db, handle.id(), |info| info.state == RunState::Blocked).await;
    let fork = handle.fork("keyed_step").await.unwrap();
    assert_eq!(
        soon(fork.result()).await.unwrap(),
        12,
        "what was recorded before it is kept, and it is run with its present input"
    );
    assert_eq!(handle.info().await.unwrap().state, RunState::Blocked);
    new.stop().await;
}

/// Each branch builds its step at its first poll. Without `biased`, a random branch is polled
/// first.
#[workflow]
async fn races_of_branches(wf: &Wf) -> Result<u64> {
    let mut sum = 0;
    for _ in 0..16 {
        sum += tokio::select! {
            biased;
            left = async { wf.step("left", || async { Ok::<u64, Error>(1) }).await } => left?,
            right = async { wf.step("right", || async { Ok::<u64, Error>(2) }).await } => right?,
        };
    }
    wf.sleep(Duration::from_millis(400)).await?; // the run leaves its worker, and is replayed
    Ok(sum)
}

#[tokio::test(flavor = "multi_thread")]
async fn biased_select_over_lazy_steps_replays_without_divergence() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![races_of_branches]).await;
    let handle = races_of_branches().enqueue(&db).await.unwrap();
    assert!((16..=32).contains(&soon(handle.result()).await.unwrap()));
    worker.stop().await;
}
