//! I4, I10, I11: workers that are killed in the middle of bodies.

use std::time::Duration;

use runledger::RunState;
use runledger_tests::check::fleet::completes;
use runledger_tests::check::{Facts, Fleet, What, jobs};
use runledger_tests::eventually;

use super::WORKER;

/// Runs of a worker at the time of its kill: as many transactional bodies as a pool of the default
/// size allows.
const OPEN: usize = 5;

#[tokio::test(flavor = "multi_thread")]
async fn run_of_killed_worker_resumes_on_another_process() -> anyhow::Result<()> {
    let fleet = Fleet::new().await?;
    let first = fleet.process(WORKER).await?;
    let run = jobs::check_steps(fleet.place.clone()).enqueue(&fleet.db).await?;
    fleet.started(run.id(), 2).await?;
    first.kill().await?;
    let second = fleet.process(WORKER).await?;
    assert_eq!(fleet.started(run.id(), 3).await?.pid, second.pid);
    fleet.place.open("all")?;
    completes(&run).await;
    let bodies: Vec<String> = fleet
        .place
        .events()?
        .into_iter()
        .filter(|event| event.what == What::Start)
        .map(|event| event.key)
        .collect();
    assert_eq!(bodies, ["check.quick[before]", "check.gated", "check.gated", "check.quick[after]"]);
    fleet.drained().await?;
    assert_eq!(fleet.verdict(&[]).await?, Vec::<String>::new());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn transactional_writes_commit_once_although_workers_are_killed() -> anyhow::Result<()> {
    let fleet = Fleet::new().await?;
    let first = fleet.process(WORKER).await?;
    let mut runs = Vec::new();
    for _ in 0..OPEN {
        runs.push(jobs::check_post(fleet.place.clone()).enqueue(&fleet.db).await?);
    }
    for run in &runs {
        fleet.started(run.id(), 1).await?;
    }
    first.kill().await?;
    let second = fleet.process(WORKER).await?;
    for run in &runs {
        fleet.started(run.id(), 2).await?;
    }
    fleet.place.open(&second.pid.to_string())?;
    // Some have committed, others have not.
    eventually(|| async { ledger(&fleet).await }, |rows| *rows >= 1).await;
    second.kill().await?;
    fleet.place.open("all")?;
    let _third = fleet.process(WORKER).await?;
    fleet.drained().await?;
    assert_eq!(ledger(&fleet).await, i64::try_from(OPEN)?);
    assert_eq!(fleet.verdict(&[]).await?, Vec::<String>::new());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn run_counts_as_recovered_after_kill_but_not_drain() -> anyhow::Result<()> {
    let fleet = Fleet::new().await?;
    let first = jobs::app(&fleet.db).drain(Duration::ZERO).start().await?;
    let run = jobs::check_gated(fleet.place.clone()).enqueue(&fleet.db).await?;
    fleet.started(run.id(), 1).await?;
    first.stop().await;
    let after_drain = Facts::load(&mut fleet.connect().await?).await?;
    assert_eq!(
        (after_drain.recoveries.as_slice(), after_drain.n_recoveries()),
        (&["handed back".to_owned()][..], 0)
    );
    let second = fleet.process(WORKER).await?;
    fleet.started(run.id(), 2).await?;
    second.kill().await?;
    let _third = fleet.process(WORKER).await?;
    fleet.place.open("all")?;
    completes(&run).await;
    assert_eq!(Facts::load(&mut fleet.connect().await?).await?.n_recoveries(), 1);
    fleet.drained().await?;
    assert_eq!(fleet.verdict(&[]).await?, Vec::<String>::new());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn crash_consumes_no_attempt() -> anyhow::Result<()> {
    let fleet = Fleet::new().await?;
    let first = fleet.process(WORKER).await?;
    let run = jobs::check_flaky(fleet.place.clone()).enqueue(&fleet.db).await?;
    fleet.started(run.id(), 1).await?;
    first.kill().await?;
    let _second = fleet.process(WORKER).await?;
    fleet.started(run.id(), 2).await?;
    fleet.place.open("all")?;
    assert_eq!(completes(&run).await, 2, "one failure and one success");
    fleet.drained().await?;
    assert_eq!(fleet.verdict(&[]).await?, Vec::<String>::new());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn process_killing_run_is_blocked_after_fifth_crash() -> anyhow::Result<()> {
    let fleet = Fleet::new().await?;
    let poison = jobs::check_killer(fleet.place.clone()).enqueue(&fleet.db).await?;
    // Makes runs due at once, instead of waiting for the delays after crashes.
    let now = || async {
        sqlx::query("update runledger.ready set ready_at = now() where ready_at > now()")
            .execute(fleet.db.pool())
            .await
            .map(drop)
    };
    let mut n_deaths = 0;
    while poison.state().await? != RunState::Blocked {
        now().await?;
        let victim = fleet.process(WORKER).await?;
        fleet.started(poison.id(), n_deaths + 1).await?;
        n_deaths += 1;
        drop(victim);
        // A separate worker without the poison's job detects the dead process.
        let finder = fleet.worker_of_canaries().await?;
        eventually(|| async { poison.state().await.ok() }, |state| *state != Some(RunState::Running)).await;
        finder.stop().await;
        assert!(n_deaths <= 5, "a sixth process would be next");
    }
    assert_eq!(n_deaths, 5);
    let _survivor = fleet.process(WORKER).await?;
    completes(&jobs::check_canary().enqueue(&fleet.db).await?).await;
    assert_eq!(fleet.verdict(&[]).await?, Vec::<String>::new());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn child_completion_wakes_waiting_parent_although_worker_was_killed() -> anyhow::Result<()> {
    let fleet = Fleet::new().await?;
    let first = fleet.process(WORKER).await?;
    let run = jobs::check_parent(fleet.place.clone()).enqueue(&fleet.db).await?;
    eventually(|| async { run.state().await.ok() }, |state| *state == Some(RunState::Waiting)).await;
    first.kill().await?;
    let _second = fleet.process(WORKER).await?;
    fleet.place.open("all")?;
    // The safety sweep would wake the run some seconds later.
    let stranded =
        "select count(*) from runledger.waiting join runledger.outcome on outcome.run_id = any (wait_any)";
    let ended = async || {
        let n_stranded: i64 = sqlx::query_scalar(stranded).fetch_one(fleet.db.pool()).await.unwrap();
        assert_eq!(n_stranded, 0, "a run waits for a child that has ended");
        run.state().await.ok()
    };
    eventually(ended, |state| *state == Some(RunState::Completed)).await;
    fleet.drained().await?;
    assert_eq!(fleet.verdict(&[]).await?, Vec::<String>::new());
    Ok(())
}

async fn ledger(fleet: &Fleet) -> i64 {
    let rows = sqlx::query_scalar("select count(*) from audit.ledger");
    rows.fetch_one(fleet.db.pool()).await.unwrap_or_default()
}
