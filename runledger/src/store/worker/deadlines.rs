//! Enforces the deadlines of runs by cancelling.

use std::time::Duration;

use sqlx::PgConnection;
use uuid::Uuid;

use super::cancel_requests::CarriedOut;
use super::set_aside::{SetAside, Spared};
use crate::store::locks::{free, limit_beyond};
use crate::store::operator::cancel::{Budget, cancel_or_note};
use crate::store::sql;
use crate::store::write::write;

/// Cancels overdue runs, the longest overdue first, for about as long as `budget`. Leaves out runs
/// that are set aside. If another transaction keeps a run locked, or its cancel fails, this stores
/// a cancel request.
pub(crate) async fn carry_out(
    connection: &mut PgConnection,
    aside: &mut SetAside,
    at_once: i64,
    budget: Duration,
) -> Result<CarriedOut, sqlx::Error> {
    let (mut budget, mut to_wake) = (Budget(Some(budget)), Vec::new());
    let mut search = aside.search();
    loop {
        let limit = limit_beyond(at_once, search.left_out());
        let query = sqlx::query_as(sql::DEADLINE_DUE).bind(limit).bind(search.left_out());
        let due: Vec<(Uuid, i64)> = query.fetch_all(&mut *connection).await?;
        if due.is_empty() {
            if search.retries() {
                continue;
            }
            return Ok(CarriedOut { is_done: true, to_wake });
        }
        let ids: Vec<Uuid> = due.iter().map(|(run_id, _)| *run_id).collect();
        let free = free(connection, &ids).await?;
        search.leave_out(ids);
        let mut cancelled = Vec::new();
        for (run_id, deadline_ms) in due {
            let is_free = free.contains(&run_id);
            let cancel = async move |connection: &mut PgConnection, _: &[Uuid]| {
                let parent = cancel_or_note(connection, run_id, Some(&reason(deadline_ms)), is_free).await?;
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
        Box::pin(aside.spare(connection, &cancelled, forget)).await?;
        if budget.is_spent() {
            return Ok(CarriedOut { is_done: false, to_wake });
        }
    }
}

/// Drops the deadlines of the runs that need no cancel any more.
async fn forget(connection: &mut PgConnection, runs: &[Uuid]) -> Result<Vec<Uuid>, sqlx::Error> {
    write(sql::DEADLINE_FORGET, |forget| sqlx::query(forget).bind(runs).execute(connection)).await?;
    Ok(Vec::new())
}

fn reason(deadline_ms: i64) -> String {
    let limit = Duration::from_millis(u64::try_from(deadline_ms).unwrap_or(0));
    format!("it did not end within its deadline of {limit:?}")
}
