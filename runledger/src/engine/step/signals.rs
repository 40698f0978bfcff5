//! Steps that wait for signals.
//!
//! A wait polls the database for an unreceived signal, and takes it in the same poll that delivers
//! it to the code. A marker records the delivery before anything that the code does with the
//! signal. Therefore a dropped wait has never taken a signal.

use std::sync::Arc;
use std::time::Duration;

use crate::connection::db_timeout::{STATEMENT_LIMIT, with_timeout};
use crate::connection::outage::warn_outage;
use crate::connection::task::Abandoned;
use crate::engine::attempt::Attempt;
use crate::engine::attempt::activity::Waiting;
use crate::engine::attempt::stop::{StopReason, Wait};
use crate::engine::step::markers;
use crate::engine::step::unpolled::at_work;
use crate::engine::step::waiting::{ASK_AGAIN, Alarm, IsNews, REPEAT, instant, looked};
use crate::engine::step::{record, stop_reason};
use crate::model::payload::{PayloadKind, Place, Stored};
use crate::model::replay::{Claim, StepKind};
use crate::model::run::failure::{Failure, FailureKind};
use crate::model::timestamp::Timestamp;
use crate::store::attempt::signal::{Left, SignalTake, first_left};
use crate::store::error::{Class, class};

/// The time limit of a wait for a signal: the step that records the instant, and the time from now
/// for a limit that is not recorded yet.
pub(crate) struct Limit {
    pub(crate) claim: Claim,
    pub(crate) after: Duration,
}

/// An unreceived signal, decrypted for the code and encrypted for its step.
struct Found {
    number: i32,
    payload: String,
    output: Stored,
}

/// The result of a wait.
enum Received {
    Signal(Found),
    /// The recorded result, from an earlier attempt or because the limit has passed.
    Recorded(Result<String, Failure>),
}

/// Waits for a signal, takes it and returns its payload. If the limit passes first, fails with a
/// timeout and takes no signal.
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
    // Do not await after this point on success: the code must receive what the step takes.
    match received {
        Received::Recorded(recorded) => recorded,
        Received::Signal(found) if attempt.give(name, found.number) => {
            let Found { number, payload, output } = found;
            let step = attempt.received(claim, StepKind::Signal.fingerprint(0), output);
            let name = name.to_owned();
            markers::keep_signal(attempt, SignalTake { step, name, number, slice: attempt.slice });
            Ok(payload)
        }
        // Another wait received the signal while this one waited for its turn. Without a failover,
        // the turn comes at once.
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
            // Every poll first writes the markers of received signals, so this signal's record was
            // lost.
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

/// A poll for a signal. It runs to its end even if its wait is not polled, because it holds a
/// connection.
struct Look {
    attempt: Arc<Attempt>,
    claim: Claim,
    name: String,
    /// The ordinal of the step that recorded the limit, and the limit.
    until: Option<(u64, Timestamp)>,
}

/// The result of a poll.
enum Looked {
    Found(Found),
    Halted(StopReason),
    /// No signal, and the limit has passed.
    TimedOut,
    /// No signal. The step waits from here on.
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

    /// The first unreceived signal. Retries while the database is unavailable. Returns `None` if
    /// there is none, or if the wait was dropped.
    async fn patiently(&self, let_go: &mut Abandoned) -> Result<Option<Found>, StopReason> {
        let Self { attempt, name, .. } = self;
        let Some(_looking) = let_go.or(attempt.looking.lock()).await else { return Ok(None) };
        // Write the markers first, so that the database no longer returns signals the code has
        // received.
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

    /// Decrypts a signal for the code. An encrypted payload is bound to its place, so it is
    /// encrypted again for the step.
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

/// The key of a signal within its run. It is unique, because a name contains no slash.
pub(crate) fn key_of(name: &str, idempotency_key: &str) -> String {
    format!("{name}/{idempotency_key}")
}

fn timed_out(name: &str, after: Duration) -> Failure {
    Failure::new(FailureKind::Timeout, format!("no signal `{name}` came within {after:?}"))
}
