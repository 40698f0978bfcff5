//! I2: a recorded step is not run again, and what is recorded is immutable. I4: the writes of a transactional body commit
//! once.

use sqlx::PgConnection;

use super::{Event, Facts, Violations, What};

/// Bodies that began under a claim that came after their step was recorded (I2a).
#[must_use]
pub fn repeated(events: &[Event], facts: &Facts) -> Violations {
    events
        .iter()
        .filter(|event| event.what == What::Start)
        .filter_map(|event| {
            let step =
                facts.steps.iter().find(|step| step.run_id == event.run_id && step.key == event.key)?;
            let claim = facts.claim_with(event.run_id, event.token)?;
            (claim.at_us > step.at_us).then(|| {
                format!(
                    "step `{}` of run {} was recorded before claim {}, and ran again",
                    event.key, event.run_id, claim.claims
                )
            })
        })
        .collect()
}

/// Bodies that began after another claim had taken their run away (I2c). A schedule whose pauses are all before the guard
/// allows none.
#[must_use]
pub fn stale_starts(events: &[Event], facts: &Facts) -> Violations {
    events
        .iter()
        .filter(|event| event.what == What::Start)
        .filter_map(|event| {
            let next = facts.claim_after(event.run_id, event.token)?;
            (event.at_us > next.at_us).then(|| {
                format!(
                    "body `{}` of run {} began in process {} after claim {}",
                    event.key, event.run_id, event.pid, next.claims
                )
            })
        })
        .collect()
}

/// Two bodies of one step at the same time, unless one of them is of a process that was paused (I2c, I3).
#[must_use]
pub fn unexplained_overlaps(events: &[Event], paused: &[u32]) -> Violations {
    let end_of = |start: &Event| {
        let same = |end: &&Event| end.what == What::End && end.token == start.token && end.key == start.key;
        events.iter().find(|end| same(end) && end.run_id == start.run_id).map_or(start.at_us, |end| end.at_us)
    };
    let starts: Vec<&Event> = events.iter().filter(|event| event.what == What::Start).collect();
    let mut violations = Vec::new();
    for (at, one) in starts.iter().enumerate() {
        for other in starts.iter().skip(at + 1) {
            let same = one.run_id == other.run_id && one.key == other.key && one.token != other.token;
            let overlap = one.at_us <= end_of(other) && other.at_us <= end_of(one);
            if same && overlap && !paused.contains(&one.pid) && !paused.contains(&other.pid) {
                violations.push(format!(
                    "body `{}` of run {} ran in processes {} and {} at once",
                    one.key, one.run_id, one.pid, other.pid
                ));
            }
        }
    }
    violations
}

/// Rows of the ledger that are not exactly one for a completed run and none for any other (I4).
///
/// # Errors
/// When the database does not answer.
pub async fn not_once(connection: &mut PgConnection) -> Result<Violations, sqlx::Error> {
    sqlx::query_scalar(
        "select format('run %s is %s and has %s rows of the ledger', run_id, coalesce(state, 'not ended'), n)
        from (
            select run.run_id, outcome.state, (select count(*) from audit.ledger where ledger.run_id = run.run_id) as n
            from runledger.run
            left join runledger.outcome using (run_id)
            where run.job in ('check.post', 'check.writes')
        ) as posted
        where n <> case when state = 'completed' then 1 else 0 end",
    )
    .fetch_all(connection)
    .await
}
