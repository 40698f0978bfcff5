//! I1 and I5 from the clients' side: what they asked for, and what they were told.

use std::collections::{HashMap, HashSet};

use sqlx::PgConnection;
use uuid::Uuid;

use super::Violations;

/// What a client was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// That the run is there.
    Ok,
    /// That it was rolled back.
    RolledBack,
    /// Nothing: the call was given up, or failed ambiguously.
    Unknown,
}

/// One call of a client.
#[derive(Clone, Debug)]
pub struct Submission {
    /// The run, as far as it is known.
    pub run_id: Option<Uuid>,
    /// Its idempotency key.
    pub key: Option<String>,
    /// What came of it.
    pub told: Told,
}

/// Acknowledged runs that are not there (I1a), runs that were rolled back and are there (I1b), and runs that nobody asked
/// for: more than there were calls of which nothing was heard.
///
/// # Errors
/// When the database does not answer.
pub async fn lost_or_invented(
    connection: &mut PgConnection,
    submissions: &[Submission],
) -> Result<Violations, sqlx::Error> {
    let runs: Vec<Uuid> = sqlx::query_scalar("select run_id from runledger.run where parent_id is null")
        .fetch_all(connection)
        .await?;
    let there: HashSet<Uuid> = runs.into_iter().collect();
    let mut violations = Violations::new();
    for submission in submissions {
        let Some(run_id) = submission.run_id else { continue };
        match (submission.told, there.contains(&run_id)) {
            (Told::Ok, false) => violations.push(format!("run {run_id} was acknowledged and is not there")),
            (Told::RolledBack, true) => violations.push(format!("run {run_id} was rolled back and is there")),
            (Told::Ok | Told::RolledBack | Told::Unknown, _) => {}
        }
    }
    let asked: HashSet<Uuid> = submissions.iter().filter_map(|submission| submission.run_id).collect();
    let n_unknown = submissions.iter().filter(|submission| submission.run_id.is_none()).count();
    let strangers: Vec<&Uuid> = there.difference(&asked).collect();
    if strangers.len() > n_unknown {
        violations.extend(strangers.iter().map(|run_id| format!("nobody asked for run {run_id}")));
    }
    Ok(violations)
}

/// Keys for which callers were given several runs, or that have several runs (I5).
///
/// # Errors
/// When the database does not answer.
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

/// Runs and business rows that were to be written together, of which one is missing (I1b). The run's key is the row's id.
///
/// # Errors
/// When the database does not answer.
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
