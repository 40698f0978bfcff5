//! Deadlines of runs: noted where they are enqueued, and carried out by cancelling.

#[cfg(feature = "worker")]
use std::time::{Duration, Instant};

use sqlx::PgConnection;
use uuid::Uuid;

#[cfg(feature = "worker")]
use super::cancel::{Found, cancel_unless_locked};
use super::enqueue::NewRun;
#[cfg(feature = "worker")]
use super::locks::free;
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

/// Cancels runs whose deadline is over: at most `at_once`, for about as long as `budget`. Leaves out those that
/// another transaction keeps locked. Returns the parents to wake afterwards: other transactions keep them locked.
#[cfg(feature = "worker")]
pub(crate) async fn carry_out(
    connection: &mut PgConnection,
    at_once: usize,
    budget: Duration,
) -> Result<Vec<Uuid>, sqlx::Error> {
    let began = Instant::now();
    let (mut n_ended, mut locked, mut to_wake) = (0, Vec::new(), Vec::new());
    while n_ended < at_once && began.elapsed() < budget {
        // Each look is longer than all that is locked, so that few looks find what is behind that.
        let limit = i64::try_from((at_once - n_ended).saturating_add(locked.len())).unwrap_or(i64::MAX);
        let due: Vec<(Uuid, i64)> =
            sqlx::query_as(sql::DEADLINE_DUE).bind(limit).bind(&locked).fetch_all(&mut *connection).await?;
        if due.is_empty() {
            break;
        }
        let runs: Vec<Uuid> = due.iter().map(|(run_id, _)| *run_id).collect();
        let free = free(connection, &runs).await?;
        locked.extend(runs.iter().filter(|run_id| !free.contains(run_id)));
        for (run_id, deadline_ms) in due.iter().filter(|(run_id, _)| free.contains(run_id)) {
            let limit = Duration::from_millis(u64::try_from(*deadline_ms).unwrap_or(0));
            let reason = format!("it did not end within its deadline of {limit:?}");
            match cancel_unless_locked(connection, *run_id, Some(&reason)).await? {
                Found::LockedOrMissing => locked.push(*run_id),
                Found::Free { to_wake: parent, .. } => {
                    n_ended += 1;
                    to_wake.extend(parent);
                }
            }
        }
        write(sql::DEADLINE_FORGET, |forget| sqlx::query(forget).bind(&runs).execute(&mut *connection))
            .await?;
    }
    Ok(to_wake)
}
