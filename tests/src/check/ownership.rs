//! I3: what an attempt writes is kept only while its token is the run's newest. I15: a worker claims only what it knows.

use std::collections::HashSet;

use sqlx::PgConnection;
use uuid::Uuid;

use super::facts::Written;
use super::{Facts, Violations};

/// Steps and ends that were written by an attempt which had lost its run. The bodies give their token as their output.
#[must_use]
pub fn stale_writes(facts: &Facts) -> Violations {
    let of_steps: HashSet<(Uuid, Option<&str>)> =
        facts.steps.iter().map(|step| (step.run_id, step.output.as_deref())).collect();
    // The end of a workflow repeats the token of one of its steps, which an earlier attempt may have recorded.
    let repeats = |end: &&Written| of_steps.contains(&(end.run_id, end.output.as_deref()));
    let own_ends = facts.ends.iter().filter(|end| !repeats(end));
    facts.steps.iter().chain(own_ends).filter_map(|written| stale(facts, written)).collect()
}

fn stale(facts: &Facts, written: &Written) -> Option<String> {
    // What a child gave is the token of the child's own attempt, which may have been claimed together with an attempt of this run.
    if written.key.ends_with(".result") {
        return None;
    }
    let Ok(token) = serde_json::from_str::<Uuid>(written.output.as_deref()?) else { return None };
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
