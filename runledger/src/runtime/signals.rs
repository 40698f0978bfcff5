//! Steps that wait for signals.

use std::time::Duration;

use sqlx::PgConnection;

use super::answer::{PATIENCE, answered};
use super::attempt::{Attempt, Halt, Wait};
use super::step::{halted, marks_first, record};
use super::waiting::{ASK_AGAIN, Alarm, REPEAT, instant};
use crate::model::failure::{Failure, FailureKind};
use crate::model::payload::{PayloadError, PayloadKind, Place};
use crate::model::replay::Claim;
use crate::model::timestamp::Timestamp;
use crate::store::error::{Class, class};
use crate::store::signal::{Resealed, Taken, take};

/// Until when a step waits for a signal: the step that records the instant, and the time from now where it is not recorded yet.
pub(crate) struct Limit {
    pub(crate) claim: Claim,
    pub(crate) after: Duration,
}

/// Waits for a signal, takes it and gives its payload. A wait whose limit comes first fails as timed out, and takes nothing.
pub(crate) async fn receive(
    attempt: &Attempt,
    claim: &Claim,
    name: &str,
    limit: Option<&Limit>,
) -> Result<String, Failure> {
    let until = match limit {
        Some(limit) => Some((limit, instant(attempt, &limit.claim, Alarm::After(limit.after)).await?)),
        None => None,
    };
    let result = match attempt.result(claim.ordinal) {
        Some(recorded) if claim.recorded => recorded,
        _ => wait(attempt, claim, name, until).await,
    };
    if let Some((limit, _)) = until {
        attempt.turn(limit.claim.ordinal).await;
    }
    attempt.turn(claim.ordinal).await;
    result
}

async fn wait(
    attempt: &Attempt,
    claim: &Claim,
    name: &str,
    until: Option<(&Limit, Timestamp)>,
) -> Result<String, Failure> {
    loop {
        let mut nudges = attempt.nudges.listen();
        let working = attempt.begin_work().await;
        if let Some(payload) = look(attempt, claim, name).await {
            return Ok(payload);
        }
        if let Some((limit, until)) = until
            && until <= attempt.clock.now()
        {
            return record(attempt, claim, 0, Err(timed_out(name, limit.after))).await;
        }
        // Waiting first, then no longer working: in between the run must not look idle.
        let waiting = (
            attempt.waiting(claim.ordinal, Wait::Signal(name.to_owned())),
            until.map(|(limit, until)| attempt.waiting(limit.claim.ordinal, Wait::Until(until))),
        );
        drop(working);
        let left = until.map_or(ASK_AGAIN, |(_, until)| until.since(attempt.clock.now()).min(ASK_AGAIN));
        tokio::select! {
            () = nudges.nudged() => {}
            () = tokio::time::sleep(left) => {}
        }
        drop(waiting);
    }
}

/// Takes a signal, however long the database is away. None where none is left.
async fn look(attempt: &Attempt, claim: &Claim, name: &str) -> Option<String> {
    let _taking = attempt.taking.lock().await;
    marks_first(attempt).await;
    loop {
        let taken = match attempt.db.acquire().await {
            Ok(mut connection) => answered(PATIENCE, take_one(&mut connection, attempt, claim, name)).await,
            Err(error) => Err(error),
        };
        match taken {
            Ok(Err(error)) => return halted(attempt, Halt::Sealed(error.to_failure())).await,
            Ok(Ok(Taken::Payload(payload))) => {
                let place = Place::of_step(attempt.fence.run_id, claim.key.as_str());
                return match attempt.sealer().open(&place, payload) {
                    Ok(payload) => {
                        attempt.acknowledge(claim);
                        Some(payload)
                    }
                    Err(error) => halted(attempt, Halt::Sealed(error.to_failure())).await,
                };
            }
            // What is shown is taken at once, unless an earlier attempt has just done that.
            Ok(Ok(Taken::Nothing | Taken::Shown { .. })) => return None,
            Ok(Ok(Taken::LeaseLost)) => return halted(attempt, Halt::LeaseLost).await,
            Err(error) if class(&error) == Class::Permanent => {
                let failure = Failure::from_chain(FailureKind::Error, &error);
                return halted(attempt, Halt::Refused(failure)).await;
            }
            Err(error) => tracing::warn!(%error, "the wait for a signal waits for the database"),
        }
        tokio::time::sleep(REPEAT).await;
    }
}

/// Takes a signal. A sealed payload is sealed for its own place, and needs to be for that of the step.
async fn take_one(
    connection: &mut PgConnection,
    attempt: &Attempt,
    claim: &Claim,
    name: &str,
) -> Result<Result<Taken, PayloadError>, sqlx::Error> {
    let step = attempt.place_of(claim, 0);
    let shown = match take(connection, &step, name, None).await? {
        Taken::Shown { number, idempotency_key, payload } => (number, idempotency_key, payload),
        taken => return Ok(Ok(taken)),
    };
    let (number, idempotency_key, payload) = shown;
    let run_id = attempt.fence.run_id;
    let key = key_of(name, &idempotency_key);
    let from = Place::new(run_id, PayloadKind::Signal, &key);
    match attempt.sealer().reseal(&from, &Place::of_step(run_id, claim.key.as_str()), payload) {
        Ok(output) => take(connection, &step, name, Some(&Resealed { number, output })).await.map(Ok),
        Err(error) => Ok(Err(error)),
    }
}

/// What tells a signal of a run from its others: a name has no slash.
pub(crate) fn key_of(name: &str, idempotency_key: &str) -> String {
    format!("{name}/{idempotency_key}")
}

fn timed_out(name: &str, after: Duration) -> Failure {
    Failure::new(FailureKind::Timeout, format!("no signal `{name}` came within {after:?}"))
}
