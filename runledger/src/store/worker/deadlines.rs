//! Enforces the deadlines of runs by cancelling.

use std::time::Duration;

use sqlx::PgConnection;
use uuid::Uuid;

use super::set_aside::{SetAside, Spared};
use crate::store::locks::{IfLocked, free, limit_beyond};
use crate::store::operator::cancel::{Budget, cancel_or_note};
use crate::store::sql;
use crate::store::write::write;

/// Cancels overdue runs, the longest overdue first, for about as long as `budget`. Leaves out runs
/// that are set aside. If another transaction keeps a run locked, or its cancel fails, this stores
/// a cancel request. Appends the parents to wake afterwards, which are complete even if the call
/// fails. Returns false if there may be more to do at once.
pub(crate) async fn carry_out(
    connection: &mut PgConnection,
    aside: &mut SetAside,
    at_once: i64,
    budget: Duration,
    to_wake: &mut Vec<Uuid>,
) -> Result<bool, sqlx::Error> {
    let (mut budget, mut search) = (Budget(Some(budget)), aside.search());
    loop {
        let limit = limit_beyond(at_once, search.left_out());
        let query = sqlx::query_as(sql::DEADLINE_DUE).bind(limit).bind(search.left_out());
        let mut due: Vec<(Uuid, i64)> = query.fetch_all(&mut *connection).await?;
        if due.is_empty() {
            if search.retries() {
                continue;
            }
            return Ok(true);
        }
        let ids: Vec<Uuid> = due.iter().map(|(run_id, _)| *run_id).collect();
        search.leave_out(ids.iter().copied());
        // Most runs have ended within their deadlines.
        let over = budget.spend(Box::pin(aside.spare(connection, &ids, forget))).await?.handled();
        due.retain(|(run_id, _)| !over.contains(run_id));
        let live: Vec<Uuid> = due.iter().map(|(run_id, _)| *run_id).collect();
        let free = free(connection, &live).await?;
        let mut cancelled = Vec::new();
        for (run_id, deadline_ms) in due {
            let is_free = free.contains(&run_id);
            let cancel = async move |connection: &mut PgConnection, _: &[Uuid]| {
                let reason = reason(deadline_ms);
                let parent =
                    cancel_or_note(connection, run_id, Some(&reason), is_free, IfLocked::Skip).await?;
                Ok(parent.into_iter().collect())
            };
            let Spared { done: parents, failed } =
                budget.spend(Box::pin(aside.spare(connection, &[run_id], cancel))).await?;
            to_wake.extend(parents);
            if failed.is_empty() {
                cancelled.push(run_id);
            }
            if budget.is_spent() {
                break;
            }
        }
        let forgotten = Box::pin(aside.spare(connection, &cancelled, forget)).await?;
        aside.add_locked(&cancelled, &forgotten);
        if budget.is_spent() {
            return Ok(false);
        }
    }
}

/// Drops the deadlines of the runs that need no cancel any more. Returns these runs.
async fn forget(connection: &mut PgConnection, runs: &[Uuid]) -> Result<Vec<Uuid>, sqlx::Error> {
    write(sql::DEADLINE_FORGET, |forget| sqlx::query_scalar(forget).bind(runs).fetch_all(connection)).await
}

fn reason(deadline_ms: i64) -> String {
    let limit = Duration::from_millis(u64::try_from(deadline_ms).unwrap_or(0));
    format!("it did not end within its deadline of {limit:?}")
}
