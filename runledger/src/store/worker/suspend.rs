//! Suspends runs until an event comes.

use sqlx::{Connection, PgConnection};

use crate::model::run::settle::Counters;
use crate::store::attempt::checkpoint::Fence;
use crate::store::attempt::wait::Waits;
use crate::store::locks::IfLocked;
use crate::store::places::has_repaired;
use crate::store::session::BEGIN_BRIEF;
use crate::store::sql;
use crate::store::write::{commit, write};

/// The result of a suspension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Suspended {
    /// The run waits. If an event has already come, the run is in its queue.
    Yes,
    /// The run waits, and another transaction keeps it locked. An event of that transaction does
    /// not wake the run. Call [`wake`] for that.
    Locked,
    /// The lease is lost.
    LeaseLost,
}

/// Suspends a run until the first of the events comes. If one has already come, the run is queued
/// at once.
pub(crate) async fn suspend(
    connection: &mut PgConnection,
    fence: Fence,
    waits: &Waits,
    counters: Counters,
) -> Result<Suspended, sqlx::Error> {
    match suspend_once(connection, fence, waits, counters).await {
        Err(error) if has_repaired(connection, &error, &[fence.run_id]).await? => {
            suspend_once(connection, fence, waits, counters).await
        }
        done => done,
    }
}

async fn suspend_once(
    connection: &mut PgConnection,
    fence: Fence,
    waits: &Waits,
    counters: Counters,
) -> Result<Suspended, sqlx::Error> {
    let mut tx = connection.begin_with(BEGIN_BRIEF).await?;
    let is_free = !IfLocked::Skip.lock_runs(&mut tx, &[fence.run_id]).await?.is_empty();
    let row = write(sql::SUSPEND, |park| {
        sqlx::query(park)
            .bind(fence.run_id)
            .bind(fence.token)
            .bind(&waits.any)
            .bind(&waits.all)
            .bind(&waits.signals)
            .bind(waits.wake_at)
            .bind(counters.attempt)
            .bind(counters.crashes)
            .bind(is_free)
            .fetch_optional(&mut *tx)
    })
    .await?;
    commit("suspension", tx.commit()).await?;
    Ok(match row {
        None => Suspended::LeaseLost,
        Some(_) if is_free => Suspended::Yes,
        Some(_) => Suspended::Locked,
    })
}
