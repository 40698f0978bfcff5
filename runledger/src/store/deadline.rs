//! Deadlines of runs: noted where they are enqueued, and carried out by cancelling.

#[cfg(feature = "worker")]
use std::time::{Duration, Instant};

use sqlx::PgConnection;
use uuid::Uuid;

use super::enqueue::NewRun;
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
/// another transaction keeps locked.
#[cfg(feature = "worker")]
pub(crate) async fn carry_out(
    connection: &mut PgConnection,
    at_once: usize,
    budget: Duration,
) -> Result<(), sqlx::Error> {
    let began = Instant::now();
    let (mut n_ended, mut locked) = (0, Vec::new());
    while n_ended < at_once && began.elapsed() < budget {
        let limit = i64::try_from(at_once - n_ended).unwrap_or(i64::MAX);
        let due: Vec<(Uuid, i64)> =
            sqlx::query_as(sql::DEADLINE_DUE).bind(limit).bind(&locked).fetch_all(&mut *connection).await?;
        if due.is_empty() {
            break;
        }
        for (run_id, deadline_ms) in &due {
            let limit = Duration::from_millis(u64::try_from(*deadline_ms).unwrap_or(0));
            let reason = format!("it did not end within its deadline of {limit:?}");
            if super::cancel::cancel_unless_locked(connection, *run_id, Some(&reason)).await? {
                n_ended += 1;
            } else {
                locked.push(*run_id);
            }
        }
        let runs: Vec<Uuid> = due.into_iter().map(|(run_id, _)| run_id).collect();
        write(sql::DEADLINE_FORGET, |forget| sqlx::query(forget).bind(&runs).execute(&mut *connection))
            .await?;
    }
    Ok(())
}
