//! I1 and I5 from the clients' side: compares their calls and the answers with the database.

use std::collections::{HashMap, HashSet};

use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row};
use uuid::Uuid;

use super::Violations;

/// The answer that a client received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// The run exists.
    Ok,
    /// The call was rolled back.
    RolledBack,
    /// No answer: the client gave up the call, or the call failed ambiguously.
    Unknown,
}

/// A call of a client.
#[derive(Clone, Debug)]
pub struct Submission {
    /// The run, if the client knows its id.
    pub run_id: Option<Uuid>,
    /// Its idempotency key.
    pub key: Option<String>,
    /// The unique number of this call, in its input ([`Place::of_call`](super::Place::of_call)).
    /// The checker uses it to find the run of an unanswered call.
    pub call: Option<Uuid>,
    /// The run of which this call is a rerun.
    pub origin: Option<Uuid>,
    /// The answer to the call.
    pub told: Told,
}

impl Submission {
    /// An acknowledged call without a key.
    #[must_use]
    pub fn acknowledged(run_id: Uuid) -> Self {
        Self { run_id: Some(run_id), key: None, call: None, origin: None, told: Told::Ok }
    }

    /// An unanswered call with this number in its input.
    #[must_use]
    pub fn unanswered(call: Uuid) -> Self {
        Self { run_id: None, key: None, call: Some(call), origin: None, told: Told::Unknown }
    }

    /// An unanswered call with this key.
    #[must_use]
    pub fn unanswered_key(key: &impl ToString) -> Self {
        Self { run_id: None, key: Some(key.to_string()), call: None, origin: None, told: Told::Unknown }
    }

    /// An unanswered rerun of a run.
    #[must_use]
    pub fn unanswered_link(origin: Uuid) -> Self {
        Self { run_id: None, key: None, call: None, origin: Some(origin), told: Told::Unknown }
    }
}

/// A requested run, as the database has it.
#[derive(Clone, Debug)]
pub struct Asked {
    /// The run.
    pub run_id: Uuid,
    /// Its idempotency key.
    pub key: Option<String>,
    /// The number of the call in its input.
    pub call: Option<Uuid>,
    /// The run of which this run is a rerun. Its input is the original's, including the call
    /// number.
    pub origin: Option<Uuid>,
}

/// Compares the runs in the database with the calls: see [`mismatched`].
///
/// # Errors
/// If the database does not answer.
pub async fn lost_or_invented(
    connection: &mut PgConnection,
    submissions: &[Submission],
) -> Result<Violations, sqlx::Error> {
    let rows = sqlx::query(
        "select run_id, idempotency_key, origin_id, case when origin_id is null then (input #>> '{place,call}')::uuid end as call
        from runledger.run
        where parent_id is null",
    );
    let runs: Vec<Asked> = rows.fetch_all(connection).await?.iter().map(asked).collect::<Result<_, _>>()?;
    Ok(mismatched(&runs, submissions))
}

fn asked(row: &PgRow) -> Result<Asked, sqlx::Error> {
    Ok(Asked {
        run_id: row.try_get("run_id")?,
        key: row.try_get("idempotency_key")?,
        call: row.try_get("call")?,
        origin: row.try_get("origin_id")?,
    })
}

/// Finds missing runs that were acknowledged (I1a), existing runs that were rolled back (I1b),
/// calls that created several runs, and runs that no client requested.
#[must_use]
pub fn mismatched(runs: &[Asked], submissions: &[Submission]) -> Violations {
    let there: HashSet<Uuid> = runs.iter().map(|run| run.run_id).collect();
    let mut of_call: HashMap<Uuid, usize> = HashMap::new();
    for call in runs.iter().filter_map(|run| run.call) {
        *of_call.entry(call).or_default() += 1;
    }
    let mut violations = Violations::new();
    for Submission { run_id, call, told, .. } in submissions {
        match (told, run_id.map(|run_id| (run_id, there.contains(&run_id)))) {
            (Told::Ok, Some((run_id, false))) => {
                violations.push(format!("run {run_id} was acknowledged and is not there"));
            }
            (Told::RolledBack, Some((run_id, true))) => {
                violations.push(format!("run {run_id} was rolled back and is there"));
            }
            (Told::Ok | Told::RolledBack | Told::Unknown, _) => {}
        }
        let Some(call) = call else { continue };
        let n_runs = of_call.get(call).copied().unwrap_or_default();
        let as_told = match told {
            Told::Ok => n_runs == 1,
            Told::Unknown => n_runs <= 1,
            Told::RolledBack => n_runs == 0,
        };
        if !as_told {
            violations.push(format!("call {call} was told {told:?} and became {n_runs} runs"));
        }
    }
    violations.extend(mislinked(runs, submissions));
    let asked: HashSet<Uuid> = submissions.iter().filter_map(|submission| submission.run_id).collect();
    let calls: HashSet<Uuid> = submissions.iter().filter_map(|submission| submission.call).collect();
    let keys: HashSet<&str> = submissions.iter().filter_map(|submission| submission.key.as_deref()).collect();
    let origins: HashSet<Uuid> = submissions.iter().filter_map(|submission| submission.origin).collect();
    let is_known = |run: &&Asked| {
        asked.contains(&run.run_id)
            || run.call.is_some_and(|call| calls.contains(&call))
            || run.key.as_deref().is_some_and(|key| keys.contains(key))
            || run.origin.is_some_and(|origin| origins.contains(&origin))
    };
    let strangers = runs.iter().filter(|run| !is_known(run));
    violations.extend(strangers.map(|run| format!("nobody asked for run {}", run.run_id)));
    violations
}

/// Finds runs with more reruns than clients requested.
fn mislinked(runs: &[Asked], submissions: &[Submission]) -> Violations {
    let mut of_origin: HashMap<Uuid, usize> = HashMap::new();
    for origin in runs.iter().filter_map(|run| run.origin) {
        *of_origin.entry(origin).or_default() += 1;
    }
    let mut asked: HashMap<Uuid, (HashSet<Uuid>, usize)> = HashMap::new();
    for submission in submissions {
        let Some(origin) = submission.origin else { continue };
        let (known, n_unknown) = asked.entry(origin).or_default();
        match submission.run_id {
            Some(run_id) => drop(known.insert(run_id)),
            None => *n_unknown += 1,
        }
    }
    let doubled = asked.iter().filter_map(|(origin, (known, n_unknown))| {
        let (n_runs, n_asked) = (of_origin.get(origin).copied().unwrap_or_default(), known.len() + n_unknown);
        (n_runs > n_asked).then(|| {
            format!("another go at run {origin} was asked for {n_asked} times and became {n_runs} runs")
        })
    });
    doubled.collect()
}

/// Finds keys with several runs, in the answers or in the database (I5).
///
/// # Errors
/// If the database does not answer.
pub async fn doubled_keys(
    connection: &mut PgConnection,
    submissions: &[Submission],
) -> Result<Violations, sqlx::Error> {
    let mut given: HashMap<&str, HashSet<Uuid>> = HashMap::new();
    for submission in submissions.iter().filter(|submission| submission.told == Told::Ok) {
        if let (Some(key), Some(run_id)) = (&submission.key, submission.run_id) {
            given.entry(key).or_default().insert(run_id);
        }
    }
    let mut violations: Violations = given
        .into_iter()
        .filter(|(_, runs)| runs.len() > 1)
        .map(|(key, runs)| format!("callers with key `{key}` were given {} runs", runs.len()))
        .collect();
    let doubled: Vec<String> = sqlx::query_scalar(
        "select format('key `%s` of `%s` has %s runs', idempotency_key, job, count(*))
        from runledger.run
        where idempotency_key is not null
        group by tenant, job, idempotency_key
        having count(*) > 1",
    )
    .fetch_all(connection)
    .await?;
    violations.extend(doubled);
    Ok(violations)
}

/// Finds runs and business rows that one transaction should have written together, but of which one
/// is missing (I1b). The run's key is the row's id.
///
/// # Errors
/// If the database does not answer.
pub async fn torn(connection: &mut PgConnection) -> Result<Violations, sqlx::Error> {
    sqlx::query_scalar(
        "select format('business row %s, run %s', business_id, run_id)
        from audit.business
        full join (select run_id, idempotency_key from runledger.run where tenant = 'torn') as run on idempotency_key = business_id::text
        where business_id is null or run_id is null",
    )
    .fetch_all(connection)
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run_of(call: Uuid) -> Asked {
        Asked { run_id: Uuid::now_v7(), key: None, call: Some(call), origin: None }
    }

    #[test]
    fn acknowledged_call_needs_one_run_and_unanswered_at_most_one() {
        let call = Uuid::now_v7();
        let (first, second) = (run_of(call), run_of(call));
        let told_ok = Submission { call: Some(call), ..Submission::acknowledged(first.run_id) };
        let unanswered = Submission::unanswered(call);
        let n_wrong = |runs: &[&Asked], submission: &Submission| {
            let runs: Vec<Asked> = runs.iter().copied().cloned().collect();
            mismatched(&runs, std::slice::from_ref(submission)).len()
        };
        assert_eq!(n_wrong(&[&first], &told_ok), 0);
        assert_eq!(n_wrong(&[&first, &second], &told_ok), 1, "doubled");
        assert_eq!(n_wrong(&[&second], &told_ok), 1, "another run than the one that was acknowledged");
        assert_eq!(n_wrong(&[], &told_ok), 2, "lost, and no run of the call");
        assert_eq!(n_wrong(&[], &unanswered), 0);
        assert_eq!(n_wrong(&[&first], &unanswered), 0);
        assert_eq!(n_wrong(&[&first, &second], &unanswered), 1, "doubled, though nobody knows their ids");
    }

    #[test]
    fn unanswered_call_does_not_hide_duplicate_run_of_another_call() {
        let [lost, doubled] = [(); 2].map(|()| Uuid::now_v7());
        let submissions = [lost, doubled].map(Submission::unanswered);
        assert_eq!(mismatched(&[run_of(doubled), run_of(doubled)], &submissions).len(), 1);
        assert_eq!(mismatched(&[run_of(lost), run_of(doubled)], &submissions).len(), 0);
    }

    #[test]
    fn run_with_unknown_key_or_call_is_violation() {
        let keyed =
            |key: &str| Asked { run_id: Uuid::now_v7(), key: Some(key.to_owned()), call: None, origin: None };
        let asked = Submission::unanswered_key(&"order-7");
        assert_eq!(mismatched(&[keyed("order-7")], std::slice::from_ref(&asked)).len(), 0);
        assert_eq!(mismatched(&[keyed("order-8")], std::slice::from_ref(&asked)).len(), 1);
        assert_eq!(mismatched(&[run_of(Uuid::now_v7())], &[asked]).len(), 1);
    }

    #[test]
    fn rerun_lost_doubled_or_unrequested_is_violation() {
        let origin = Uuid::now_v7();
        let go = || Asked { run_id: Uuid::now_v7(), key: None, call: None, origin: Some(origin) };
        let (first, second) = (go(), go());
        let told = Submission { origin: Some(origin), ..Submission::acknowledged(first.run_id) };
        let unanswered = Submission::unanswered_link(origin);
        let n_wrong = |runs: &[&Asked], submissions: &[&Submission]| {
            let runs: Vec<Asked> = runs.iter().copied().cloned().collect();
            let submissions: Vec<Submission> = submissions.iter().copied().cloned().collect();
            mismatched(&runs, &submissions).len()
        };
        assert_eq!(n_wrong(&[&first], &[&told]), 0);
        assert_eq!(n_wrong(&[&first], &[&told, &told]), 0, "asked for twice, and given the same");
        assert_eq!(n_wrong(&[&first, &second], &[&told, &told]), 1, "doubled");
        assert_eq!(n_wrong(&[&first, &second], &[&told, &unanswered]), 0);
        assert_eq!(n_wrong(&[], &[&told]), 1, "lost");
        assert_eq!(n_wrong(&[], &[&unanswered]), 0);
        assert_eq!(n_wrong(&[&first], &[]), 1, "nobody asked");
    }
}
