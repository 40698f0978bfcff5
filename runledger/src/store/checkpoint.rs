//! Checkpoint: steps recorded under the fence, many in one statement.

use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Query;
use sqlx::{Connection, PgConnection, Postgres, Row};
use uuid::Uuid;

use super::session::BEGIN_RESTLESS;
use super::write::{of_steps, write};
use super::{sparse, sql};
use crate::model::payload::Stored;
use crate::model::recorded::{self, StoredStep};
use crate::model::unreadable::Unreadable;

/// The right to write for an attempt: the run, and the random token of the claim that began the attempt.
///
/// Every statement that writes for an attempt names both; where the lease with this token is gone, it writes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fence {
    /// The run.
    pub run_id: Uuid,
    /// The token.
    pub token: Uuid,
}

/// A step to be recorded.
#[derive(Clone, Debug)]
pub(crate) struct Checkpoint {
    pub(crate) fence: Fence,
    pub(crate) key: String,
    pub(crate) ordinal: u64,
    pub(crate) fingerprint: i64,
    pub(crate) result: Result<Stored, Stored>,
    pub(crate) seen_len: u32,
    pub(crate) seen: Option<Vec<u64>>,
    /// The call that takes back what it did.
    pub(crate) undo: Option<Stored>,
}

impl Checkpoint {
    /// The bytes of its payloads.
    pub(crate) fn n_bytes(&self) -> usize {
        let (Ok(result) | Err(result)) = &self.result;
        result.n_bytes() + self.undo.as_ref().map_or(0, Stored::n_bytes)
    }
}

/// A try of a step that failed and will be repeated.
#[derive(Clone, Debug)]
pub(crate) struct FailedTry {
    pub(crate) fence: Fence,
    pub(crate) key: String,
    pub(crate) attempt: u32,
    pub(crate) failure: Stored,
    pub(crate) took_us: i64,
}

/// Records steps for the first time, and says of each whether its fence held. One that is recorded already makes it fail with a unique violation.
pub(crate) async fn checkpoint_fresh(
    connection: &mut PgConnection,
    steps: &[&Checkpoint],
) -> Result<Vec<bool>, sqlx::Error> {
    of_steps(steps.iter().map(|step| step.key.as_str()));
    let row = write(sql::CHECKPOINT_FRESH, |record| bind(sqlx::query(record), steps).fetch_one(connection));
    held(&row.await?, steps.len())
}

/// Records steps, some of which may be recorded already, and says of each whether its fence held. Nothing is recorded and none held where the
/// connection should be in the transaction of a body with this mark and is not.
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
        .bind(sparse(steps.iter().map(|step| step.undo.as_ref().map(Stored::as_str))))
}

/// Binds a step to a statement that records it alone, with an output of its own.
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

/// The transaction of a connection.
#[derive(Debug)]
pub(crate) struct BodyState {
    /// Whether it is that of a body with this mark.
    pub(crate) in_body: bool,
    pub(crate) role: Vec<u8>,
    encoding: String,
}

impl BodyState {
    /// The encoding in which the server reads the engine's record, if it is another than that of the driver.
    pub(crate) fn foreign_encoding(&self) -> Option<&str> {
        Some(self.encoding.as_str()).filter(|encoding| *encoding != "UTF8")
    }
}

/// Looks whether the connection is in the transaction of a body with this mark.
pub(crate) async fn body_state(connection: &mut PgConnection, mark: &str) -> Result<BodyState, sqlx::Error> {
    let row = sqlx::query(sql::IN_BODY).bind(mark).fetch_one(connection).await?;
    Ok(BodyState {
        in_body: row.try_get("in_body")?,
        role: row.try_get("role")?,
        encoding: row.try_get("encoding")?,
    })
}

/// Keeps failed tries of steps, and says of each whether its fence held.
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

/// Of each item of a batch, whether it is among the positions of an answer.
pub(crate) fn held(row: &PgRow, n_items: usize) -> Result<Vec<bool>, sqlx::Error> {
    positions(row, "held", n_items)
}

/// Of each item of a batch, whether it is among the positions in a column of an answer.
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

/// What became of a step whose acknowledgement was lost.
#[derive(Debug)]
pub(crate) struct Found {
    /// Whether the attempt still holds its lease.
    pub(crate) held: bool,
    /// The step, if it is recorded.
    pub(crate) result: Option<Result<Stored, Stored>>,
}

/// Looks up a step and the lease of its attempt, once no transaction of the attempt is in flight any more. The look is a statement of its own: a
/// snapshot taken before the wait would not see what was committed during it.
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

/// The steps in a row, as the statements gather them.
pub(crate) fn steps(row: &PgRow) -> Result<Vec<StoredStep>, Unreadable> {
    let text: Option<&str> = row.try_get("steps").map_err(|error| Unreadable::new("step", &error))?;
    text.map_or(Ok(Vec::new()), recorded::read)
}

/// A list of numbers in JSON's notation, which the statement turns into an array: arrays of arrays cannot be ragged.
fn as_array(numbers: &[u64]) -> String {
    let numbers: Vec<String> = numbers.iter().map(u64::to_string).collect();
    format!("[{}]", numbers.join(","))
}

/// As [`as_array`], where there are any.
pub(crate) fn seen_text(seen: Option<&[u64]>) -> Option<String> {
    seen.map(as_array)
}
