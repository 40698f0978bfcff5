//! I3: the database keeps an attempt's writes only while its token is the run's newest. I15: a
//! worker claims only runs of jobs that it serves.

use std::collections::HashSet;

use sqlx::PgConnection;
use uuid::Uuid;

use super::facts::Written;
use super::{Facts, Violations};

/// Finds steps and ends written by an attempt that had lost its run. The bodies return their token.
#[must_use]
pub fn stale_writes(facts: &Facts) -> Violations {
    let of_steps: HashSet<(Uuid, Option<&str>)> =
        facts.steps.iter().map(|step| (step.run_id, step.output.as_deref())).collect();
    // The end of a workflow repeats the token of one of its steps, which an earlier attempt may
    // have recorded.
    let repeats = |end: &&Written| of_steps.contains(&(end.run_id, end.output.as_deref()));
    let own_ends = facts.ends.iter().filter(|end| !repeats(end));
    facts.steps.iter().chain(own_ends).filter_map(|written| stale(facts, written)).collect()
}

fn stale(facts: &Facts, written: &Written) -> Option<String> {
    // The output of a child is the token of the child's own attempt. That attempt may have been
    // claimed together with an attempt of this run.
    if written.key.split('#').next().is_some_and(|name| name.ends_with(".result")) {
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

/// Finds claims by workers that do not serve the job (I15).
///
/// # Errors
/// If the database does not answer.
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

#[test]
fn write_after_next_claim_is_violation_except_child_result() {
    use super::facts::Claim;

    let [run_id, lost, heir] = [(); 3].map(|()| Uuid::now_v7());
    let claim = |token, claims, at_us| Claim { run_id, token, worker_id: 1, claims, at_us };
    let n_wrong = |key: &str, token: Uuid, at_us| {
        let output = Some(format!("\"{token}\""));
        let steps = vec![Written { output, ..Written::step(run_id, key, at_us) }];
        stale_writes(&Facts { steps, ..Facts::of_claims(vec![claim(lost, 1, 1), claim(heir, 2, 5)]) }).len()
    };
    assert_eq!(n_wrong("charge", lost, 4), 0);
    assert_eq!(n_wrong("charge", lost, 6), 1);
    assert_eq!(n_wrong("charge", heir, 6), 0);
    assert_eq!(n_wrong("charge.result", lost, 6) + n_wrong("charge.result#3", lost, 6), 0);
}
