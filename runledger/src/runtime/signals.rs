//! Steps that wait for signals.

use std::collections::BTreeMap;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use sqlx::PgConnection;

use super::answer::{PATIENCE, answered};
use super::attempt::{Attempt, Halt, Wait, Waiting, Working};
use super::marks;
use super::step::{halted, record};
use super::task::apart;
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

/// The waits for signals that are there, by the keys of their steps: for one that was dropped nothing is taken any more.
pub(crate) type OpenWaits = BTreeMap<String, usize>;

/// A wait for a signal, from when it is built until it is dropped.
pub(crate) struct Open {
    attempt: Arc<Attempt>,
    key: String,
}

impl Open {
    pub(crate) fn new(attempt: &Arc<Attempt>, claim: &Claim) -> Self {
        let key = claim.key.as_str().to_owned();
        // For a moment there are two of one step, where a wait is given its limit.
        *attempt.open_waits().entry(key.clone()).or_default() += 1;
        Self { attempt: Arc::clone(attempt), key }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let mut open = self.attempt.open_waits();
        if let Some(n_waits) = open.get_mut(&self.key) {
            *n_waits -= 1;
            if *n_waits == 0 {
                open.remove(&self.key);
            }
        }
    }
}

impl Attempt {
    fn open_waits(&self) -> MutexGuard<'_, OpenWaits> {
        self.open_waits.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Waits for a signal, takes it and gives its payload. A wait whose limit comes first fails as timed out, and takes nothing.
pub(crate) async fn receive(
    open: &Open,
    claim: &Claim,
    name: &str,
    limit: Option<&Limit>,
) -> Result<String, Failure> {
    let attempt = &open.attempt;
    let until = match limit {
        Some(limit) => Some((limit, instant(attempt, &limit.claim, Alarm::After(limit.after)).await?)),
        None => None,
    };
    let result = match attempt.result(claim.ordinal) {
        Some(recorded) if claim.recorded => recorded,
        _ => Box::pin(wait(attempt, claim, name, until)).await,
    };
    if let Some((limit, _)) = until {
        attempt.turn(limit.claim.ordinal).await;
    }
    attempt.turn(claim.ordinal).await;
    result
}

async fn wait(
    attempt: &Arc<Attempt>,
    claim: &Claim,
    name: &str,
    until: Option<(&Limit, Timestamp)>,
) -> Result<String, Failure> {
    loop {
        let mut nudges = attempt.nudges.listen();
        let working = Attempt::begin_work_of(Arc::clone(attempt)).await;
        let look = Look {
            attempt: Arc::clone(attempt),
            claim: claim.clone(),
            name: name.to_owned(),
            until: until.map(|(limit, until)| (limit.claim.ordinal, until)),
        };
        let waiting = match apart("signal", look.take(working)).await {
            Looked::Payload(payload) => return Ok(payload),
            Looked::Halted(halt) => return halted(attempt, halt).await,
            Looked::TimedOut(working) => {
                let after = until.map(|(limit, _)| limit.after).unwrap_or_default();
                let recorded = record(attempt, claim, 0, Err(timed_out(name, after))).await;
                drop(working);
                return recorded;
            }
            Looked::Nothing(waiting) => waiting,
        };
        let left = until.map_or(ASK_AGAIN, |(_, until)| until.since(attempt.clock.now()).min(ASK_AGAIN));
        tokio::select! {
            () = nudges.nudged() => {}
            () = tokio::time::sleep(left) => {}
        }
        drop(waiting);
    }
}

/// A look for a signal, which ends whether its wait is polled or not: it holds a connection, and keeps others from looking.
struct Look {
    attempt: Arc<Attempt>,
    claim: Claim,
    name: String,
    /// The step that has recorded the limit, and the limit.
    until: Option<(u64, Timestamp)>,
}

/// What a look has come to.
enum Looked {
    Payload(String),
    Halted(Halt),
    /// There is none, and the limit is over. The step works on, to record that.
    TimedOut(Working<Arc<Attempt>>),
    /// There is none. The step waits from here on.
    Nothing([Option<Waiting<Arc<Attempt>>>; 2]),
}

impl Look {
    async fn take(self, working: Working<Arc<Attempt>>) -> Looked {
        match self.patiently().await {
            Err(halt) => Looked::Halted(halt),
            Ok(Some(payload)) => Looked::Payload(payload),
            Ok(None) if self.until.is_some_and(|(_, until)| until <= self.attempt.clock.now()) => {
                Looked::TimedOut(working)
            }
            Ok(None) => {
                let waiting =
                    |ordinal, wait| Some(Attempt::waiting_of(Arc::clone(&self.attempt), ordinal, wait));
                // Waiting first, then no longer working: in between the run must not look idle.
                let signal = waiting(self.claim.ordinal, Wait::Signal(self.name.clone()));
                let limit = self.until.and_then(|(ordinal, until)| waiting(ordinal, Wait::Until(until)));
                drop(working);
                Looked::Nothing([signal, limit])
            }
        }
    }

    fn is_wanted(&self) -> bool {
        self.attempt.open_waits().contains_key(self.claim.key.as_str())
    }

    /// Takes a signal, however long the database is away. None where none is left.
    async fn patiently(&self) -> Result<Option<String>, Halt> {
        let Self { attempt, claim, name, .. } = self;
        let _taking = attempt.taking.lock().await;
        if !self.is_wanted() {
            return Ok(None);
        }
        marks::first(attempt).await?;
        loop {
            let taken = match attempt.db.acquire().await {
                // What nobody would receive is left, for another wait.
                Ok(_) if !self.is_wanted() => return Ok(None),
                Ok(mut connection) => {
                    answered(PATIENCE, take_one(&mut connection, attempt, claim, name)).await
                }
                Err(error) => Err(error),
            };
            match taken {
                Ok(Err(error)) => return Err(Halt::Sealed(error.to_failure())),
                Ok(Ok(Taken::Payload(payload))) => {
                    let place = Place::of_step(attempt.fence.run_id, claim.key.as_str());
                    let opened = attempt.sealer().open(&place, payload);
                    let payload = opened.map_err(|error| Halt::Sealed(error.to_failure()))?;
                    attempt.acknowledge(claim);
                    return Ok(Some(payload));
                }
                // What is shown is taken at once, unless an earlier attempt has just done that.
                Ok(Ok(Taken::Nothing | Taken::Shown { .. })) => return Ok(None),
                Ok(Ok(Taken::LeaseLost)) => return Err(Halt::LeaseLost),
                Err(error) if class(&error) == Class::Permanent => {
                    return Err(Halt::Refused(Failure::from_chain(FailureKind::Error, &error)));
                }
                Err(error) => tracing::warn!(%error, "the wait for a signal waits for the database"),
            }
            tokio::time::sleep(REPEAT).await;
        }
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
