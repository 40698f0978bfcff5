//! Carries out requests to pause that no worker holds.

use std::time::Duration;

use sqlx::PgConnection;
use uuid::Uuid;

use super::set_aside::SetAside;
use crate::store::locks::{IfLocked, free, limit_beyond};
use crate::store::operator::cancel::Budget;
use crate::store::operator::pause::take;
use crate::store::sql;
use crate::store::write::{commit, write};

/// Finishes pauses that no worker carries out, for about as long as `budget`, and drops requests
/// that came too late. Leaves runs that another transaction keeps locked for a later call. Returns
/// false if some may remain.
pub(crate) async fn carry_out(
    connection: &mut PgConnection,
    aside: &mut SetAside,
    at_once: i64,
    budget: Duration,
) -> Result<bool, sqlx::Error> {
    let (mut budget, mut search) = (Budget(Some(budget)), aside.search());
    loop {
        let mut left: Vec<Uuid> = sqlx::query_scalar(sql::PAUSE_LEFT)
            .bind(limit_beyond(at_once, search.left_out()))
            .bind(search.left_out())
            .fetch_all(&mut *connection)
            .await?;
        if left.is_empty() {
            if search.retries() {
                continue;
            }
            return Ok(true);
        }
        search.leave_out(left.iter().copied());
        let late = budget.spend(Box::pin(aside.spare(connection, &left, forget))).await?.handled();
        left.retain(|run_id| !late.contains(run_id));
        let free = free(connection, &left).await?;
        for run_id in left.iter().filter(|run_id| free.contains(run_id)) {
            let run = [*run_id];
            let paused = budget.spend(Box::pin(aside.spare(connection, &run, take_free))).await?;
            aside.add_locked(&run, &paused);
            if budget.is_spent() {
                return Ok(false);
            }
        }
        // If nothing was dropped, the next call would begin with the same requests.
        if budget.is_spent() && !late.is_empty() {
            return Ok(false);
        }
    }
}

/// Drops the requests that came too late. Returns their runs.
async fn forget(connection: &mut PgConnection, runs: &[Uuid]) -> Result<Vec<Uuid>, sqlx::Error> {
    write(sql::PAUSE_FORGET, |forget| sqlx::query_scalar(forget).bind(runs).fetch_all(connection)).await
}

/// Pauses the runs that no other transaction keeps locked. Returns the paused runs.
async fn take_free(connection: &mut PgConnection, runs: &[Uuid]) -> Result<Vec<Uuid>, sqlx::Error> {
    let mut tx = IfLocked::Skip.begin(connection).await?;
    let mut paused = Vec::new();
    for run_id in IfLocked::Skip.lock_runs(&mut tx, runs).await? {
        if take(&mut tx, run_id).await? {
            paused.push(run_id);
        }
    }
    commit("pause_left", tx.commit()).await?;
    Ok(paused)
}
