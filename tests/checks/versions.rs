//! I15: a worker leaves unknown jobs alone, and a replay takes the recorded branch or stops.

use runledger::{ClientError, RunState};
use runledger_tests::check::fleet::completes;
use runledger_tests::check::{Facts, Fleet, jobs};
use runledger_tests::eventually;

use super::WORKER;

#[tokio::test(flavor = "multi_thread")]
async fn run_of_unknown_job_stays_queued_and_unclaimed() -> anyhow::Result<()> {
    let fleet = Fleet::new().await?;
    let worker = fleet.worker(fleet.url()).await?;
    let stranger = uuid::Uuid::now_v7();
    sqlx::raw_sql(sqlx::AssertSqlSafe(format!(
        "insert into runledger.run (run_id, job, tenant, queue, priority, input, start_at)
        values ('{stranger}', 'job.of.tomorrow', '', 'checks', 0, '{{}}', now());
        insert into runledger.ready (run_id, queue, job, priority, ready_at, cause, attempt, crashes, claims)
        values ('{stranger}', 'checks', 'job.of.tomorrow', 0, now(), 'enqueued', 0, 0, 0)"
    )))
    .execute(fleet.db.pool())
    .await?;
    // Every claim of these canaries also passes the run of the unknown job.
    for _ in 0..20 {
        completes(&jobs::check_canary().enqueue(&fleet.db).await?).await;
    }
    worker.stop().await;
    let facts = Facts::load(&mut fleet.connect().await?).await?;
    assert_eq!(facts.claims_of(stranger).count(), 0);
    let unserved = fleet.db.unserved().await?;
    let unserved: Vec<_> =
        unserved.iter().map(|it| (it.queue.as_str(), it.job.as_str(), it.version)).collect();
    assert_eq!(unserved, [("checks", "job.of.tomorrow", 1)]);
    assert_eq!(fleet.verdict(&[]).await?, Vec::<String>::new());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn replay_sees_same_race_winner_as_first_execution() -> anyhow::Result<()> {
    let fleet = Fleet::new().await?;
    let first = fleet.process(WORKER).await?;
    let run = jobs::check_racing(fleet.place.clone()).enqueue(&fleet.db).await?;
    // The body of the branch, and the body after both racers. Everything before the second is
    // recorded.
    fleet.started(run.id(), 2).await?;
    first.kill().await?;
    // On a busy machine the slow step can win.
    let keys: Vec<String> = run.steps().await?.into_iter().map(|step| step.key).collect();
    let branch = |winner: &str| keys.contains(&format!("check.quick[{winner}]"));
    let winner = if branch("fast") { "fast" } else { "slow" };
    assert!(branch(winner), "{keys:?}");
    let _second = fleet.process(WORKER).await?;
    fleet.place.open("all")?;
    assert_eq!(completes(&run).await, winner);
    fleet.drained().await?;
    assert_eq!(fleet.verdict(&[]).await?, Vec::<String>::new());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn diverging_replay_blocks_run_and_writes_nothing() -> anyhow::Result<()> {
    let fleet = Fleet::new().await?;
    let first = fleet.process(WORKER).await?;
    let run = jobs::check_steps(fleet.place.clone()).enqueue(&fleet.db).await?;
    fleet.started(run.id(), 2).await?;
    first.kill().await?;
    let mut connection = fleet.connect().await?;
    // Simulates the record of another workflow version. Bypasses the trigger against changes.
    sqlx::raw_sql("alter table runledger.step disable trigger changed; update runledger.step set key = 'another'; alter table runledger.step enable trigger changed")
        .execute(&mut connection)
        .await?;
    let _second = fleet.process(WORKER).await?;
    eventually(|| async { run.state().await.ok() }, |state| *state == Some(RunState::Blocked)).await;
    let blocked = run.result().await;
    assert!(matches!(blocked, Err(ClientError::RunBlocked { .. })), "{blocked:?}");
    assert_eq!(run.steps().await?.len(), 1);
    assert_eq!(fleet.place.events()?.len(), 3, "the first step, and the beginning of the second");
    assert_eq!(fleet.verdict(&[]).await?, Vec::<String>::new());
    Ok(())
}
