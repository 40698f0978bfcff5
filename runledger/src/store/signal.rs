//! Signals: sent to a run from outside, taken by a step of it.

use sqlx::{Connection, PgConnection, Row};
use uuid::Uuid;

use super::checkpoint::{Checkpoint, bind_one};
use super::session::{BEGIN_RESTLESS, is_read_committed};
use super::sql;
use super::write::{commit, of_steps, write};
use crate::model::state::RunState;

/// How many signals of one name a run may have left. A sender that is faster than its run for so long is told so.
pub(crate) const MOST_LEFT: i32 = 10_000;

/// A signal to be sent.
#[derive(Clone, Debug)]
pub(crate) struct NewSignal {
    pub(crate) run_id: Uuid,
    pub(crate) name: String,
    pub(crate) payload: String,
    /// Made by the sender where none was given, so that a repetition is known as one.
    pub(crate) idempotency_key: String,
}

/// What became of a signal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Sending {
    /// It is written.
    Done,
    /// One with this key was there, with this payload.
    Earlier(String),
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
            .bind(&signal.payload)
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
        return Ok(Sending::Earlier(payload));
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
    Payload(String),
    /// None is left.
    Nothing,
    /// The lease is lost.
    LeaseLost,
}

/// Takes the first signal of a name that is left, and records the step with it.
pub(crate) async fn take(
    connection: &mut PgConnection,
    step: &Checkpoint,
    name: &str,
) -> Result<Taken, sqlx::Error> {
    of_steps(std::iter::once(step.key.as_str()));
    let row = write(sql::TAKE_SIGNAL, |take| {
        bind_one(sqlx::query(take), step).bind(name).fetch_optional(connection)
    })
    .await?;
    let Some(row) = row else { return Ok(Taken::LeaseLost) };
    Ok(row.try_get::<Option<String>, _>("payload")?.map_or(Taken::Nothing, Taken::Payload))
}
