//! Deadlines: of a run, whatever it does when they pass, and of a step over all its attempts.

use std::time::Duration;

use runledger::prelude::*;
use runledger::{ClientError, FailureKind, Graph, RunState, enqueue_all};
use runledger_tests::rows::{LONG, execute, scalar, soon, until, worker};
use runledger_tests::{Fixture, eventually};

use crate::children::{child_of, child_that_sleeps, parent_of_a_sleeper};

/// Makes all deadlines pass.
async fn pass(db: &Db) {
    execute(db, "update runledger.deadline set deadline_at = now()").await;
}

#[job]
async fn never_ends() -> Result<()> {
    std::future::pending().await
}

#[tokio::test(flavor = "multi_thread")]
async fn run_past_deadline_is_cancelled_in_any_state() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![never_ends, child_that_sleeps]).await;
    let hour = LONG * 60;
    let running = never_ends().deadline(hour).enqueue(&db).await.unwrap().id();
    let queued = never_ends().delay(hour).deadline(hour).enqueue(&db).await.unwrap().id();
    let asleep = child_that_sleeps().deadline(hour).enqueue(&db).await.unwrap().id();
    let paused = never_ends().delay(hour).deadline(hour).enqueue(&db).await.unwrap();
    paused.pause("for now").await.unwrap();
    let free = never_ends().enqueue(&db).await.unwrap();
    until(&db, running, |info| info.state == RunState::Running).await;
    until(&db, asleep, |info| info.cause.as_deref() == Some("slept")).await;
    pass(&db).await;
    for run_id in [running, queued, asleep, paused.id()] {
        let info = until(&db, run_id, |info| info.state.is_terminal()).await;
        assert_eq!(info.state, RunState::Cancelled);
        let reason = info.error.unwrap().to_string();
        assert!(reason.contains("within its deadline of 3600s"), "{reason}");
    }
    until(&db, free.id(), |info| info.state == RunState::Running).await;
    free.cancel("over").await.unwrap();
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn parent_deadline_cancels_child() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![parent_of_a_sleeper, child_that_sleeps]).await;
    let handle = parent_of_a_sleeper().deadline(LONG).enqueue(&db).await.unwrap();
    until(&db, handle.id(), |info| info.state == RunState::Waiting).await;
    let child = child_of(&db, handle.id()).await;
    pass(&db).await;
    for run_id in [handle.id(), child] {
        let info = until(&db, run_id, |info| info.state == RunState::Cancelled).await;
        assert!(info.error.unwrap().to_string().contains("within its deadline"));
    }
    worker.stop().await;
}

#[workflow]
async fn limits_its_child(wf: &Wf) -> Result<String> {
    let child = wf.start(never_ends().delay(LONG).deadline(LONG)).await?;
    Ok(child.result().await.err().map_or_else(String::new, |error| error.failure().to_string()))
}

#[tokio::test(flavor = "multi_thread")]
async fn child_deadline_wakes_parent() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![limits_its_child, never_ends]).await;
    let handle = limits_its_child().enqueue(&db).await.unwrap();
    until(&db, handle.id(), |info| info.state == RunState::Waiting).await;
    pass(&db).await;
    let text = soon(handle.result()).await.unwrap();
    assert!(text.contains("within its deadline of 60s"), "{text}");
    worker.stop().await;
}

#[tokio::test]
async fn deadline_counts_from_start_time_and_only_where_set() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let calls = [
        never_ends(),
        never_ends().deadline(LONG),
        never_ends().delay(LONG).deadline(LONG).idempotency_key("late"),
    ];
    let runs = enqueue_all(calls, &db).await.unwrap();
    let left = "select string_agg(extract(epoch from deadline_at - run.start_at)::int::text, ' ') from runledger.deadline join runledger.run using (run_id)";
    assert_eq!(scalar::<String>(&db, left).await, "60 60");
    let mut tx = db.begin().await.unwrap();
    never_ends().deadline(LONG).enqueue(&mut *tx).await.unwrap();
    tx.rollback().await.unwrap();
    let same = never_ends().delay(LONG).deadline(LONG).idempotency_key("late").enqueue(&db).await.unwrap();
    assert_eq!((same.id(), same.created()), (runs[2].run_id, false));
    let other = never_ends().delay(LONG).deadline(LONG * 2).idempotency_key("late").enqueue(&db).await;
    let Err(ClientError::Conflict { difference, .. }) = other else { panic!("{other:?}") };
    assert_eq!(difference, "deadline");
    assert_eq!(scalar::<i64>(&db, "select count(*) from runledger.deadline").await, 2);
}

#[job]
async fn ends() -> Result<()> {
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn released_node_has_its_own_deadline_or_none() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![ends, never_ends]).await;
    let mut graph = Graph::new("limited");
    let first = graph.call(ends());
    let hour = LONG * 60;
    for (name, deadline) in [("free", None), ("limited", Some(hour))] {
        let node = graph.call(never_ends());
        graph.after(node, first);
        graph.configure(node).name(name).delay(hour);
        if let Some(deadline) = deadline {
            graph.configure(node).deadline(deadline);
        }
    }
    let graph = graph.enqueue(&db).await.unwrap();
    for node in graph.nodes().await.unwrap() {
        until(&db, node.run_id, |info| info.state.is_terminal() || info.ready_at.is_some()).await;
    }
    let limited = "select string_agg(node, ', ') from runledger.deadline join runledger.run using (run_id)";
    assert_eq!(scalar::<Option<String>>(&db, limited).await.as_deref(), Some("limited"));
    RunHandle::cancel(&graph, "over").await.unwrap();
    worker.stop().await;
}

#[job(deadline = "1h")]
async fn has_an_hour() -> Result<()> {
    Ok(())
}

#[workflow(deadline = "2h")]
async fn has_two_hours(wf: &Wf) -> Result<()> {
    wf.run(has_an_hour()).await?;
    wf.start(has_an_hour().delay(LONG)).await?;
    Ok(())
}

/// Returns how many seconds each run has from its start, the shortest first.
async fn limits(db: &Db) -> String {
    let limits = "select string_agg(seconds::text, ' ' order by seconds)
                  from (select extract(epoch from deadline_at - run.start_at)::int as seconds
                        from runledger.deadline join runledger.run using (run_id)) as run";
    scalar(db, limits).await
}

#[tokio::test(flavor = "multi_thread")]
async fn job_deadline_applies_to_each_run_unless_call_overrides_it() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let by_name = runledger::AnyCall::by_name("has_an_hour", &serde_json::json!({}));
    enqueue_all([by_name, has_an_hour().delay(LONG).into()], &db).await.unwrap();
    has_an_hour().deadline(LONG).enqueue(&db).await.unwrap();
    assert_eq!(limits(&db).await, "60 3600 3600");
    let handle = has_two_hours().enqueue(&db).await.unwrap();
    let worker = worker(&db, jobs![has_two_hours]).await;
    soon(handle.result()).await.unwrap();
    assert_eq!(limits(&db).await, "60 3600 3600 3600 7200", "a child has its job's, a step none");
    worker.stop().await;
}

#[tokio::test]
async fn changed_job_deadline_does_not_make_repeated_key_conflict() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let keyed = || has_an_hour().idempotency_key("once");
    let first = keyed().enqueue(&db).await.unwrap();
    let before = r#"update runledger.run set options = '{"deadline_ms":5000,"is_own_deadline":true}'"#;
    execute(&db, before).await;
    let again = keyed().enqueue(&db).await.unwrap();
    assert_eq!((again.id(), again.created()), (first.id(), false));
    let said = keyed().deadline(LONG).enqueue(&db).await;
    let Err(ClientError::Conflict { difference, .. }) = said else { panic!("{said:?}") };
    assert_eq!(difference, "deadline");
}

#[tokio::test(flavor = "multi_thread")]
async fn passed_deadline_leaves_completed_run_and_its_child_unchanged() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![starts_one, child_that_sleeps]).await;
    let handle = starts_one().deadline(LONG).enqueue(&db).await.unwrap();
    soon(handle.result()).await.unwrap();
    let child = child_of(&db, handle.id()).await;
    pass(&db).await;
    let left = "select count(*) from runledger.deadline";
    runledger_tests::eventually(async || scalar::<i64>(&db, left).await, |n| *n == 0).await;
    assert_eq!(handle.state().await.unwrap(), RunState::Completed);
    assert!(!db.run(child).info().await.unwrap().state.is_terminal());
    worker.stop().await;
}

#[workflow]
async fn starts_one(wf: &Wf) -> Result<()> {
    wf.start(child_that_sleeps()).await?;
    Ok(())
}

#[workflow]
async fn has_a_step_with_a_deadline(wf: &Wf, hangs: bool) -> Result<String> {
    let step = wf.step("late", || async move {
        if hangs {
            std::future::pending::<()>().await;
        }
        Err::<(), _>(Error::retry_after("no answer", LONG))
    });
    let failed = step.deadline(Duration::from_millis(300)).await.unwrap_err();
    assert_eq!(failed.failure().kind, FailureKind::Timeout);
    Ok(failed.failure().to_string())
}

#[tokio::test(flavor = "multi_thread")]
async fn step_past_deadline_fails_with_last_failure_as_cause() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![has_a_step_with_a_deadline]).await;
    for (hangs, cause) in [(true, "did not end within its timeout"), (false, "no answer")] {
        let handle = has_a_step_with_a_deadline(hangs).enqueue(&db).await.unwrap();
        let text = soon(handle.result()).await.unwrap();
        assert!(
            text.contains("within its deadline of 300ms, after 1 tries") && text.contains(cause),
            "{text}"
        );
    }
    worker.stop().await;
}

#[workflow]
async fn fails_until_its_deadline(wf: &Wf) -> Result<String> {
    let step = wf.step("late", || async { Err::<(), _>(Error::retry_after("no answer", LONG)) });
    let failed = step.deadline(LONG * 60).await.unwrap_err();
    Ok(failed.failure().to_string())
}

#[tokio::test(flavor = "multi_thread")]
async fn step_deadline_counts_from_first_failed_attempt_across_suspension() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![fails_until_its_deadline]).await;
    let handle = fails_until_its_deadline().enqueue(&db).await.unwrap();
    until(&db, handle.id(), |info| info.cause.as_deref() == Some("slept")).await;
    // Simulates the passing of an hour.
    execute(
        &db,
        "update runledger.attempt set started_at = started_at - interval '1 hour';
         update runledger.ready set ready_at = now()",
    )
    .await;
    let text = soon(handle.result()).await.unwrap();
    assert!(text.contains("within its deadline of 3600s, after 2 tries"), "{text}");
    worker.stop().await;
}

/// Limits that look as if they would end a wait. Each is refused with an error when it is awaited.
#[workflow]
async fn limits_what_is_not_tried(wf: &Wf) -> Result<Vec<String>> {
    let child = wf.start(never_ends()).await?;
    let limited = [
        wf.sleep(LONG).timeout(LONG).await.err(),
        wf.start(never_ends()).deadline(LONG).await.err(),
        child.result().timeout(LONG).await.err(),
        wf.signal::<()>("never").timeout(LONG).deadline(LONG).await.err(),
    ];
    Ok(limited.into_iter().flatten().map(|error| error.failure().message.clone()).collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn limit_on_step_without_attempts_is_refused_with_alternative() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![limits_what_is_not_tried, never_ends]).await;
    let run = limits_what_is_not_tried().enqueue(&db).await.unwrap();
    let messages = soon(run.result()).await.unwrap();
    let steps = ["sleep", "never_ends#2", "never_ends.result", "signal[never]"];
    assert_eq!(messages.len(), steps.len(), "{messages:?}");
    for (message, step) in messages.iter().zip(steps) {
        assert!(message.starts_with(&format!("the step `{step}` has no tries that its ")), "{message}");
        assert!(message.contains("race it against a sleep with `wf.race`"), "{message}");
    }
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn deadlines_without_run_do_not_block_others() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let run = never_ends().delay(LONG).deadline(LONG).enqueue(&db).await.unwrap();
    let of_nobody = "insert into runledger.deadline (run_id, deadline_at) select gen_random_uuid(), now() - interval '1 day' from generate_series(1, 120)";
    pass(&db).await;
    execute(&db, of_nobody).await;
    let worker = worker(&db, jobs![never_ends]).await;
    until(&db, run.id(), |info| info.state == RunState::Cancelled).await;
    eventually(async || scalar::<i64>(&db, "select count(*) from runledger.deadline").await, |n| *n == 0)
        .await;
    worker.stop().await;
}
