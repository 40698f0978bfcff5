//! Signals: sent to a run from outside, taken by a step of it.

use sqlx::postgres::PgRow;
use sqlx::{Connection, PgConnection, Row};
use uuid::Uuid;

use super::checkpoint::{Checkpoint, held, positions, seen_text};
use super::session::{BEGIN_RESTLESS, is_read_committed};
use super::write::{commit, of_steps, write};
use super::{sparse, sql};
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
    /// The run has ended so, or will: what its steps did is being taken back, and its code does not go on.
    Ended(RunState),
    /// Too many of its name are left.
    Full,
    /// The transaction is at this level, at which the answer could be wrong.
    Isolation(String),
    /// It is a graph, a gate or a map node, which have no code that could take it.
    Deaf,
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
    if row.try_get("is_deaf")? {
        return Ok(Sending::Deaf);
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

/// A signal that is left.
#[derive(Clone, Debug)]
pub(crate) struct Left {
    pub(crate) number: i32,
    pub(crate) idempotency_key: String,
    pub(crate) payload: Stored,
}

/// The first signal of a name that is left.
pub(crate) async fn first_left(
    connection: &mut PgConnection,
    run_id: Uuid,
    name: &str,
) -> Result<Option<Left>, sqlx::Error> {
    let row = sqlx::query(sql::SIGNAL_LEFT).bind(run_id).bind(name).fetch_optional(connection).await?;
    let left = |row: PgRow| {
        let payload = Stored::read(row.try_get("payload")?);
        Ok(Left { number: row.try_get("number")?, idempotency_key: row.try_get("idempotency_key")?, payload })
    };
    row.map(left).transpose()
}

/// A signal that a step was given, to be recorded with it.
#[derive(Clone, Debug)]
pub(crate) struct SignalTake {
    /// With the payload, sealed for the step, as its output.
    pub(crate) step: Checkpoint,
    pub(crate) name: String,
    pub(crate) number: i32,
    /// How often the run has begun anew.
    pub(crate) slice: u32,
}

/// What became of the taking of a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SignalTakeResult {
    /// The step is recorded with it.
    Yes,
    /// There is no such signal any more, or another step has it; nothing was written.
    Gone,
    /// The lease is lost; nothing was written.
    LeaseLost,
}

/// Records steps with the signals that they were given, each both or neither.
pub(crate) async fn take(
    connection: &mut PgConnection,
    takings: &[&SignalTake],
) -> Result<Vec<SignalTakeResult>, sqlx::Error> {
    let steps: Vec<&Checkpoint> = takings.iter().map(|taking| &taking.step).collect();
    of_steps(steps.iter().map(|step| step.key.as_str()));
    let row = write(sql::TAKE_SIGNAL, |take| {
        sqlx::query(take)
            .bind(steps.iter().map(|step| step.fence.run_id).collect::<Vec<_>>())
            .bind(steps.iter().map(|step| step.fence.token).collect::<Vec<_>>())
            .bind(steps.iter().map(|step| step.key.as_str()).collect::<Vec<_>>())
            .bind(steps.iter().map(|step| step.ordinal.cast_signed()).collect::<Vec<_>>())
            .bind(steps.iter().map(|step| step.fingerprint).collect::<Vec<_>>())
            .bind(steps.iter().map(|step| step.result.as_ref().ok().map(Stored::as_str)).collect::<Vec<_>>())
            .bind(steps.iter().map(|step| step.seen_len.cast_signed()).collect::<Vec<_>>())
            .bind(sparse(steps.iter().map(|step| seen_text(step.seen.as_deref()))))
            .bind(takings.iter().map(|taking| taking.name.as_str()).collect::<Vec<_>>())
            .bind(takings.iter().map(|taking| taking.number).collect::<Vec<_>>())
            .bind(takings.iter().map(|taking| taking.slice.cast_signed()).collect::<Vec<_>>())
            .fetch_one(connection)
    })
    .await?;
    let (held, taken) = (held(&row, takings.len())?, positions(&row, "taken", takings.len())?);
    let took = |(held, taken)| match (held, taken) {
        (false, _) => SignalTakeResult::LeaseLost,
        (true, false) => SignalTakeResult::Gone,
        (true, true) => SignalTakeResult::Yes,
    };
    Ok(held.into_iter().zip(taken).map(took).collect())
}
