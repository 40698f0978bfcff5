//! Steps that wait for signals.
//!
//! A wait looks for a signal that is left, and takes it in the poll that gives it to the code: that it has is a mark, which is recorded before anything that the
//! code does with it. So a wait that is dropped has taken nothing, whatever was under way for it.

use std::sync::Arc;
use std::time::Duration;

use super::attempt::{Attempt, Waiting};
use super::markers;
use super::step::{record, stop_reason};
use super::stop::{StopReason, Wait};
use super::unpolled::at_work;
use super::waiting::{ASK_AGAIN, Alarm, IsNews, REPEAT, instant, looked};
use crate::connection::db_timeout::{STATEMENT_LIMIT, with_timeout};
use crate::connection::outage::warn_outage;
use crate::connection::task::Abandoned;
use crate::model::failure::{Failure, FailureKind};
use crate::model::payload::{PayloadKind, Place, Stored};
use crate::model::replay::{Claim, StepKind};
use crate::model::timestamp::Timestamp;
use crate::store::error::{Class, class};
use crate::store::signal::{Left, SignalTake, first_left};

/// Until when a step waits for a signal: the step that records the instant, and the time from now where it is not recorded yet.
pub(crate) struct Limit {
    pub(crate) claim: Claim,
    pub(crate) after: Duration,
}

/// A signal that is left, as the code reads it and as its step stores it.
struct Found {
    number: i32,
    payload: String,
    output: Stored,
}

/// What a wait has come to.
enum Received {
    Signal(Found),
    /// What its step has recorded: an earlier attempt, or that its limit is over.
    Recorded(Result<String, Failure>),
}

/// Waits for a signal, takes it and gives its payload. A wait whose limit comes first fails as timed out, and takes nothing.
pub(crate) async fn receive(
    attempt: &Arc<Attempt>,
    claim: &Claim,
    name: &str,
    limit: Option<&Limit>,
) -> Result<String, Failure> {
    let until = match limit {
        Some(limit) => Some((limit, instant(attempt, &limit.claim, Alarm::After(limit.after)).await?)),
        None => None,
    };
    let received = match attempt.result(claim.ordinal) {
        Some(recorded) if claim.recorded => Received::Recorded(recorded),
        _ => Box::pin(wait(attempt, claim, name, until)).await,
    };
    if let Some((limit, _)) = until {
        attempt.turn(limit.claim.ordinal).await;
    }
    attempt.turn(claim.ordinal).await;
    // Nothing is awaited from here on where all is well, so that the code has what is taken.
    match received {
        Received::Recorded(recorded) => recorded,
        Received::Signal(found) if attempt.give(name, found.number) => {
            let Found { number, payload, output } = found;
            let step = attempt.received(claim, StepKind::Signal.fingerprint(0), output);
            let name = name.to_owned();
            markers::keep_signal(attempt, SignalTake { step, name, number, slice: attempt.slice });
            Ok(payload)
        }
        // Its turn did not come at once, as it does where the code has met its record.
        Received::Signal(_) => stop_reason(attempt, StopReason::FailedOver).await,
    }
}

async fn wait(
    attempt: &Arc<Attempt>,
    claim: &Claim,
    name: &str,
    until: Option<(&Limit, Timestamp)>,
) -> Received {
    let mut missed = None;
    loop {
        let mut wakeups = attempt.wakeups.listen();
        let look = Look {
            attempt: Arc::clone(attempt),
            claim: claim.clone(),
            name: name.to_owned(),
            until: until.map(|(limit, until)| (limit.claim.ordinal, until)),
        };
        let waiting = match looked(attempt, "signal", |let_go| look.carry_out(let_go)).await {
            Looked::Found(found) if !attempt.is_given(name, found.number) => return Received::Signal(found),
            // Every look begins with the record of what was given before it, so this one has lost that.
            Looked::Found(found) if missed == Some(found.number) => {
                return stop_reason(attempt, StopReason::FailedOver).await;
            }
            // Another wait was faster.
            Looked::Found(found) => {
                missed = Some(found.number);
                continue;
            }
            Looked::Halted(stop) => return stop_reason(attempt, stop).await,
            Looked::TimedOut => {
                let after = until.map(|(limit, _)| limit.after).unwrap_or_default();
                let late = Err(timed_out(name, after));
                let late = record(attempt, claim, StepKind::Signal.fingerprint(0), late);
                let late = at_work(attempt, claim, Box::pin(late)).await;
                return Received::Recorded(late);
            }
            Looked::Nothing(waiting) => waiting,
        };
        let left = until.map_or(ASK_AGAIN, |(_, until)| until.since(attempt.clock.now()).min(ASK_AGAIN));
        tokio::select! {
            () = wakeups.notified() => {}
            () = tokio::time::sleep(left) => {}
        }
        drop(waiting);
    }
}

/// A look for a signal, which ends whether its wait is polled or not: it holds a connection.
struct Look {
    attempt: Arc<Attempt>,
    claim: Claim,
    name: String,
    /// The step that has recorded the limit, and the limit.
    until: Option<(u64, Timestamp)>,
}

/// What a look has come to.
enum Looked {
    Found(Found),
    Halted(StopReason),
    /// There is none, and the limit is over.
    TimedOut,
    /// There is none. The step waits from here on.
    Nothing([Option<Waiting<Arc<Attempt>>>; 2]),
}

impl Look {
    async fn carry_out(self, mut let_go: Abandoned) -> (Looked, IsNews) {
        match self.patiently(&mut let_go).await {
            Err(stop) => (Looked::Halted(stop), IsNews::Yes),
            Ok(Some(found)) => (Looked::Found(found), IsNews::Yes),
            Ok(None) if self.until.is_some_and(|(_, until)| until <= self.attempt.clock.now()) => {
                (Looked::TimedOut, IsNews::Yes)
            }
            Ok(None) => {
                let waiting =
                    |ordinal, wait| Some(Attempt::waiting_of(Arc::clone(&self.attempt), ordinal, wait));
                let signal = waiting(self.claim.ordinal, Wait::Signal(self.name.clone()));
                let limit = self.until.and_then(|(ordinal, until)| waiting(ordinal, Wait::Until(until)));
                (Looked::Nothing([signal, limit]), IsNews::No)
            }
        }
    }

    /// The first signal that is left, however long the database is away. None where none is, or nobody asks any more.
    async fn patiently(&self, let_go: &mut Abandoned) -> Result<Option<Found>, StopReason> {
        let Self { attempt, name, .. } = self;
        let Some(_looking) = let_go.or(attempt.looking.lock()).await else { return Ok(None) };
        // What the code was given before is not left any more then.
        markers::flush(attempt).await?;
        if let Some(left) = attempt.left(name) {
            return self.opened(left);
        }
        loop {
            let left = match attempt.db.acquire().await {
                Ok(mut connection) => {
                    with_timeout(STATEMENT_LIMIT, first_left(&mut connection, attempt.fence.run_id, name))
                        .await
                }
                Err(error) => Err(error),
            };
            match left {
                Ok(Some(left)) => {
                    attempt.keep_left(name, left.clone());
                    return self.opened(left);
                }
                Ok(None) => return Ok(None),
                Err(error) if class(&error) == Class::Permanent => {
                    return Err(StopReason::Refused(Failure::from_chain(FailureKind::Error, &error)));
                }
                Err(error) => {
                    warn_outage!(static, %error, "the wait for a signal waits for the database");
                }
            }
            if let_go.or(tokio::time::sleep(REPEAT)).await.is_none() {
                return Ok(None);
            }
        }
    }

    /// A signal as the code reads it. A sealed payload is sealed for its own place, and needs to be for that of the step.
    fn opened(&self, left: Left) -> Result<Option<Found>, StopReason> {
        let Self { attempt, claim, name, .. } = self;
        let (run_id, key) = (attempt.fence.run_id, key_of(name, &left.idempotency_key));
        let (from, to) =
            (Place::new(run_id, PayloadKind::Signal, &key), Place::of_step(run_id, claim.key.as_str()));
        let opened = attempt.sealer().reseal(&from, &to, left.payload).and_then(|output| {
            let payload = attempt.sealer().open(&to, output.clone())?;
            Ok(Found { number: left.number, payload, output })
        });
        opened.map(Some).map_err(|error| StopReason::Sealed(error.to_failure()))
    }
}

/// What tells a signal of a run from its others: a name has no slash.
pub(crate) fn key_of(name: &str, idempotency_key: &str) -> String {
    format!("{name}/{idempotency_key}")
}

fn timed_out(name: &str, after: Duration) -> Failure {
    Failure::new(FailureKind::Timeout, format!("no signal `{name}` came within {after:?}"))
}
