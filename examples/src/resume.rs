//! Finding the run that a killed process has left.

use std::path::Path;

use runledger::{Call, ClientError, Db, Job, RunHandle};

use crate::files::{digest_of, text_of};

/// The queue of a folder's surveys: of its own, so that a process works on the folder that it was asked for and on no other.
#[must_use]
pub fn queue_of(folder: &Path) -> String {
    format!("survey-{}", &digest_of(text_of(folder).as_bytes())[..16])
}

/// The newest unfinished run of `call` on this queue, or a new one where there is none. With `fresh` unfinished ones are cancelled.
///
/// The idempotency key is the queue and a number, so two processes that begin at once share one run.
///
/// # Errors
/// The database failed, or the call was refused.
pub async fn resume_or_begin<J: Job>(
    db: &Db,
    queue: &str,
    fresh: bool,
    call: impl Fn() -> Call<J>,
) -> Result<RunHandle<J>, ClientError> {
    let keyed = |key: String| call().queue(queue).idempotency_key(key).enqueue(db);
    let (mut unfinished, n_runs) = runs_of(db, queue).await?;
    if fresh {
        for key in unfinished.drain(..) {
            keyed(key).await?.cancel("a fresh survey was asked for").await?;
        }
    }
    keyed(unfinished.pop().unwrap_or_else(|| format!("{queue}/{n_runs}"))).await
}

/// The keys of the unfinished runs, oldest first, and the number of all.
async fn runs_of(db: &Db, queue: &str) -> Result<(Vec<String>, i64), ClientError> {
    let sql = "
        select
            coalesce(array_agg(idempotency_key order by created_at) filter (where finished_at is null), '{}'),
            count(*)
        from runledger.run_state
        where queue = $1 and idempotency_key is not null";
    Ok(sqlx::query_as(sql).bind(queue).fetch_one(db.pool()).await?)
}
