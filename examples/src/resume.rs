//! Finds the run that a killed process left.

use std::path::Path;

use runledger::{Call, ClientError, Db, Job, RunHandle};

use crate::files::{digest_of, text_of};

/// Returns the queue of a folder's surveys. Each folder has its own queue, so that a process works
/// only on the folder that it was started for.
#[must_use]
pub fn queue_of(folder: &Path) -> String {
    format!("survey-{}", &digest_of(text_of(folder).as_bytes())[..16])
}

/// Returns the newest unfinished run of `call` on this queue, or enqueues a new one. With `fresh`,
/// it cancels the unfinished runs first.
///
/// The idempotency key is the queue and a number, so that two processes that start at once share
/// one run.
///
/// # Errors
/// If the database fails, or the call is refused.
pub async fn resume_or_begin<J: Job>(
    db: &Db,
    queue: &str,
    fresh: bool,
    call: impl Fn() -> Call<J>,
) -> Result<RunHandle<J::Output>, ClientError> {
    let keyed = |key: String| call().queue(queue).idempotency_key(key).enqueue(db);
    let (mut unfinished, n_runs) = runs_of(db, queue).await?;
    if fresh {
        for key in unfinished.drain(..) {
            keyed(key).await?.cancel("a fresh survey was asked for").await?;
        }
    }
    keyed(unfinished.pop().unwrap_or_else(|| format!("{queue}/{n_runs}"))).await
}

/// The keys of the unfinished runs, oldest first, and the number of all runs.
async fn runs_of(db: &Db, queue: &str) -> Result<(Vec<String>, i64), ClientError> {
    let sql = "
        select
            coalesce(array_agg(idempotency_key order by created_at) filter (where finished_at is null), '{}'),
            count(*)
        from runledger.run_state
        where queue = $1 and idempotency_key is not null";
    Ok(sqlx::query_as(sql).bind(queue).fetch_one(db.pool()).await?)
}
