//! Wakes suspended runs whose timer is due, or whose wake-up was lost.

use std::time::Duration;

use sqlx::PgConnection;
use uuid::Uuid;

use super::set_aside::SetAside;
use crate::store::attempt::wait::wake;
use crate::store::locks::IfLocked;
use crate::store::operator::cancel::Budget;
use crate::store::sql;
use crate::store::write::write;

/// Queues suspended runs whose wait has reached its limit, the longest overdue first. Leaves out
/// runs that are set aside. Sets aside runs that another transaction keeps locked. Returns how many
/// runs it found. If the database refuses some, ends after about `budget`.
pub(crate) async fn wake_due(
    connection: &mut PgConnection,
    aside: &mut SetAside,
    limit: i64,
    budget: Duration,
) -> Result<usize, sqlx::Error> {
    let mut search = aside.search();
    let mut due = timers_due(connection, limit, search.left_out()).await?;
    let n_left = limit - i64::try_from(due.len()).unwrap_or(limit);
    if n_left > 0 && search.retries() {
        search.leave_out(due.iter().copied());
        due.extend(timers_due(connection, n_left, search.left_out()).await?);
    }
    let wake = async |connection: &mut PgConnection, runs: &[Uuid]| {
        write(sql::WAKE_DUE, |wake| sqlx::query_scalar(wake).bind(runs).fetch_all(connection)).await
    };
    if due.is_empty() {
        return Ok(0);
    }
    let tried = aside.spare_within(budget, connection, &due, wake).await?;
    if tried.done.len() + tried.failed.len() < due.len() {
        // Other transactions have woken the rest, or keep them locked.
        let still_due: Vec<Uuid> =
            sqlx::query_scalar(sql::STILL_DUE).bind(&due).fetch_all(&mut *connection).await?;
        aside.add_locked(&still_due, &tried);
    }
    Ok(due.len())
}

async fn timers_due(
    connection: &mut PgConnection,
    limit: i64,
    left_out: &[Uuid],
) -> Result<Vec<Uuid>, sqlx::Error> {
    sqlx::query_scalar(sql::TIMERS_DUE).bind(limit).bind(left_out).fetch_all(connection).await
}

/// Wakes the runs that wait for ended children, except runs that are set aside. Finds none unless a
/// wake-up was lost. Ends after about `budget`. Returns false if some may remain.
pub(crate) async fn wake_stranded(
    connection: &mut PgConnection,
    aside: &mut SetAside,
    at_once: i64,
    budget: Duration,
) -> Result<bool, sqlx::Error> {
    let (mut budget, mut search) = (Budget(Some(budget)), aside.search());
    loop {
        let query = sqlx::query_scalar(sql::STRANDED).bind(at_once).bind(search.left_out());
        let stranded: Vec<Uuid> = query.fetch_all(&mut *connection).await?;
        if stranded.is_empty() {
            if search.retries() {
                continue;
            }
            return Ok(true);
        }
        let wake =
            async |connection: &mut PgConnection, runs: &[Uuid]| wake(connection, runs, IfLocked::Skip).await;
        let left = budget.left();
        budget.spend(Box::pin(aside.spare_within(left, connection, &stranded, wake))).await?;
        if budget.is_spent() {
            return Ok(false);
        }
        search.leave_out(stranded);
    }
}
