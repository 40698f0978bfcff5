//! Deadlines of runs: noted where they are enqueued, and carried out by cancelling.

#[cfg(feature = "worker")]
use std::time::{Duration, Instant};

use sqlx::PgConnection;
use uuid::Uuid;

#[cfg(feature = "worker")]
use super::cancel::{CarriedOut, Found, cancel_unless_locked, note, note_locked};
use super::enqueue::NewRun;
#[cfg(feature = "worker")]
use super::error::spares_others;
#[cfg(feature = "worker")]
use super::locks::limit_beyond;
use super::sql;
use super::write::write;

/// Notes the deadlines of those runs that have one, in the transaction that has enqueued them.
pub(crate) async fn set<'r>(
    connection: &mut PgConnection,
    runs: impl Iterator<Item = &'r NewRun>,
) -> Result<(), sqlx::Error> {
    let limited: Vec<Uuid> =
        runs.filter(|run| run.options.deadline_ms.is_some()).map(|run| run.run_id).collect();
    if limited.is_empty() {
        return Ok(());
    }
    write(sql::DEADLINE_SET, |set| sqlx::query(set).bind(&limited).execute(connection)).await.map(drop)
}

/// Cancels runs whose deadline is over: at most `at_once`, for about as long as `budget`. For a run that another
/// transaction keeps locked, or whose cancel fails, stores a cancel request.
#[cfg(feature = "worker")]
pub(crate) async fn carry_out(
    connection: &mut PgConnection,
    at_once: usize,
    budget: Duration,
) -> Result<CarriedOut, sqlx::Error> {
    let began = Instant::now();
    let (mut n_ended, mut seen, mut to_wake) = (0, Vec::new(), Vec::new());
    while n_ended < at_once && began.elapsed() < budget {
        let limit = limit_beyond(i64::try_from(at_once - n_ended).unwrap_or(i64::MAX), &seen);
        let due: Vec<(Uuid, i64)> =
            sqlx::query_as(sql::DEADLINE_DUE).bind(limit).bind(&seen).fetch_all(&mut *connection).await?;
        if due.is_empty() {
            return Ok(CarriedOut { is_done: true, to_wake });
        }
        let reasons: Vec<(Uuid, String)> =
            due.into_iter().map(|(run_id, deadline_ms)| (run_id, reason(deadline_ms))).collect();
        let overdue = reasons.iter().map(|(run_id, reason)| (*run_id, Some(reason.as_str()))).collect();
        for (run_id, reason) in note_locked(connection, overdue).await? {
            match cancel_unless_locked(connection, run_id, reason).await {
                Ok(Found::LockedOrMissing) => note(connection, &[(run_id, reason)]).await?,
                Ok(Found::Free { to_wake: parent, .. }) => {
                    n_ended += 1;
                    to_wake.extend(parent);
                }
                Err(error) if spares_others(&error) => {
                    tracing::warn!(%error, %run_id, "a run whose deadline is over is not cancelled yet; a worker tries again");
                    note(connection, &[(run_id, reason)]).await?;
                }
                Err(error) => return Err(error),
            }
        }
        let runs: Vec<Uuid> = reasons.into_iter().map(|(run_id, _)| run_id).collect();
        write(sql::DEADLINE_FORGET, |forget| sqlx::query(forget).bind(&runs).execute(&mut *connection))
            .await?;
        seen.extend(runs);
    }
    Ok(CarriedOut { is_done: n_ended == 0, to_wake })
}

#[cfg(feature = "worker")]
fn reason(deadline_ms: i64) -> String {
    let limit = Duration::from_millis(u64::try_from(deadline_ms).unwrap_or(0));
    format!("it did not end within its deadline of {limit:?}")
}
