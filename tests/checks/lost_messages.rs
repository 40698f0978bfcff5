//! I10, I2: replies that are lost after the server has executed the statement, and a lock session
//! that is lost alone.

use runledger::{Call, Job, RunInfo};
use runledger_tests::check::fleet::completes;
use runledger_tests::check::{Facts, Fleet, Place, jobs};
use runledger_tests::eventually;
use runledger_tests::proxy::{Fault, Mode, Proxy};
use uuid::Uuid;

/// Enough for two heartbeats of another worker, which would have acted on a wrong belief.
const HEARTBEATS: i64 = 5;

#[tokio::test(flavor = "multi_thread")]
async fn run_with_lost_claim_reply_is_claimed_again() -> anyhow::Result<()> {
    let (fleet, run) = unanswered(&["-- claim:"], jobs::check_gated).await?;
    assert_eq!(claims(&fleet, run.run_id).await?, 2, "the lost claim, and another");
    assert_eq!((run.attempt, run.crashes), (1, 0), "a lost claim costs no attempt");
    assert_eq!(fleet.verdict(&[]).await?, Vec::<String>::new());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn step_with_lost_acknowledgement_continues_under_same_claim() -> anyhow::Result<()> {
    let (fleet, run) = unanswered(&["-- checkpoint_fresh:"], jobs::check_steps).await?;
    assert_eq!(claims(&fleet, run.run_id).await?, 1, "a lost acknowledgement is no reason to lose the run");
    assert_eq!(fleet.place.events()?.len(), 6, "three bodies, each once");
    assert_eq!(fleet.verdict(&[]).await?, Vec::<String>::new());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn step_with_two_lost_acknowledgements_is_recorded_once() -> anyhow::Result<()> {
    let (fleet, run) = unanswered(&["-- checkpoint_fresh:", "-- checkpoint:"], jobs::check_steps).await?;
    assert_eq!((claims(&fleet, run.run_id).await?, run.attempt), (1, 1));
    let steps = "select count(*) from runledger.step where run_id = $1";
    let n_steps: i64 = sqlx::query_scalar(steps).bind(run.run_id).fetch_one(fleet.db.pool()).await?;
    assert_eq!(n_steps, 3);
    assert_eq!(fleet.verdict(&[]).await?, Vec::<String>::new());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn child_with_lost_start_acknowledgement_starts_once() -> anyhow::Result<()> {
    let (fleet, run) = unanswered(&["-- start_child:"], jobs::check_parent).await?;
    let children = "select count(*) from runledger.run where parent_id = $1";
    let n_children: i64 = sqlx::query_scalar(children).bind(run.run_id).fetch_one(fleet.db.pool()).await?;
    assert_eq!(n_children, 1);
    assert_eq!(fleet.verdict(&[]).await?, Vec::<String>::new());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn run_with_lost_completion_acknowledgement_completes_once() -> anyhow::Result<()> {
    let (fleet, run) = unanswered(&["-- settle_completed:"], jobs::check_gated).await?;
    assert_eq!(claims(&fleet, run.run_id).await?, 1);
    assert_eq!(fleet.verdict(&[]).await?, Vec::<String>::new());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn signal_with_lost_consumption_reply_is_consumed_once() -> anyhow::Result<()> {
    let fleet = Fleet::new().await?;
    let proxy = Proxy::start(fleet.url()).await?;
    let run = jobs::check_signalled(fleet.place.clone()).enqueue(&fleet.db).await?;
    for value in 0..3_u32 {
        run.signal("value", &value).await?;
    }
    proxy.arm("-- take_signal:", Fault::LoseRows);
    let worker = fleet.worker(proxy.url()).await?;
    assert_eq!(completes(&run).await, [0, 1, 2]);
    assert_ne!(proxy.n_faults(), 0);
    fleet.drained().await?;
    worker.stop().await;
    assert_eq!(fleet.verdict(&[]).await?, Vec::<String>::new());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn worker_without_lock_session_keeps_runs_while_heartbeats_continue() -> anyhow::Result<()> {
    let fleet = Fleet::new().await?;
    let proxy = Proxy::start(fleet.url()).await?;
    let worker = fleet.worker(proxy.url()).await?;
    let run = jobs::check_gated(fleet.place.clone()).enqueue(&fleet.db).await?;
    fleet.started(run.id(), 1).await?;
    let other = fleet.worker(fleet.url()).await?;
    proxy.set(Mode::Refuse);
    let ended: i64 = sqlx::query_scalar(
        "select count(pg_terminate_backend(pid))
        from pg_locks
        where locktype = 'advisory' and database = (select oid from pg_database where datname = current_database()) and classid = 'runledger.worker'::regclass and objid::int8 = $1 % 2147483647 and objsubid = 2",
    )
    .bind(worker.id())
    .fetch_one(fleet.db.pool())
    .await?;
    assert_eq!(ended, 1, "the worker held its lock in one session");
    heartbeats(&fleet, other.id()).await;
    proxy.set(Mode::Pass);
    fleet.place.open("all")?;
    completes(&run).await;
    assert_eq!(claims(&fleet, run.id()).await?, 1, "a living worker was declared dead");
    fleet.drained().await?;
    worker.stop().await;
    other.stop().await;
    assert_eq!(fleet.verdict(&[]).await?, Vec::<String>::new());
    Ok(())
}

/// Returns a completed run of a worker that lost the first reply to each of these statements. The
/// worker has executed another run since.
async fn unanswered<J: Job<Output = Uuid>>(
    statements: &[&str],
    call: impl Fn(Place) -> Call<J>,
) -> anyhow::Result<(Fleet, RunInfo)> {
    let fleet = Fleet::new().await?;
    let proxy = Proxy::start(fleet.url()).await?;
    let worker = fleet.worker(proxy.url()).await?;
    fleet.place.open("all")?;
    for statement in statements {
        proxy.arm(statement, Fault::LoseRows);
    }
    let run = call(fleet.place.clone()).enqueue(&fleet.db).await?;
    completes(&run).await;
    eventually(async || proxy.n_faults(), |n_faults| *n_faults == statements.len()).await;
    completes(&jobs::check_canary().enqueue(&fleet.db).await?).await;
    fleet.drained().await?;
    worker.stop().await;
    let run = run.info().await?;
    Ok((fleet, run))
}

async fn claims(fleet: &Fleet, run_id: Uuid) -> anyhow::Result<usize> {
    Ok(Facts::load(&mut fleet.connect().await?).await?.claims_of(run_id).count())
}

/// Waits for [`HEARTBEATS`] heartbeats of a worker.
async fn heartbeats(fleet: &Fleet, worker_id: i64) {
    let last = || async {
        sqlx::query_scalar::<_, i64>(
            "select (extract(epoch from heartbeat_at) * 1e6)::int8 from runledger.worker where worker_id = $1",
        )
        .bind(worker_id)
        .fetch_one(fleet.db.pool())
        .await
        .unwrap_or_default()
    };
    let mut seen = last().await;
    for _ in 0..HEARTBEATS {
        let before = seen;
        seen = eventually(last, |at| *at > before).await;
    }
}
