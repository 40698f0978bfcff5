//! I3 after a failover that lost the newest commits. The server has forgotten a claim that its
//! worker still has, and the run's next claim gets the same number. Only the token tells the two
//! apart.

use runledger::{Call, Job, RunState};
use runledger_tests::check::fleet::completes;
use runledger_tests::check::{Fleet, Place, jobs};
use runledger_tests::eventually;
use sqlx::{Connection, PgConnection};
use uuid::Uuid;

use super::WORKER;

/// Reduces the claimed run to the state on a standby that received nothing after the enqueue.
/// Bypasses the trigger against changes.
const FORGET_CLAIM: &str = "
    alter table runledger.step disable trigger changed;
    delete from runledger.step;
    alter table runledger.step enable trigger changed;
    with forgotten as (
        delete from runledger.lease returning run_id
    )
    insert into runledger.ready (run_id, queue, job, priority, ready_at, cause, attempt, crashes, claims)
    select run_id, run.queue, run.job, run.priority, statement_timestamp(), 'enqueued', 0, 0, 0
    from forgotten
    join runledger.run using (run_id);
    notify runledger_ready";

/// Counts the sessions that have got the answer to a write of a step or an end since some time.
const ANSWERED: &str = "
    select count(*)
    from pg_stat_activity
    where datname = current_database() and state = 'idle' and query ~ '^-- (checkpoint|checkpoint_fresh|settle|settle_completed):' and query_start > $1::timestamptz";

#[tokio::test(flavor = "multi_thread")]
async fn lost_claim_cannot_record_step_despite_equal_claim_number() -> anyhow::Result<()> {
    write_by_forgotten_claim(2, jobs::check_steps).await
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_claim_cannot_complete_run_despite_equal_claim_number() -> anyhow::Result<()> {
    write_by_forgotten_claim(1, jobs::check_gated).await
}

/// A worker writes for a claim that the server has forgotten, from its body number `n_bodies`.
/// Another worker is in the same body, under a claim with the same number.
async fn write_by_forgotten_claim<J: Job<Output = Uuid>>(
    n_bodies: usize,
    call: impl Fn(Place) -> Call<J>,
) -> anyhow::Result<()> {
    let fleet = Fleet::new().await?;
    let old = fleet.process(WORKER).await?;
    let run = call(fleet.place.clone()).enqueue(&fleet.db).await?;
    fleet.started(run.id(), n_bodies).await?;
    let heir = fleet.process(WORKER).await?;
    // From now on the old owner claims nothing. Until it has written, it also learns nothing: its
    // heartbeats wait.
    let mut connection = fleet.connect().await?;
    sqlx::query("update runledger.worker set state = 'draining' where worker_id = $1")
        .bind(old.worker_id)
        .execute(&mut connection)
        .await?;
    let mut deaf = connection.begin().await?;
    sqlx::query("select from runledger.worker where worker_id = $1 for update")
        .bind(old.worker_id)
        .execute(&mut *deaf)
        .await?;
    sqlx::raw_sql(FORGET_CLAIM).execute(fleet.db.pool()).await?;
    assert_eq!(fleet.started(run.id(), 2 * n_bodies).await?.pid, heir.pid);
    let numbers: Vec<i32> = sqlx::query_scalar("select claims from audit.claim where run_id = $1")
        .bind(run.id())
        .fetch_all(fleet.db.pool())
        .await?;
    assert_eq!(numbers, [1, 1]);
    let before = now(&mut fleet.connect().await?).await?;
    fleet.place.open(&old.pid.to_string())?;
    let answered =
        async || sqlx::query_scalar::<_, i64>(ANSWERED).bind(&before).fetch_one(fleet.db.pool()).await.ok();
    eventually(answered, |n| *n >= Some(1)).await;
    assert_eq!(run.state().await?, RunState::Running, "the old owner has ended the run of another");
    assert_eq!(run.steps().await?.len(), n_bodies - 1, "the old owner has recorded a step of another's run");
    deaf.rollback().await?;
    fleet.place.open("all")?;
    completes(&run).await;
    fleet.drained().await?;
    assert_eq!(fleet.verdict(&[old.pid]).await?, Vec::<String>::new());
    Ok(())
}

async fn now(connection: &mut PgConnection) -> Result<String, sqlx::Error> {
    sqlx::query_scalar("select clock_timestamp()::text").fetch_one(connection).await
}
