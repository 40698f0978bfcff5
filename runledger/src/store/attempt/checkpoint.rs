//! Checkpoint: records steps under their fence, many in one statement.

use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Query;
use sqlx::{Connection, PgConnection, Postgres, Row};
use uuid::Uuid;

use crate::model::payload::Stored;
use crate::model::replay::recorded::{self, StoredStep};
use crate::model::unreadable::Unreadable;
use crate::store::session::BEGIN_RESTLESS;
use crate::store::write::{of_steps, write};
use crate::store::{sparse, sql};

/// The right to write for an attempt: the run, and the random token of the claim that began the
/// attempt.
///
/// Every statement that writes for an attempt names both. It writes nothing if no lease has this
/// token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fence {
    /// The run.
    pub run_id: Uuid,
    /// The token.
    pub token: Uuid,
}

/// A step to record.
#[derive(Clone, Debug)]
pub(crate) struct Checkpoint {
    pub(crate) fence: Fence,
    pub(crate) key: String,
    pub(crate) ordinal: u64,
    pub(crate) fingerprint: i64,
    pub(crate) result: Result<Stored, Stored>,
    pub(crate) seen_len: u32,
    pub(crate) seen: Option<Vec<u64>>,
    /// The call that compensates the step.
    pub(crate) compensation: Option<Stored>,
}

impl Checkpoint {
    /// The size of its payloads in bytes.
    pub(crate) fn n_bytes(&self) -> usize {
        let (Ok(result) | Err(result)) = &self.result;
        result.n_bytes() + self.compensation.as_ref().map_or(0, Stored::n_bytes)
    }
}

/// A failed attempt of a step that will be retried.
#[derive(Clone, Debug)]
pub(crate) struct FailedTry {
    pub(crate) fence: Fence,
    pub(crate) key: String,
    pub(crate) attempt: u32,
    pub(crate) failure: Stored,
    pub(crate) took_us: i64,
}

/// Records steps for the first time. Returns for each whether its fence held. If a step is already
/// recorded, the statement fails with a unique violation.
pub(crate) async fn checkpoint_fresh(
    connection: &mut PgConnection,
    steps: &[&Checkpoint],
) -> Result<Vec<bool>, sqlx::Error> {
    of_steps(steps.iter().map(|step| step.key.as_str()));
    let row = write(sql::CHECKPOINT_FRESH, |record| bind(sqlx::query(record), steps).fetch_one(connection));
    held(&row.await?, steps.len())
}

/// Records steps, some of which may already be recorded. Returns for each whether its fence held.
/// With `body`, the connection must be in the transaction of the body with this marker; otherwise
/// nothing is recorded and no fence holds.
pub(crate) async fn checkpoint(
    connection: &mut PgConnection,
    steps: &[&Checkpoint],
    body: Option<&str>,
) -> Result<Vec<bool>, sqlx::Error> {
    of_steps(steps.iter().map(|step| step.key.as_str()));
    let row = write(sql::CHECKPOINT, |record| {
        bind(sqlx::query(record), steps).bind(body.map(str::to_owned)).fetch_one(connection)
    });
    held(&row.await?, steps.len())
}

fn bind<'q>(
    query: Query<'q, Postgres, PgArguments>,
    steps: &[&'q Checkpoint],
) -> Query<'q, Postgres, PgArguments> {
    query
        .bind(steps.iter().map(|step| step.fence.run_id).collect::<Vec<_>>())
        .bind(steps.iter().map(|step| step.fence.token).collect::<Vec<_>>())
        .bind(steps.iter().map(|step| step.key.as_str()).collect::<Vec<_>>())
        .bind(steps.iter().map(|step| step.ordinal.cast_signed()).collect::<Vec<_>>())
        .bind(steps.iter().map(|step| step.fingerprint).collect::<Vec<_>>())
        .bind(steps.iter().map(|step| step.result.as_ref().ok().map(Stored::as_str)).collect::<Vec<_>>())
        .bind(sparse(steps.iter().map(|step| step.result.as_ref().err().map(Stored::as_str))))
        .bind(steps.iter().map(|step| step.seen_len.cast_signed()).collect::<Vec<_>>())
        .bind(sparse(steps.iter().map(|step| step.seen.as_deref().map(as_array))))
        .bind(sparse(steps.iter().map(|step| step.compensation.as_ref().map(Stored::as_str))))
}

/// Binds a step to a statement that records one step. The caller binds the output.
pub(crate) fn bind_one<'q>(
    query: Query<'q, Postgres, PgArguments>,
    step: &'q Checkpoint,
) -> Query<'q, Postgres, PgArguments> {
    query
        .bind(step.fence.run_id)
        .bind(step.fence.token)
        .bind(&step.key)
        .bind(step.ordinal.cast_signed())
        .bind(step.fingerprint)
        .bind(step.seen_len.cast_signed())
        .bind(seen_text(step.seen.as_deref()))
}

/// The transaction state of a connection.
#[derive(Debug)]
pub(crate) struct BodyState {
    /// Whether the connection is in the transaction of the body with the given marker.
    pub(crate) in_body: bool,
    pub(crate) role: Vec<u8>,
    encoding: String,
}

impl BodyState {
    /// The encoding of the session, if it is not UTF-8, which the driver uses. The server would
    /// read the engine's record in this encoding.
    pub(crate) fn foreign_encoding(&self) -> Option<&str> {
        Some(self.encoding.as_str()).filter(|encoding| *encoding != "UTF8")
    }
}

/// Reads whether the connection is in the transaction of the body with this marker.
pub(crate) async fn body_state(connection: &mut PgConnection, mark: &str) -> Result<BodyState, sqlx::Error> {
    let row = sqlx::query(sql::IN_BODY).bind(mark).fetch_one(connection).await?;
    Ok(BodyState {
        in_body: row.try_get("in_body")?,
        role: row.try_get("role")?,
        encoding: row.try_get("encoding")?,
    })
}

/// Records failed attempts of steps. Returns for each whether its fence held.
pub(crate) async fn step_failed(
    connection: &mut PgConnection,
    tries: &[&FailedTry],
) -> Result<Vec<bool>, sqlx::Error> {
    of_steps(tries.iter().map(|item| item.key.as_str()));
    let row = write(sql::STEP_FAILED, |keep| {
        sqlx::query(keep)
            .bind(tries.iter().map(|item| item.fence.run_id).collect::<Vec<_>>())
            .bind(tries.iter().map(|item| item.fence.token).collect::<Vec<_>>())
            .bind(tries.iter().map(|item| item.key.as_str()).collect::<Vec<_>>())
            .bind(tries.iter().map(|item| item.attempt.cast_signed()).collect::<Vec<_>>())
            .bind(tries.iter().map(|item| item.failure.as_str()).collect::<Vec<_>>())
            .bind(tries.iter().map(|item| item.took_us).collect::<Vec<_>>())
            .fetch_one(connection)
    });
    held(&row.await?, tries.len())
}

/// Returns for each item of a batch whether its position is in the column `held`.
pub(crate) fn held(row: &PgRow, n_items: usize) -> Result<Vec<bool>, sqlx::Error> {
    positions(row, "held", n_items)
}

/// Returns for each item of a batch whether its position is in a column of the result.
pub(crate) fn positions(row: &PgRow, column: &str, n_items: usize) -> Result<Vec<bool>, sqlx::Error> {
    let positions: Option<Vec<i64>> = row.try_get(column)?;
    let mut held = vec![false; n_items];
    for position in positions.unwrap_or_default() {
        if let Some(item) = usize::try_from(position - 1).ok().and_then(|index| held.get_mut(index)) {
            *item = true;
        }
    }
    Ok(held)
}

/// A step whose acknowledgement was lost, as the database has it.
#[derive(Debug)]
pub(crate) struct Found {
    /// Whether the attempt still holds its lease.
    pub(crate) held: bool,
    /// The step, if it is recorded.
    pub(crate) result: Option<Result<Stored, Stored>>,
}

/// Reads a step and the lease of its attempt, once no transaction of the attempt is in flight. The
/// read is a separate statement, because a snapshot from before the wait would not show what was
/// committed during the wait.
pub(crate) async fn recorded(
    connection: &mut PgConnection,
    fence: Fence,
    key: &str,
) -> Result<Found, sqlx::Error> {
    let mut tx = connection.begin_with(BEGIN_RESTLESS).await?;
    sqlx::query(sql::LOCK_LEASE).bind(fence.run_id).bind(fence.token).execute(&mut *tx).await?;
    let row =
        sqlx::query(sql::RECORDED).bind(fence.run_id).bind(fence.token).bind(key).fetch_one(&mut *tx).await?;
    tx.rollback().await?;
    let output: Option<String> = row.try_get("output")?;
    let error: Option<String> = row.try_get("error")?;
    let result = match error {
        Some(error) => Some(Err(Stored::read(error))),
        None => output.map(|output| Ok(Stored::read(output))),
    };
    Ok(Found { held: row.try_get("held")?, result })
}

/// Reads the steps that a statement aggregated into one column.
pub(crate) fn steps(row: &PgRow) -> Result<Vec<StoredStep>, Unreadable> {
    let text: Option<&str> = row.try_get("steps").map_err(|error| Unreadable::new("step", &error))?;
    text.map_or(Ok(Vec::new()), recorded::read)
}

/// A list of numbers as JSON, which the statement converts to an array. PostgreSQL has no arrays of
/// arrays with different lengths.
fn as_array(numbers: &[u64]) -> String {
    let numbers: Vec<String> = numbers.iter().map(u64::to_string).collect();
    format!("[{}]", numbers.join(","))
}

/// Like [`as_array`], if there are numbers.
pub(crate) fn seen_text(seen: Option<&[u64]>) -> Option<String> {
    seen.map(as_array)
}
