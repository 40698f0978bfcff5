//! Signals: sent to a run from outside, consumed by one of its steps.

use sqlx::postgres::PgRow;
use sqlx::{Connection, PgConnection, Row};
use uuid::Uuid;

use super::checkpoint::{Checkpoint, held, positions, seen_text};
use crate::model::payload::Stored;
use crate::model::run::state::RunState;
use crate::store::session::{BEGIN_RESTLESS, is_read_committed};
use crate::store::write::{commit, of_steps, write};
use crate::store::{sparse, sql};

/// The maximum number of unconsumed signals of one name in a run. A sender that stays faster than
/// its run gets an error.
pub(crate) const MOST_LEFT: i32 = 10_000;

/// A signal to send.
#[derive(Clone, Debug)]
pub(crate) struct NewSignal {
    pub(crate) run_id: Uuid,
    pub(crate) name: String,
    pub(crate) payload: Stored,
    /// The sender makes a key if the caller gave none, so that a repetition is recognised.
    pub(crate) idempotency_key: String,
}

/// The result of sending a signal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Sending {
    /// The signal is stored.
    Done,
    /// An earlier signal with this key exists, with this payload.
    Earlier(Stored),
    /// The run has ended in this state, or compensates and will end in it. Its code receives no
    /// signals.
    Ended(RunState),
    /// Too many signals of this name are unconsumed.
    Full,
    /// The transaction has this isolation level, under which the answer could be wrong.
    Isolation(String),
    /// The run is a graph, a gate or a map node. It has no code that could receive a signal.
    Deaf,
    /// The run does not exist.
    NoSuchRun,
}

/// Sends a signal in the connection's current transaction.
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

/// Sends a signal in its own transaction.
pub(crate) async fn send_alone(
    connection: &mut PgConnection,
    signal: &NewSignal,
) -> Result<Sending, sqlx::Error> {
    let mut tx = connection.begin_with(BEGIN_RESTLESS).await?;
    let sending = send(&mut tx, signal).await?;
    commit("signal", tx.commit()).await?;
    Ok(sending)
}

/// An unconsumed signal.
#[derive(Clone, Debug)]
pub(crate) struct Left {
    pub(crate) number: i32,
    pub(crate) idempotency_key: String,
    pub(crate) payload: Stored,
}

/// Returns the first unconsumed signal of a name.
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

/// A signal that a step received, to be recorded with the step.
#[derive(Clone, Debug)]
pub(crate) struct SignalTake {
    /// Its output is the payload, encrypted for the step.
    pub(crate) step: Checkpoint,
    pub(crate) name: String,
    pub(crate) number: i32,
    /// How often the run has continued as new.
    pub(crate) slice: u32,
}

/// The result of recording a signal with its step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SignalTakeResult {
    /// The step is recorded with the signal.
    Yes,
    /// The signal is gone, or another step has consumed it. Nothing was written.
    Gone,
    /// The lease is lost. Nothing was written.
    LeaseLost,
}

/// Records steps with the signals that they consume, each both or neither.
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
