//! I3: what an attempt writes is kept only while its token is the run's newest. I15: a worker claims only what it knows.

use sqlx::PgConnection;
use uuid::Uuid;

use super::facts::Written;
use super::{Facts, Violations};

/// Steps and ends that were written by an attempt which had lost its run. The bodies give their token as their output.
#[must_use]
pub fn stale_writes(facts: &Facts) -> Violations {
    facts.steps.iter().chain(&facts.ends).filter_map(|written| stale(facts, written)).collect()
}

fn stale(facts: &Facts, written: &Written) -> Option<String> {
    let Ok(token) = serde_json::from_str::<Uuid>(written.output.as_deref()?) else { return None };
    // The end of a workflow repeats the token of one of its steps, which an earlier attempt may have recorded.
    if facts
        .steps
        .iter()
        .any(|step| step.run_id == written.run_id && written.key.is_empty() && step.output == written.output)
    {
        return None;
    }
    let next = facts.claim_after(written.run_id, token)?;
    (written.at_us > next.at_us).then(|| {
        format!(
            "`{}` of run {} was written by token {token} after claim {}",
            written.key, written.run_id, next.claims
        )
    })
}

/// Claims by workers that do not serve the job (I15).
///
/// # Errors
/// When the database does not answer.
pub async fn foreign_claims(connection: &mut PgConnection) -> Result<Violations, sqlx::Error> {
    sqlx::query_scalar(
        "select format('worker %s claimed run %s of `%s`, which it does not serve', worker_id, run_id, run.job)
        from audit.claim
        join runledger.run using (run_id)
        join runledger.worker using (worker_id)
        where run.job <> all (worker.jobs)",
    )
    .fetch_all(connection)
    .await
}
