//! Signals: sent to a run from outside, taken by a step of it.

use sqlx::{Connection, PgConnection, Row};
use uuid::Uuid;

use super::checkpoint::{Checkpoint, bind_one};
use super::session::{BEGIN_RESTLESS, is_read_committed};
use super::sql;
use super::write::{commit, of_steps, write};
use crate::model::payload::Stored;
use crate::model::state::RunState;

/// How many signals of one name a run may have left. A sender that is faster than its run for so long is told so.
pub(crate) const MOST_LEFT: i32 = 10_000;

/// A signal to be sent.
#[derive(Clone, Debug)]
pub(crate) struct NewSignal {
    pub(crate) run_id: Uuid,
    pub(crate) name: String,
    pub(crate) payload: Stored,
    /// Made by the sender where none was given, so that a repetition is known as one.
    pub(crate) idempotency_key: String,
}

/// What became of a signal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Sending {
    /// It is written.
    Done,
    /// One with this key was there, with this payload.
    Earlier(Stored),
    /// The run has ended.
    Ended(RunState),
    /// Too many of its name are left.
    Full,
    /// The transaction is at this level, at which the answer could be wrong.
    Isolation(String),
    /// There is no such run.
    NoSuchRun,
}

/// Sends a signal in the transaction that the connection is in.
pub(crate) async fn send(connection: &mut PgConnection, signal: &NewSignal) -> Result<Sending, sqlx::Error> {
    sqlx::query(sql::LOCK_RUNS).bind(vec![signal.run_id]).execute(&mut *connection).await?;
    let row = write(sql::SEND_SIGNAL, |send| {
        sqlx::query(send)
            .bind(signal.run_id)
            .bind(&signal.name)
            .bind(signal.payload.as_str())
            .bind(&signal.idempotency_key)
            .bind(MOST_LEFT)
            .fetch_optional(connection)
    })
    .await?;
    let Some(row) = row else { return Ok(Sending::NoSuchRun) };
    if row.try_get::<Option<i32>, _>("number")?.is_some() {
        return Ok(Sending::Done);
    }
    if let Some(payload) = row.try_get("earlier")? {
        return Ok(Sending::Earlier(Stored::read(payload)));
    }
    let isolation: String = row.try_get("isolation")?;
    if !is_read_committed(&isolation) {
        return Ok(Sending::Isolation(isolation));
    }
    let state: Option<String> = row.try_get("state")?;
    Ok(state.as_deref().and_then(RunState::parse).map_or(Sending::Full, Sending::Ended))
}

/// Sends a signal in a transaction of its own.
pub(crate) async fn send_alone(
    connection: &mut PgConnection,
    signal: &NewSignal,
) -> Result<Sending, sqlx::Error> {
    let mut tx = connection.begin_with(BEGIN_RESTLESS).await?;
    let sending = send(&mut tx, signal).await?;
    commit("signal", tx.commit()).await?;
    Ok(sending)
}

/// What a step that waits for a signal is given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// The payload; the step is recorded with it.
    Payload(Stored),
    /// It is sealed for the signal; nothing is recorded.
    Shown { number: i32, idempotency_key: String, payload: Stored },
    /// None is left.
    Nothing,
    /// The lease is lost.
    LeaseLost,
}

/// What a step is given in the place of the payload of a signal: the same, sealed for the step.
#[derive(Debug)]
pub(crate) struct Resealed {
    pub(crate) number: i32,
    pub(crate) output: Stored,
}

/// Takes the first signal of a name that is left, and records the step with it; with `resealed` that one alone.
pub(crate) async fn take(
    connection: &mut PgConnection,
    step: &Checkpoint,
    name: &str,
    resealed: Option<&Resealed>,
) -> Result<Taken, sqlx::Error> {
    of_steps(std::iter::once(step.key.as_str()));
    let row = write(sql::TAKE_SIGNAL, |take| {
        bind_one(sqlx::query(take), step)
            .bind(name)
            .bind(resealed.map(|resealed| resealed.number))
            .bind(resealed.map(|resealed| resealed.output.as_str()))
            .fetch_optional(connection)
    })
    .await?;
    let Some(row) = row else { return Ok(Taken::LeaseLost) };
    if let Some(output) = row.try_get("output")? {
        return Ok(Taken::Payload(Stored::read(output)));
    }
    let Some(number) = row.try_get("number")? else { return Ok(Taken::Nothing) };
    let payload = Stored::read(row.try_get("payload")?);
    Ok(Taken::Shown { number, idempotency_key: row.try_get("idempotency_key")?, payload })
}
