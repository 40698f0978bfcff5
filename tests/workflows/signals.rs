//! Behaviour 23: signals.

use std::time::Duration;

use runledger::prelude::*;
use runledger::{ClientError, FailureKind, RunState, SignalReceipt};
use runledger_tests::check::signals::wrong;
use runledger_tests::rows::{execute, random, scalar, soon, take_away, until, worker};
use runledger_tests::{Fixture, eventually};
use tokio::sync::Notify;
use uuid::Uuid;

/// Longer than any test.
const HOUR: Duration = Duration::from_secs(3600);

#[job]
async fn works(millis: u64) -> Result<()> {
    tokio::time::sleep(Duration::from_millis(millis)).await;
    Ok(())
}

/// Works for `millis`, then receives `n` signals.
#[workflow]
async fn collects(wf: &Wf, n: u32, millis: u64) -> Result<Vec<u32>> {
    wf.run(works(millis)).await?;
    let mut values = Vec::new();
    for _ in 0..n {
        values.push(wf.signal("value").await?);
    }
    Ok(values)
}

#[tokio::test(flavor = "multi_thread")]
async fn signals_sent_around_waits_are_received_exactly_once_in_order() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let mut senders = Vec::new();
    for _ in 0..40 {
        let handle = collects(5, random(20)).enqueue(&db).await.unwrap();
        senders.push(tokio::spawn(async move {
            for value in 0..5_u32 {
                tokio::time::sleep(Duration::from_millis(random(12))).await;
                handle.signal("value", &value).await.unwrap();
            }
            handle
        }));
    }
    let one = worker(&db, jobs![collects, works]).await;
    let two = worker(&db, jobs![collects, works]).await;
    for sender in senders {
        let handle = sender.await.unwrap();
        take_away(&db, handle.id()).await;
        assert_eq!(soon(handle.result()).await.unwrap(), [0, 1, 2, 3, 4]);
    }
    let mut connection = db.pool().acquire().await.unwrap();
    assert_eq!(wrong(&mut connection).await.unwrap(), Vec::<String>::new());
    drop(connection);
    one.stop().await;
    two.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn run_awaiting_signal_holds_no_lease_and_consumes_no_attempt() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![collects, works]).await;
    let handle = collects(1, 0).enqueue(&db).await.unwrap();
    until(&db, handle.id(), |info| info.state == RunState::Waiting).await;
    assert_eq!(scalar::<i64>(&db, "select count(*) from runledger.lease").await, 0);
    assert_eq!(handle.info().await.unwrap().attempt, 0, "a wait consumes no attempt");
    handle.signal("another", &1).await.unwrap();
    assert_eq!(handle.state().await.unwrap(), RunState::Waiting, "another name wakes nobody");
    handle.signal("value", &7).await.unwrap();
    assert_eq!(soon(handle.result()).await.unwrap(), [7]);
    worker.stop().await;
}

/// Waits beside a step that is running.
#[workflow]
async fn beside_work(wf: &Wf) -> Result<u32> {
    let (value, worked) = tokio::join!(wf.signal("value"), wf.run(works(200)));
    worked?;
    Ok(value?)
}

#[tokio::test(flavor = "multi_thread")]
async fn run_waiting_beside_running_step_receives_signal_in_same_attempt() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![beside_work, works]).await;
    let handle = beside_work().enqueue(&db).await.unwrap();
    until(&db, handle.id(), |info| info.state != RunState::Queued).await;
    handle.signal("value", &7).await.unwrap();
    assert_eq!(soon(handle.result()).await.unwrap(), 7);
    assert_eq!(handle.info().await.unwrap().attempt, 1);
    worker.stop().await;
}

/// Returns the signal that came in time, and the one after it.
#[workflow]
async fn waits_a_while(wf: &Wf, millis: u64) -> Result<(Option<u32>, u32)> {
    let in_time = wf.signal("value").timeout(Duration::from_millis(millis)).await?;
    Ok((in_time, wf.signal("value").await?))
}

#[tokio::test(flavor = "multi_thread")]
async fn timed_out_wait_receives_nothing_and_later_wait_receives_signal() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![waits_a_while]).await;
    for millis in [0, 100, 600] {
        let handle = waits_a_while(millis).enqueue(&db).await.unwrap();
        let steps = async || handle.steps().await.unwrap();
        let steps = eventually(steps, |steps| steps.len() == 2).await;
        let failure = steps[0].result.clone().unwrap_err();
        assert_eq!(failure.kind, FailureKind::Timeout, "{failure}");
        handle.signal("value", &7).await.unwrap();
        assert_eq!(soon(handle.result()).await.unwrap(), (None, 7), "{millis} ms");
    }
    let handle = waits_a_while(3_600_000).enqueue(&db).await.unwrap();
    handle.signal("value", &1).await.unwrap();
    handle.signal("value", &2).await.unwrap();
    assert_eq!(soon(handle.result()).await.unwrap(), (Some(1), 2));
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: `cargo exhaustive`"]
async fn signal_racing_wait_timeout_is_received_by_exactly_one_wait() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let one = worker(&db, jobs![waits_a_while]).await;
    let two = worker(&db, jobs![waits_a_while]).await;
    let mut senders = Vec::new();
    for n in 0..120 {
        let handle = waits_a_while(40).enqueue(&db).await.unwrap();
        senders.push(tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(20 + random(50))).await;
            handle.signal("value", &1).await.unwrap();
            // If the first signal was late, the run may have ended with it.
            let _ = handle.signal("value", &2).await;
            (handle, n)
        }));
    }
    for sender in senders {
        let (handle, n) = sender.await.unwrap();
        if n % 2 == 0 {
            take_away(&db, handle.id()).await;
        }
        let taken = soon(handle.result()).await.unwrap();
        assert!([(Some(1), 2), (None, 1)].contains(&taken), "{taken:?}");
    }
    let mut connection = db.pool().acquire().await.unwrap();
    assert_eq!(wrong(&mut connection).await.unwrap(), Vec::<String>::new());
    drop(connection);
    one.stop().await;
    two.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn crash_does_not_extend_wait_timeout() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![waits_a_while]).await;
    let handle = waits_a_while(3_600_000).enqueue(&db).await.unwrap();
    until(&db, handle.id(), |info| info.state == RunState::Waiting).await;
    let due = "select extract(epoch from wake_at)::float8 from runledger.waiting";
    let first: f64 = scalar(&db, due).await;
    // Simulates a wake-up whose attempt was lost.
    execute(&db, "update runledger.waiting set wake_at = now()").await;
    let again = async || sqlx::query_scalar::<_, f64>(due).fetch_optional(db.pool()).await.unwrap();
    let again = eventually(again, |at| at.is_some_and(|at| at - 1800.0 > first - 3600.0)).await;
    assert!((again.unwrap() - first).abs() < 1e-3, "the instant stands");
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn signal_to_terminal_or_unknown_run_is_refused() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let handle = collects(1, 0).enqueue(&db).await.unwrap();
    handle.cancel("not needed").await.unwrap();
    let error = handle.signal("value", &1).await.unwrap_err();
    assert!(
        matches!(error, ClientError::WrongState { state: RunState::Cancelled, verb: "signalled", .. }),
        "{error}"
    );
    let error = db.run(Uuid::now_v7()).signal("value", &1).await.unwrap_err();
    assert!(matches!(error, ClientError::NoSuchRun { .. }), "{error}");
    let error = handle.signal("Value", &1).await.unwrap_err();
    assert!(matches!(error, ClientError::Name(_)), "{error}");
    assert_eq!(scalar::<i64>(&db, "select count(*) from runledger.signal").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn signal_to_job_run_is_refused() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let handle = works(1).enqueue(&db).await.unwrap();
    let error = handle.signal("value", &1).await.unwrap_err();
    assert!(matches!(error, ClientError::TakesNoSignals { run_id, .. } if run_id == handle.id()), "{error}");
    assert_eq!(scalar::<i64>(&db, "select count(*) from runledger.signal").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn signal_idempotency_key_deduplicates_even_after_signal_is_received() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![collects, works]).await;
    let handle = collects(2, 0).enqueue(&db).await.unwrap();
    let send = async |value: u32| handle.signal("value", &value).idempotency_key("one").await;
    assert_eq!(send(1).await.unwrap(), SignalReceipt::Sent);
    until(&db, handle.id(), |info| info.state == RunState::Waiting).await;
    assert_eq!(send(1).await.unwrap(), SignalReceipt::AlreadySent);
    let error = send(2).await.unwrap_err();
    assert!(matches!(&error, ClientError::SignalConflict { key, .. } if key == "one"), "{error}");
    handle.signal("value", &3).await.unwrap();
    assert_eq!(soon(handle.result()).await.unwrap(), [1, 3]);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn signal_beyond_limit_of_its_name_is_refused_without_loss() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let handle = collects(10_001, 0).enqueue(&db).await.unwrap();
    let flood = format!(
        "insert into runledger.signal (run_id, name, number, payload, idempotency_key)
         select '{}', 'value', n, '1', n::text from generate_series(1, 10000) n",
        handle.id()
    );
    execute(&db, &flood).await;
    let error = handle.signal("value", &1).await.unwrap_err();
    assert!(matches!(error, ClientError::TooManySignals { limit: 10_000, .. }), "{error}");
    handle.signal("another", &1).await.unwrap();
    execute(&db, "update runledger.signal set taken_by = 'step' where name = 'value' and number = 1").await;
    handle.signal("value", &1).await.unwrap();
    assert_eq!(scalar::<i64>(&db, "select count(*) from runledger.signal").await, 10_002);
}

#[tokio::test(flavor = "multi_thread")]
async fn transactional_signal_is_sent_only_on_commit() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![collects, works]).await;
    let handle = collects(1, 0).enqueue(&db).await.unwrap();
    until(&db, handle.id(), |info| info.state == RunState::Waiting).await;
    let mut tx = db.begin().await.unwrap();
    handle.signal("value", &1).send(&mut tx).await.unwrap();
    tx.rollback().await.unwrap();
    assert_eq!(handle.state().await.unwrap(), RunState::Waiting);
    let mut tx = db.begin().await.unwrap();
    handle.signal("value", &2).send(&mut tx).await.unwrap();
    assert_eq!(handle.state().await.unwrap(), RunState::Waiting, "not before the commit");
    tx.commit().await.unwrap();
    assert_eq!(soon(handle.result()).await.unwrap(), [2]);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn signal_above_read_committed_is_refused_before_any_write() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let handle = collects(1, 0).enqueue(&db).await.unwrap();
    for level in ["repeatable read", "serializable"] {
        let mut tx = db.begin().await.unwrap();
        sqlx::query(sqlx::AssertSqlSafe(format!("set transaction isolation level {level}")))
            .execute(&mut *tx)
            .await
            .unwrap();
        let error = handle.signal("value", &1).send(&mut tx).await.unwrap_err();
        assert!(matches!(&error, ClientError::Isolation { level: found, .. } if found == level), "{error}");
        tx.commit().await.unwrap();
    }
    assert_eq!(scalar::<i64>(&db, "select count(*) from runledger.signal").await, 0);
}

/// Continues after a signal that is not a number.
#[workflow]
async fn insists(wf: &Wf) -> Result<(String, u32)> {
    let refused = wf.signal::<u32>("value").await.unwrap_err();
    Ok((refused.failure().message.clone(), wf.signal("value").await?))
}

#[tokio::test(flavor = "multi_thread")]
async fn signal_of_wrong_type_fails_only_its_wait() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![insists]).await;
    let handle = insists().enqueue(&db).await.unwrap();
    handle.signal("value", "seven").await.unwrap();
    let waits = until(&db, handle.id(), |info| info.state == RunState::Waiting).await;
    assert_eq!(waits.awaited_signals, ["value"], "what it waits for can be seen");
    handle.signal("value", &7).await.unwrap();
    let (refused, value) = soon(handle.result()).await.unwrap();
    assert_eq!(value, 7);
    assert!(
        refused.contains("does not fit the type that this wait takes, `u32`, so it was sent as another"),
        "{refused}"
    );
    worker.stop().await;
}

/// Two branches wait for the same signal name.
#[workflow]
async fn shares(wf: &Wf) -> Result<Vec<u32>> {
    let (one, two) = tokio::try_join!(wf.signal("value"), wf.signal("value"))?;
    let mut both = vec![one, two];
    both.sort_unstable();
    Ok(both)
}

#[tokio::test(flavor = "multi_thread")]
async fn two_waits_for_one_name_receive_one_signal_each() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![shares]).await;
    for _ in 0..10 {
        let handle = shares().enqueue(&db).await.unwrap();
        handle.signal("value", &1).await.unwrap();
        handle.signal("value", &2).await.unwrap();
        assert_eq!(soon(handle.result()).await.unwrap(), [1, 2]);
    }
    worker.stop().await;
}

/// Waits with an invalid name, and with an invalid limit.
#[workflow]
async fn waits_wrongly(wf: &Wf) -> Result<Vec<String>> {
    let name = wf.signal::<u32>("No Name").await.unwrap_err();
    let limit = wf.signal::<u32>("value").timeout(HOUR * 24 * 366 * 101).await.unwrap_err();
    Ok([name, limit].iter().map(|error| error.failure().message.clone()).collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_signal_wait_is_refused_instead_of_hanging() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![waits_wrongly]).await;
    let errors = soon(waits_wrongly().enqueue(&db).await.unwrap().result()).await.unwrap();
    assert!(errors[0].contains("signal `No Name`"), "{}", errors[0]);
    assert!(errors[1].contains("longer than the 100"), "{}", errors[1]);
    worker.stop().await;
}

/// Stops polling a wait, and waits for something else.
#[workflow]
async fn keeps_a_wait(wf: &Wf) -> Result<(u32, u32)> {
    let mut kept = wf.signal::<u32>("kept");
    let early = tokio::select! {
        slept = wf.sleep(Duration::from_millis(1)) => { slept?; None }
        value = &mut kept => Some(value?),
    };
    let other = wf.signal::<u32>("other").await?;
    let value = match early {
        Some(value) => value,
        None => kept.await?,
    };
    Ok((value, other))
}

#[job]
async fn passes_by() -> Result<()> {
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: `cargo exhaustive`"]
async fn unpolled_signal_waits_do_not_block_other_runs() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![keeps_a_wait, passes_by]).await;
    let mut runs = Vec::new();
    for _ in 0..100 {
        let run = keeps_a_wait().enqueue(&db).await.unwrap();
        run.signal("kept", &1).await.unwrap();
        runs.push(run);
    }
    soon(passes_by().enqueue(&db).await.unwrap().result()).await.unwrap();
    for run in &runs {
        run.signal("other", &2).await.unwrap();
    }
    for run in &runs {
        assert_eq!(soon(run.result()).await.unwrap(), (1, 2));
    }
    worker.stop().await;
}

static GATE: Notify = Notify::const_new();

#[job]
async fn waits_at_the_gate() -> Result<()> {
    GATE.notified().await;
    Ok(())
}

/// Continues after the gate or with the signal, then waits only for the signal.
#[workflow]
async fn drops_a_wait(wf: &Wf) -> Result<u32> {
    tokio::select! {
        value = wf.signal("value") => return Ok(value?),
        opened = wf.run(waits_at_the_gate()) => opened?,
    }
    wf.run(passes_by()).await?;
    Ok(wf.signal("value").await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn signal_arriving_for_dropped_wait_is_left_for_next_wait() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let handle = drops_a_wait().enqueue(&db).await.unwrap();
    handle.signal("value", &7).await.unwrap();
    let mut lock = db.pool().begin().await.unwrap();
    sqlx::raw_sql("lock table runledger.signal in access exclusive mode").execute(&mut *lock).await.unwrap();
    let worker = worker(&db, jobs![drops_a_wait, waits_at_the_gate, passes_by]).await;
    let looks = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database() and query ~ '^-- (signal_left|take_signal):'";
    eventually(async || scalar::<i64>(&db, looks).await, |n_looks| *n_looks == 1).await;
    GATE.notify_one();
    // The wait is dropped when the second step is recorded.
    eventually(async || scalar::<i64>(&db, "select count(*) from runledger.step").await, |n| *n == 2).await;
    lock.rollback().await.unwrap();
    assert_eq!(soon(handle.result()).await.unwrap(), 7);
    worker.stop().await;
}

/// Waits in rounds with a time limit each, like a loop that also does other work.
#[workflow]
async fn in_rounds(wf: &Wf, first: u32, anew: bool) -> Result<(u32, u32)> {
    for round in first.. {
        let (approval, pause) = (wf.signal("approval"), wf.sleep(Duration::from_millis(random(20))));
        tokio::select! {
            value = approval => return Ok((value?, round)),
            slept = pause => { slept?; }
        }
        if anew && round % 3 == 2 {
            return wf.continue_as_new(in_rounds(round + 1, anew)).await;
        }
    }
    unreachable!("a run has no such number of rounds")
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: `cargo exhaustive`"]
async fn loop_dropping_its_waits_receives_signal_once_across_continuations() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let one = worker(&db, jobs![in_rounds]).await;
    let two = worker(&db, jobs![in_rounds]).await;
    let mut senders = Vec::new();
    for n in 0..80_u32 {
        let handle = in_rounds(0, n % 2 == 0).enqueue(&db).await.unwrap();
        senders.push(tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(random(300))).await;
            handle.signal("approval", &n).await.unwrap();
            (handle, n)
        }));
    }
    for sender in senders {
        let (handle, n) = sender.await.unwrap();
        if n % 4 < 2 {
            take_away(&db, handle.id()).await;
        }
        assert_eq!(soon(handle.result()).await.unwrap().0, n);
    }
    let mut connection = db.pool().acquire().await.unwrap();
    assert_eq!(wrong(&mut connection).await.unwrap(), Vec::<String>::new());
    drop(connection);
    one.stop().await;
    two.stop().await;
}

/// Never ends, and makes the runtime poll the body all the time.
async fn spins() {
    loop {
        tokio::task::yield_now().await;
    }
}

/// Ends with the signal, or after an hour.
#[workflow]
async fn hears_while_it_spins(wf: &Wf) -> Result<u32> {
    tokio::select! {
        value = wf.signal("value") => Ok(value?),
        slept = wf.sleep(HOUR) => { slept?; Ok(0) }
        () = spins() => unreachable!("it does not end"),
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: `cargo exhaustive`"]
async fn run_does_not_suspend_between_finding_signal_and_delivering_it() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let mut runs = Vec::new();
    for value in 0..300 {
        let run = hears_while_it_spins().enqueue(&db).await.unwrap();
        run.signal("value", &value).await.unwrap();
        runs.push(run);
    }
    let app = App::new(db.clone()).with(jobs![hears_while_it_spins]).timings(runledger::Timings::FAST);
    let worker = app.concurrency(4).start().await.unwrap();
    for (value, run) in (0..).zip(&runs) {
        assert_eq!(soon(run.result()).await.unwrap(), value);
    }
    worker.stop().await;
}

/// Receives one signal per round. The second round fails.
#[workflow(max_attempts = 1)]
async fn a_signal_a_round(wf: &Wf, round: u32, values: Vec<u32>) -> Result<Vec<u32>> {
    let mut values = values;
    values.push(wf.signal("value").await?);
    if round == 0 {
        wf.signal::<u32>("other").await?;
        return wf.continue_as_new(a_signal_a_round(1, values)).await;
    }
    values.push(wf.signal::<u32>("value").timeout(Duration::from_millis(1)).await?.unwrap_or_default());
    if values.len() == 3 && values[2] == 0 { Err(Error::terminal("too few")) } else { Ok(values) }
}

#[tokio::test(flavor = "multi_thread")]
async fn revived_run_excludes_signals_received_before_continue_as_new() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![a_signal_a_round]).await;
    let handle = a_signal_a_round(0, vec![]).enqueue(&db).await.unwrap();
    for value in [1, 2] {
        handle.signal("value", &value).await.unwrap();
    }
    handle.signal("other", &9).await.unwrap();
    assert!(matches!(soon(handle.result()).await, Err(ClientError::RunFailed { .. })));
    let revived = handle.revive(RunState::Failed).await.unwrap();
    assert!(matches!(soon(revived.result()).await, Err(ClientError::RunFailed { .. })));
    let left = format!(
        "select count(*) from runledger.signal where run_id = '{}' and taken_by is null",
        revived.id()
    );
    assert_eq!(scalar::<i64>(&db, &left).await, 0, "what the first round has taken");
    worker.stop().await;
}
