//! Enforces the deadlines of runs by cancelling.

use std::time::Duration;

use sqlx::PgConnection;
use uuid::Uuid;

use super::cancel_requests::CarriedOut;
use super::set_aside::SetAside;
use crate::store::locks::limit_beyond;
use crate::store::operator::cancel::{Budget, cancel_each};
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
        let reasons: Vec<(Uuid, String)> =
            due.into_iter().map(|(run_id, deadline_ms)| (run_id, reason(deadline_ms))).collect();
        let overdue = reasons.iter().map(|(run_id, reason)| (*run_id, Some(reason.as_str()))).collect();
        let mut failed = Vec::new();
        for (run_id, error) in cancel_each(connection, overdue, &mut budget, &mut to_wake).await? {
            tracing::warn!(%error, %run_id, "a run whose deadline is over is not cancelled yet; a worker tries again");
            aside.add(run_id, Duration::ZERO);
            failed.push(run_id);
        }
        search.leave_out(reasons.iter().map(|(run_id, _)| *run_id));
        let cancelled: Vec<Uuid> =
            reasons.into_iter().map(|(run_id, _)| run_id).filter(|run_id| !failed.contains(run_id)).collect();
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
