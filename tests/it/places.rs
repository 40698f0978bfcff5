//! Runs that an outside change has put into two places. They end once, and delay no other run.

use runledger::RunState;
use runledger::prelude::*;
use runledger_tests::Fixture;
use runledger_tests::rows::{LONG, execute, scalar, soon, until, worker};
use uuid::Uuid;

#[workflow]
async fn steps_once(wf: &Wf) -> Result<u32> {
    Ok(wf.step("counts", async || Ok::<_, Error>(7)).await?)
}

#[job]
async fn bystander(n: u64) -> Result<u64> {
    Ok(n)
}

/// Puts a queued run into a second place. `$run` in the statement stands for the run's id.
async fn also(db: &Db, run: Uuid, statement: &str) {
    execute(db, &statement.replace("$run", &format!("'{run}'"))).await;
}

const LEASED_BY_NOBODY: &str =
    "insert into runledger.lease (run_id, token, worker_id, attempt, crashes, claims, claimed_at)
     values ($run, gen_random_uuid(), 1, 1, 0, 1, now())";
const WAITS: &str = "insert into runledger.waiting (run_id, state, wait_any, wait_all, wait_signals, wake_at, attempt, crashes, claims, since)
     values ($run, 'waiting', '{}', '{}', '{}', now(), 0, 0, 0, now())";
const BLOCKED: &str = "insert into runledger.waiting (run_id, state, error, attempt, crashes, claims, since)
     values ($run, 'blocked', '{\"kind\": \"crash\", \"message\": \"no\"}', 0, 0, 0, now())";

#[tokio::test(flavor = "multi_thread")]
async fn queued_run_also_leased_waiting_or_blocked_completes_once() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let mut doubled = Vec::new();
    for second in [LEASED_BY_NOBODY, WAITS, BLOCKED] {
        let run = steps_once().enqueue(&db).await.unwrap();
        also(&db, run.id(), second).await;
        doubled.push(run);
    }
    let worker = worker(&db, jobs![steps_once, bystander]).await;
    for n in 0..5 {
        assert_eq!(soon(bystander(n).enqueue(&db).await.unwrap().result()).await.unwrap(), n);
    }
    for run in doubled {
        assert_eq!(soon(run.result()).await.unwrap(), 7);
    }
    worker.stop().await;
    assert_eq!(scalar::<i64>(&db, "select count(*) from runledger.step").await, 3);
    for place in ["ready", "lease"] {
        assert_eq!(
            scalar::<i64>(&db, &format!("select count(*) from runledger.{place}")).await,
            0,
            "{place}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn completed_run_also_queued_keeps_its_outcome() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![bystander]).await;
    let ended = bystander(1).enqueue(&db).await.unwrap();
    assert_eq!(soon(ended.result()).await.unwrap(), 1);
    let finished_at =
        format!("select finished_at::text from runledger.outcome where run_id = '{}'", ended.id());
    let before: String = scalar(&db, &finished_at).await;
    let queued = "insert into runledger.ready (run_id, queue, job, priority, ready_at, cause, attempt, crashes, claims)
         select run_id, queue, job, priority, now(), 'enqueued', 0, 0, 0 from runledger.run where run_id = $run";
    also(&db, ended.id(), queued).await;
    for n in 2..7 {
        assert_eq!(soon(bystander(n).enqueue(&db).await.unwrap().result()).await.unwrap(), n);
    }
    worker.stop().await;
    assert_eq!(scalar::<String>(&db, &finished_at).await, before);
    assert_eq!(scalar::<i64>(&db, "select count(*) from runledger.ready").await, 0);
    assert_eq!(scalar::<i64>(&db, "select count(*) from runledger.lease").await, 0);
}

#[tokio::test]
async fn run_in_two_tables_can_be_cancelled_and_paused() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let run = bystander(1).delay(LONG).enqueue(&db).await.unwrap();
    also(&db, run.id(), WAITS).await;
    run.pause("for now").await.unwrap();
    assert_eq!(run.info().await.unwrap().state, RunState::Paused);
    for second in [WAITS, BLOCKED] {
        let run = bystander(1).delay(LONG).enqueue(&db).await.unwrap();
        also(&db, run.id(), second).await;
        run.cancel("no").await.unwrap();
        assert_eq!(run.info().await.unwrap().state, RunState::Cancelled);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn deadlines_cancels_and_pauses_apply_despite_runs_in_two_tables() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let overdue = "update runledger.deadline set deadline_at = now() where run_id = $run";
    let asked_to_pause = "insert into runledger.pause (run_id, reason) values ($run, 'no')";
    let asked_to_end = "insert into runledger.cancel (run_id, reason) values ($run, 'no')";
    let mut runs = Vec::new();
    for (request, wanted) in [
        (overdue, RunState::Cancelled),
        (asked_to_end, RunState::Cancelled),
        (asked_to_pause, RunState::Paused),
    ] {
        for second in [Some(WAITS), None] {
            let run = bystander(1).delay(LONG).deadline(LONG).enqueue(&db).await.unwrap();
            if let Some(second) = second {
                also(&db, run.id(), second).await;
            }
            also(&db, run.id(), request).await;
            runs.push((run, wanted));
        }
    }
    let worker = worker(&db, jobs![bystander]).await;
    for (run, wanted) in runs {
        until(&db, run.id(), |info| info.state == wanted).await;
    }
    worker.stop().await;
}
