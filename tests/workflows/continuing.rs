//! Behaviour 42: runs that continue as new or later.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use runledger::prelude::*;
use runledger::{ClientError, Graph, RunState, value};
use runledger_tests::rows::{scalar, soon, take_away, until, worker};
use runledger_tests::{Fixture, eventually};
use uuid::Uuid;

/// Counts to `n` in slices of ten. Every second slice fails once.
#[job(max_attempts = 2, backoff = "10ms..10ms")]
async fn counts(n: u64, later: u64, #[inject] context: &Context) -> Result<u64> {
    let done: u64 = context.last_progress().await?.unwrap_or(0);
    if done.is_multiple_of(20) && done > 0 && context.attempt() == 1 {
        return Err("the first attempt of every second slice fails".into());
    }
    let done = n.min(done + 10);
    if done == n {
        return Ok(done);
    }
    context.progress(&done).await?;
    context.continue_later(Duration::from_millis(later)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn job_continues_later_with_progress_and_fresh_attempt_budget() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![counts]).await;
    for later in [0, 40] {
        let handle = counts(75, later).enqueue(&db).await.unwrap();
        assert_eq!(soon(handle.result()).await.unwrap(), 75);
        let failed = handle.attempts().await.unwrap().into_iter().filter(|attempt| attempt.error.is_some());
        assert_eq!(failed.count(), 3, "more failed than any one budget has");
        assert_eq!(handle.info().await.unwrap().attempt, 1, "the last slice has counted from the start");
    }
    assert_eq!(scalar::<i64>(&db, "select count(*) from runledger.run").await, 2, "the same runs");
    worker.stop().await;
}

#[job(max_attempts = 3, backoff = "10ms..10ms")]
async fn notes(round: u32, n: u32, #[inject] context: &Context) -> Result<Uuid> {
    drop(vec![round, n]);
    Ok(context.idempotency_key())
}

#[job]
async fn ends() -> Result<()> {
    Ok(())
}

/// Each round runs some steps, a child and a signal, and then continues as new.
#[workflow]
async fn rounds(wf: &Wf, round: u32, n_rounds: u32, keys: Vec<Uuid>) -> Result<Vec<Uuid>> {
    let mut all = keys;
    for n in 0..5 {
        all.push(wf.run(notes(round, n)).await?);
    }
    wf.emit("a round");
    let child = wf.start(ends()).await?;
    all.push(child.id());
    child.result().await?;
    wf.signal::<u32>("go").await?;
    if round + 1 == n_rounds {
        return Ok(all);
    }
    wf.continue_as_new(rounds(round + 1, n_rounds, all)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn continued_workflow_stays_one_run_with_only_last_slice_history() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let one = worker(&db, jobs![rounds, notes, ends]).await;
    let two = worker(&db, jobs![rounds, notes, ends]).await;
    let handle = rounds(0, 8, vec![]).enqueue(&db).await.unwrap();
    for value in 0..8 {
        handle.signal("go", &value).await.unwrap();
    }
    while !handle.state().await.unwrap().is_terminal() {
        take_away(&db, handle.id()).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let mut keys = soon(handle.result()).await.unwrap();
    keys.sort_unstable();
    keys.dedup();
    assert_eq!(keys.len(), 8 * 6, "each round has keys and a child of its own");
    assert_eq!(scalar::<i64>(&db, "select count(*) from runledger.step").await, 5 + 3);
    assert_eq!(scalar::<i64>(&db, "select count(*) from runledger.signal where taken_by is null").await, 0);
    assert_eq!(scalar::<i32>(&db, "select slice from runledger.continuation").await, 7);
    let output = handle.output(0).await.unwrap();
    assert_eq!(output.len(), 8, "each round has said it: {output:?}");
    let children = "select count(*) from runledger.run where parent_id is not null";
    assert_eq!(scalar::<i64>(&db, children).await, 8);
    one.stop().await;
    two.stop().await;
}

#[workflow]
async fn waits_between(wf: &Wf, round: u32) -> Result<u32> {
    if round == 1 {
        return Ok(round);
    }
    wf.continue_as_new(waits_between(round + 1).delay(Duration::from_secs(3600))).await
}

#[tokio::test(flavor = "multi_thread")]
async fn workflow_continues_as_new_with_delay() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![waits_between]).await;
    let handle = waits_between(0).enqueue(&db).await.unwrap();
    let info = until(&db, handle.id(), |info| info.cause.as_deref() == Some("continued")).await;
    assert_eq!((info.state, info.attempt), (RunState::Queued, 0));
    let left = info.ready_at.unwrap().duration_since(std::time::SystemTime::now()).unwrap();
    assert!(left > Duration::from_secs(3000), "{left:?}");
    assert_eq!(
        handle.export().await.unwrap().input,
        r#"{"round":1}"#,
        "a history has the input of its slice"
    );
    worker.stop().await;
}

#[workflow]
async fn continues_wrongly(wf: &Wf, how: u32) -> Result<u32> {
    match how {
        0 => wf.continue_as_new(waits_between(0)).await,
        1 => wf.continue_as_new(continues_wrongly(1).priority(3)).await,
        _ => Ok(wf.run(continues_inside()).await?),
    }
}

#[job]
async fn continues_inside(#[inject] context: &Context) -> Result<u32> {
    context.continue_later(Duration::ZERO).await
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_continuation_fails_run_with_reason() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![continues_wrongly, continues_inside, waits_between]).await;
    let reasons = ["cannot continue as `waits_between`", "has a `priority`", "means nothing in a step"];
    for (how, reason) in (0..).zip(reasons) {
        let error = soon(continues_wrongly(how).enqueue(&db).await.unwrap().result()).await.unwrap_err();
        let ClientError::RunFailed { failure, .. } = error else { panic!("{error}") };
        assert!(failure.message.contains(reason), "{failure}");
    }
    worker.stop().await;
}

static CHILD_IS_MENDED: AtomicBool = AtomicBool::new(false);

#[job(max_attempts = 1)]
async fn fails_until_mended(round: u32) -> Result<u32> {
    if round == 0 || CHILD_IS_MENDED.load(Ordering::SeqCst) {
        Ok(round)
    } else {
        Err(Error::terminal("not yet"))
    }
}

/// Starts one child per round.
#[workflow(max_attempts = 1)]
async fn a_child_a_round(wf: &Wf, round: u32) -> Result<u32> {
    let output = wf.start(fails_until_mended(round)).await?.result().await?;
    if round == 2 { Ok(output) } else { wf.continue_as_new(a_child_a_round(round + 1)).await }
}

#[tokio::test(flavor = "multi_thread")]
async fn child_of_continued_run_is_revived_with_its_parent() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![a_child_a_round, fails_until_mended]).await;
    let handle = a_child_a_round(0).enqueue(&db).await.unwrap();
    assert!(matches!(soon(handle.result()).await, Err(ClientError::RunFailed { .. })));
    assert_eq!(scalar::<i32>(&db, "select slice from runledger.continuation").await, 1);
    // The revived run fails like the original: its steps name a child of the original.
    let fork = handle.revive(RunState::Failed).await.unwrap();
    assert!(matches!(soon(fork.result()).await, Err(ClientError::RunFailed { .. })));
    CHILD_IS_MENDED.store(true, Ordering::SeqCst);
    let revived = fork.revive(RunState::Failed).await.unwrap();
    assert_eq!(soon(revived.result()).await.unwrap(), 2);
    let last = format!(
        "select count(*) from runledger.run where origin_id is not null and parent_id = '{}'",
        revived.id()
    );
    assert_eq!(scalar::<i64>(&db, &last).await, 1, "the child has taken the place of the one that failed");
    worker.stop().await;
}

#[job]
async fn owes(cents: u64) -> Result<u64> {
    Ok(cents)
}

#[job]
async fn pays(cents: u64) -> Result<u64> {
    Ok(cents)
}

/// Pays in parts of ten, and waits for a signal before the last part.
#[workflow]
async fn pays_in_parts(wf: &Wf, owed: u64, paid: u64) -> Result<u64> {
    if paid > 20 {
        return Err(Error::terminal("more is paid than is owed"));
    }
    if owed == 10 {
        wf.signal::<()>("last").await?;
    }
    let paid = paid + wf.run(pays(10)).await?;
    if owed == 10 { Ok(paid) } else { wf.continue_as_new(pays_in_parts(owed - 10, paid)).await }
}

#[tokio::test(flavor = "multi_thread")]
async fn dependent_node_continues_as_new_with_arguments_it_passes() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let jobs = || jobs![owes, pays, pays_in_parts];
    let first = worker(&db, jobs()).await;
    let mut graph = Graph::new("payment");
    let owed = graph.call(owes(30));
    let payment = graph.then(pays_in_parts, (owed, value(0)));
    let graph = graph.result(payment).enqueue(&db).await.unwrap();
    let nodes = graph.nodes().await.unwrap();
    let payment = nodes.iter().find(|node| node.name == "pays_in_parts").unwrap().run_id;
    let info = until(&db, payment, |info| info.state.is_terminal() || info.awaited_signals == ["last"]).await;
    assert_eq!(info.state, RunState::Waiting, "{:?}", info.error);
    first.stop().await;

    let history = db.run(payment).export().await.unwrap();
    assert_eq!(history.input, r#"{"owed":10,"paid":20}"#);
    let verification = App::new(db.clone()).with(jobs()).verify().await.unwrap();
    assert_eq!(verification.n_replaying, verification.n_runs, "{verification}");

    let second = worker(&db, jobs()).await;
    RunHandle::attach(pays_in_parts, &db, payment).signal("last", &()).await.unwrap();
    assert_eq!(soon(graph.result()).await.unwrap(), 30);
    second.stop().await;
}

#[workflow]
async fn waits_then_works(wf: &Wf, round: u32) -> Result<u32> {
    if round > 0 {
        wf.signal::<()>("begin").await?;
    }
    wf.step("first", || async { Ok::<_, Error>(()) }).await?;
    wf.step("second", || async { Ok::<_, Error>(()) }).await?;
    if round > 0 {
        return Ok(round);
    }
    wf.signal::<()>("go").await?;
    wf.continue_as_new(waits_then_works(round + 1)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn fork_racing_continue_as_new_is_refused_with_unknown_step() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![waits_then_works]).await;
    let handle = waits_then_works(0).enqueue(&db).await.unwrap();
    until(&db, handle.id(), |info| info.awaited_signals == ["go"]).await;
    // The fork has read the steps, and cannot write the new run yet.
    let mut lock = db.pool().begin().await.unwrap();
    sqlx::query("lock table runledger.run in share mode").execute(&mut *lock).await.unwrap();
    let fork = tokio::spawn({
        let handle = handle.clone();
        async move { handle.fork("second").await.map(drop) }
    });
    let waits = "select count(*) from pg_stat_activity
                 where datname = current_database() and wait_event_type = 'Lock' and query like '-- link:%'";
    eventually(async || scalar::<i64>(&db, waits).await, |n_waits| *n_waits == 1).await;
    handle.signal("go", &()).await.unwrap();
    until(&db, handle.id(), |info| info.awaited_signals == ["begin"]).await;
    lock.rollback().await.unwrap();
    let refused = soon(fork).await.unwrap().unwrap_err();
    assert!(matches!(refused, ClientError::UnknownStep { .. }), "{refused:?}");
    assert_eq!(scalar::<i64>(&db, "select count(*) from runledger.run").await, 1);
    worker.stop().await;
}
