//! The lines that a run emits: appended once despite retries and replays, and read by position.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use runledger::prelude::*;
use runledger::{ClientError, RunState};
use runledger_tests::proxy::Proxy;
use runledger_tests::rows::{LONG, execute, scalar, soon, take_away, until, worker};
use runledger_tests::{Fixture, eventually};
use serde_json::{Value, json};
use sqlx::Connection;
use tokio::sync::Semaphore;

async fn lines<T>(handle: &RunHandle<T>) -> Vec<(String, Value)> {
    let lines = handle.output(1).await.unwrap();
    let positions: Vec<u64> = lines.iter().map(|line| line.position).collect();
    assert_eq!(positions, (1..=lines.len() as u64).collect::<Vec<_>>(), "without gaps");
    lines.iter().map(|line| (line.step_key.clone(), line.decode().unwrap())).collect()
}

fn of(step: &str, values: &[Value]) -> Vec<(String, Value)> {
    values.iter().map(|value| (step.to_owned(), value.clone())).collect()
}

/// Fails in its first attempt. Its second line differs between attempts.
#[job(max_attempts = 2, backoff = "1ms..1ms")]
async fn chatters(#[inject] context: &Context) -> Result<()> {
    context.emit("begins").await?;
    context.emit(&json!({ "try": context.attempt() })).await?;
    context.emit("goes on").await?;
    if context.attempt() == 1 { Err("not yet".into()) } else { context.emit("ends").await }
}

#[workflow]
async fn listens(wf: &Wf) -> Result<()> {
    Ok(wf.run(chatters()).await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn retry_appends_only_new_output_lines() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![listens, chatters]).await;
    let expected =
        [json!("begins"), json!({ "try": 1 }), json!("goes on"), json!({ "try": 2 }), json!("ends")];
    let job = chatters().enqueue(&db).await.unwrap();
    soon(job.result()).await.unwrap();
    assert_eq!(lines(&job).await, of("", &expected));
    let workflow = listens().enqueue(&db).await.unwrap();
    soon(workflow.result()).await.unwrap();
    assert_eq!(lines(&workflow).await, of("chatters", &expected));
    let rest = workflow.output(4).await.unwrap();
    assert_eq!(rest.iter().map(|line| line.position).collect::<Vec<_>>(), [4, 5]);
    assert!(workflow.output(6).await.unwrap().is_empty());
    worker.stop().await;
}

static GATE: Semaphore = Semaphore::const_new(0);
static ROUNDS: AtomicU32 = AtomicU32::new(0);

/// Emits before a step, in a branch, before a sleep, and a different line in each attempt.
#[workflow]
async fn narrates(wf: &Wf) -> Result<()> {
    let branch = wf.branch("left");
    wf.emit("one");
    wf.step("a", || async { Ok::<_, Error>(()) }).await?;
    branch.emit("inner");
    wf.emit("two");
    let round = ROUNDS.fetch_add(1, Ordering::SeqCst);
    let gate = || async {
        GATE.acquire().await.map_err(Error::terminal)?.forget();
        Ok::<_, Error>(())
    };
    wf.step("gate", gate).await?;
    wf.emit(&format!("round {round}"));
    wf.sleep(Duration::from_millis(1)).await?;
    wf.emit("three");
    wf.sleep(LONG * 60).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn replay_emits_no_line_twice() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![narrates]).await;
    let handle = narrates().enqueue(&db).await.unwrap();
    eventually(async || ROUNDS.load(Ordering::SeqCst), |rounds| *rounds == 1).await;
    assert!(take_away(&db, handle.id()).await);
    eventually(async || ROUNDS.load(Ordering::SeqCst), |rounds| *rounds == 2).await;
    GATE.add_permits(2);
    let ended = |lines: &Vec<(String, Value)>| lines.iter().any(|(_, value)| *value == json!("three"));
    eventually(async || lines(&handle).await, ended).await;
    until(&db, handle.id(), |info| info.cause.as_deref() == Some("slept")).await;
    let mut said = lines(&handle).await;
    said.sort_unstable_by_key(|(_, value)| value.to_string());
    let mut distinct = said.clone();
    distinct.dedup();
    assert_eq!(said, distinct);
    for line in [("", "one"), ("left/", "inner"), ("", "two"), ("", "three")] {
        assert!(said.contains(&(line.0.to_owned(), json!(line.1))), "{said:?}");
    }
    handle.cancel("enough").await.unwrap();
    assert_eq!(handle.state().await.unwrap(), RunState::Cancelled);
    assert_eq!(lines(&handle).await.len(), said.len(), "it survives the end of the run");
    worker.stop().await;
}

#[workflow]
async fn ends_at_once(wf: &Wf, n: u32) -> Result<()> {
    (0..n).for_each(|line| wf.emit(&line));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn follower_receives_every_line_once_until_run_ends() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let handle = ends_at_once(2500).enqueue(&db).await.unwrap();
    let mut follower = handle.follow_output(1);
    let read = tokio::spawn(async move {
        let mut read = Vec::new();
        while let Some(line) = follower.next().await.unwrap() {
            read.push(line.decode::<u32>().unwrap());
        }
        read
    });
    let worker = worker(&db, jobs![ends_at_once]).await;
    assert_eq!(soon(read).await.unwrap(), (0..2500).collect::<Vec<_>>());
    soon(handle.result()).await.unwrap();
    worker.stop().await;
}

#[job(max_attempts = 1)]
async fn says_much(bytes: usize, times: u32, #[inject] context: &Context) -> Result<()> {
    let text = "x".repeat(bytes);
    for line in 0..times {
        context.emit(&(line, &text)).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn output_beyond_limits_is_refused_with_reason() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![ends_at_once, says_much]).await;
    let bytes = says_much(64 << 10, 1).enqueue(&db).await.unwrap();
    let many = ends_at_once(10_001).enqueue(&db).await.unwrap();
    let large = says_much(65_000, 259).enqueue(&db).await.unwrap();
    for (result, words) in [
        (
            soon(bytes.result()).await,
            "a line of output has 65542 bytes of JSON, and at most 65536 are allowed",
        ),
        (soon(many.result()).await, "the output of this run is full: it may have 10000 lines and 16 MiB"),
        (soon(large.result()).await, "the output of this run is full"),
    ] {
        let ClientError::RunFailed { failure, .. } = result.unwrap_err() else { panic!("{words}") };
        assert!(failure.to_string().contains(words), "{failure}");
    }
    assert_eq!(large.output(1).await.unwrap().len(), 258, "what there was room for is kept");
    worker.stop().await;
}

static STALE: Semaphore = Semaphore::const_new(0);
static ATTEMPTS: AtomicU32 = AtomicU32::new(0);

#[job]
async fn speaks_late(#[inject] context: &Context) -> Result<()> {
    let number = ATTEMPTS.fetch_add(1, Ordering::SeqCst);
    context.emit(&number).await?;
    STALE.acquire().await?.forget();
    if number == 0 {
        context.emit("an attempt that has lost its lease").await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn stale_attempt_emits_no_more_lines() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let one = worker(&db, jobs![speaks_late]).await;
    let handle = speaks_late().enqueue(&db).await.unwrap();
    eventually(async || lines(&handle).await.len(), |n| *n == 1).await;
    assert!(take_away(&db, handle.id()).await);
    let other = worker(&db, jobs![speaks_late]).await;
    eventually(async || lines(&handle).await.len(), |n| *n == 2).await;
    STALE.add_permits(2);
    soon(handle.result()).await.unwrap();
    one.stop().await;
    other.stop().await;
    assert_eq!(lines(&handle).await, of("", &[json!(0), json!(1)]));
}

#[workflow]
async fn emits_its_id(wf: &Wf) -> Result<uuid::Uuid> {
    let id = wf.uuid();
    wf.emit(&id);
    Ok(id)
}

#[tokio::test(flavor = "multi_thread")]
async fn emitted_line_carries_same_value_as_replay() {
    let Fixture { db, database } = Fixture::new().await;
    let mut holder = database.connect().await.unwrap();
    let mut tx = holder.begin().await.unwrap();
    // The line is committed, and the settlement waits.
    sqlx::query("lock table runledger.outcome in share row exclusive mode").execute(&mut *tx).await.unwrap();
    let worker = worker(&db, jobs![emits_its_id]).await;
    let handle = emits_its_id().enqueue(&db).await.unwrap();
    eventually(async || handle.output(1).await.unwrap().len(), |n_lines| *n_lines == 1).await;
    assert!(take_away(&db, handle.id()).await);
    tx.rollback().await.unwrap();
    let id = soon(handle.result()).await.unwrap();
    let lines = handle.output(1).await.unwrap();
    let lines: Vec<uuid::Uuid> = lines.iter().map(|line| line.decode().unwrap()).collect();
    assert_eq!(lines, [id]);
    worker.stop().await;
}

static STARTED: AtomicBool = AtomicBool::new(false);
static EMITTED: AtomicBool = AtomicBool::new(false);
static LET_GO: Semaphore = Semaphore::const_new(0);

#[job]
async fn starts_behind_a_signal() -> Result<()> {
    STARTED.store(true, Ordering::Release);
    LET_GO.acquire().await?.forget();
    Ok(())
}

#[workflow]
async fn emits_its_id_beside_a_signal(wf: &Wf) -> Result<uuid::Uuid> {
    let takes = async {
        let _: u64 = wf.signal("go").await?;
        wf.run(starts_behind_a_signal()).await?;
        Ok::<_, Error>(())
    };
    let emits = async {
        wf.sleep(Duration::from_secs(2)).await?;
        let id = wf.uuid();
        wf.emit(&id);
        EMITTED.store(true, Ordering::Release);
        Ok::<_, Error>(id)
    };
    let ((), id) = futures::try_join!(takes, emits)?;
    Ok(id)
}

#[tokio::test(flavor = "multi_thread")]
async fn line_waits_for_recorded_value_while_signal_is_consumed() {
    let Fixture { db, database } = Fixture::new().await;
    let mut holder = database.connect().await.unwrap();
    let worker = worker(&db, jobs![emits_its_id_beside_a_signal, starts_behind_a_signal]).await;
    let handle = emits_its_id_beside_a_signal().enqueue(&db).await.unwrap();
    eventually(async || handle.steps().await.unwrap().len(), |n_steps| *n_steps == 1).await;
    let mut tx = holder.begin().await.unwrap();
    sqlx::query("lock table runledger.step in share row exclusive mode").execute(&mut *tx).await.unwrap();
    handle.signal("go", &1_u64).await.unwrap();
    eventually(async || EMITTED.load(Ordering::Acquire), |has_emitted| *has_emitted).await;
    tx.rollback().await.unwrap();
    eventually(async || STARTED.load(Ordering::Acquire), |has_started| *has_started).await;
    let n_lines = handle.output(1).await.unwrap().len();
    let has_value = handle.steps().await.unwrap().iter().any(|step| step.key.starts_with("uuid"));
    assert!(n_lines == 0 || has_value, "the line is there without its value");
    LET_GO.add_permits(1);
    let id = soon(handle.result()).await.unwrap();
    let lines = handle.output(1).await.unwrap();
    let lines: Vec<uuid::Uuid> = lines.iter().map(|line| line.decode().unwrap()).collect();
    assert_eq!(lines, [id]);
    worker.stop().await;
}

#[job(max_attempts = 1)]
async fn speaks_through_a_proxy(#[inject] context: &Context) -> Result<()> {
    context.emit("once").await
}

#[tokio::test(flavor = "multi_thread")]
async fn line_with_commit_outliving_connection_is_appended_once() {
    let Fixture { db, database } = Fixture::new().await;
    // The first commit of a line ends only once its repetition waits for it.
    let slow = "create sequence commits;
        create function wait() returns trigger language plpgsql as $$ begin
            if nextval('public.commits') = 1 then
                while not exists (select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock')
                loop perform pg_stat_clear_snapshot(), pg_sleep(0.01); end loop;
            end if;
            return null;
        end $$;
        create constraint trigger waits after insert on runledger.output deferrable initially deferred
        for each row execute function wait()";
    execute(&db, slow).await;
    let proxy = Proxy::start(database.url()).await.unwrap();
    let through = Db::connect(proxy.url()).await.unwrap();
    let worker = worker(&through, jobs![speaks_through_a_proxy]).await;
    let handle = speaks_through_a_proxy().enqueue(&db).await.unwrap();
    let begun = async || scalar::<bool>(&db, "select is_called from commits").await;
    eventually(begun, |begun| *begun).await;
    proxy.cut();
    soon(handle.result()).await.unwrap();
    assert_eq!(lines(&handle).await, of("", &[json!("once")]));
    worker.stop().await;
}
