//! I7, I9: a terminal run does not change, and nothing more is recorded for it.

use runledger_tests::check::fleet::completes;
use runledger_tests::check::{Fleet, jobs, terminal};
use sqlx::{AssertSqlSafe, PgConnection};

use super::WORKER;

#[tokio::test(flavor = "multi_thread")]
async fn run_cancelled_in_queue_never_starts() -> anyhow::Result<()> {
    let fleet = Fleet::new().await?;
    let cancelled = jobs::check_quick(fleet.place.clone()).enqueue(&fleet.db).await?;
    cancelled.cancel("nobody wants it").await?;
    // Enqueued after the others.
    let next = jobs::check_quick(fleet.place.clone()).enqueue(&fleet.db).await?;
    let _worker = fleet.process(WORKER).await?;
    completes(&next).await;
    fleet.drained().await?;
    let events = fleet.place.events()?;
    assert_eq!(fleet.verdict(&[]).await?, Vec::<String>::new());
    assert!(events.iter().all(|event| event.run_id == next.id()), "the other has begun");
    Ok(())
}

/// Changes to a terminal run that a defective engine might make, each with the checker's finding.
const DEFECTS: &[(&str, &str)] = &[
    ("update runledger.outcome set output = '1'", "UPDATE of outcome"),
    ("delete from runledger.outcome", "DELETE of outcome"),
    ("update runledger.step set output = '1'", "UPDATE of step"),
    ("delete from runledger.step", "DELETE of step"),
    (
        "insert into runledger.step (run_id, key, ordinal, fingerprint, output, seen_len, claims)
         select run_id, 'late', 99, 0, '1', 0, 1 from runledger.run",
        "step after its end",
    ),
    (
        "insert into runledger.ready (run_id, queue, job, priority, ready_at, cause, attempt, crashes, claims)
         select run_id, queue, job, priority, now(), 'woken', 0, 0, 1 from runledger.run",
        "ready after its end",
    ),
    (
        "insert into runledger.lease (run_id, token, worker_id, attempt, crashes, claims, claimed_at)
         select run_id, gen_random_uuid(), worker_id, 1, 0, 2, now() from runledger.outcome",
        "lease after its end",
    ),
    (
        "insert into runledger.waiting (run_id, state, ready_at, attempt, crashes, claims, since)
         select run_id, 'paused', now(), 0, 0, 1, now() from runledger.run",
        "waiting after its end",
    ),
];

#[tokio::test(flavor = "multi_thread")]
async fn every_change_to_terminal_run_is_detected() -> anyhow::Result<()> {
    let fleet = Fleet::new().await?;
    let worker = fleet.process(WORKER).await?;
    let run = jobs::check_summing().enqueue(&fleet.db).await?;
    completes(&run).await;
    worker.kill().await?;
    let mut connection = fleet.connect().await?;
    assert_eq!(terminal::changes(&mut connection).await?, Vec::<String>::new());
    for (defect, said) in DEFECTS {
        let found = found_after(&mut connection, defect).await?;
        assert!(found.contains(&format!("{said} of run {}", run.id())), "{found:?} after: {defect}");
    }
    Ok(())
}

/// Returns the checker's findings after a defect, in a transaction that is rolled back.
async fn found_after(connection: &mut PgConnection, defect: &str) -> anyhow::Result<Vec<String>> {
    sqlx::raw_sql("begin").execute(&mut *connection).await?;
    sqlx::raw_sql(AssertSqlSafe(defect.to_owned())).execute(&mut *connection).await?;
    let found = terminal::changes(connection).await?;
    sqlx::raw_sql("rollback").execute(connection).await?;
    Ok(found)
}
