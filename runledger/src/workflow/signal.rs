//! Waits for signals.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use super::step::{Step, StepFuture};
use super::{Wf, refused, too_long};
use crate::definition::job::Payload;
use crate::definition::step_error::StepError;
use crate::engine::step::signals::{Limit, receive};
use crate::model::json;
use crate::model::replay::{Claim, StepKind};
use crate::model::run::failure::{Failure, FailureKind};
use crate::model::run::name::check_name;
use crate::model::timestamp::FURTHEST;

impl Wf {
    /// Waits for a signal: a value that a program sends by
    /// [`RunHandle::signal`](crate::RunHandle::signal).
    ///
    /// - A signal that was sent before the wait counts.
    /// - The signals of one name are received in the order of sending, each by one wait. If two
    ///   waits of one name are active, either may receive the next signal. A replay gives each wait
    ///   its own signal again.
    /// - The signal and its wait are recorded in one commit, before the workflow acts on the
    ///   signal.
    /// - A run that only waits is suspended: it uses no worker slot, connection or memory.
    ///
    /// There is no limit; set one with [`SignalWait::timeout`]. The key of the wait is
    /// `signal[name]`, counted per occurrence.
    ///
    /// # Errors
    /// The payload does not fit `T`: the signal is consumed anyway, and the workflow can wait for
    /// another. Or the name is invalid.
    #[track_caller]
    pub fn signal<T: Payload>(&self, name: &str) -> SignalWait<'_, T> {
        if let Err(error) = check_name("signal", name) {
            let step = refused("signal", Failure::new(FailureKind::Setup, error.to_string()));
            return SignalWait { wf: self, name: name.to_owned(), claim: None, step };
        }
        match self.claim("signal", Some(name), StepKind::Signal.fingerprint(0)) {
            Ok(claim) => {
                let step = self.wait_for(name.to_owned(), claim.clone(), None, decode_sent);
                SignalWait { wf: self, name: name.to_owned(), claim: Some(claim), step }
            }
            Err(step) => SignalWait { wf: self, name: name.to_owned(), claim: None, step },
        }
    }

    fn wait_for<'wf, T: Payload>(
        &'wf self,
        name: String,
        claim: Claim,
        limit: Option<Limit>,
        decode: fn(Result<String, Failure>) -> Result<T, Failure>,
    ) -> Step<'wf, T> {
        let (attempt, key) = (&self.attempt, claim.key.as_str().to_owned());
        let work = move || -> StepFuture<'wf> {
            Box::pin(async move { receive(attempt, &claim, &name, limit.as_ref()).await })
        };
        Step::without_tries(key, work, decode).of_others_output(&self.attempt)
    }
}

/// A wait for a signal: a future that returns the payload.
///
/// # Cancel safety
/// Cancel safe: a dropped wait has consumed no signal. A signal that arrived for it goes to the
/// next wait of its name. So you can use waits in `tokio::select!` in a loop.
#[must_use = "a wait for a signal does nothing until it is awaited"]
#[derive(Debug)]
pub struct SignalWait<'wf, T> {
    wf: &'wf Wf,
    name: String,
    /// `None` if the wait was refused.
    claim: Option<Claim>,
    step: Step<'wf, T>,
}

impl<'wf, T: Payload> SignalWait<'wf, T> {
    /// Limits the wait, by the database's clock. Returns `None` if no signal arrives in time.
    ///
    /// The end of the limit is recorded as a separate step, `signal.timeout[name]`, so a crash or a
    /// deploy does not lengthen the wait. A signal that is present at that instant is received.
    ///
    /// # Errors
    /// As for [`Wf::signal`], or the limit is longer than 100 years.
    #[track_caller]
    pub fn timeout(self, limit: Duration) -> Step<'wf, Option<T>> {
        let Self { wf, name, claim, step } = self;
        let Some(claim) = claim else { return step.map_ok(Some) };
        if limit > FURTHEST {
            return refused("signal", too_long("wait", limit));
        }
        match wf.claim("signal.timeout", Some(&name), StepKind::Alarm.fingerprint(0)) {
            Ok(timer) => {
                let limit = Limit { claim: timer, after: limit };
                wf.wait_for(name, claim, Some(limit), in_time)
            }
            Err(step) => step,
        }
    }
}

impl<'wf, T> From<SignalWait<'wf, T>> for Step<'wf, T> {
    /// Converts the wait to a step, for a list or a [`race`](Wf::race) of steps and waits.
    fn from(wait: SignalWait<'wf, T>) -> Self {
        wait.step
    }
}

impl<T> Future for SignalWait<'_, T> {
    type Output = Result<T, StepError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.step).poll(cx)
    }
}

fn in_time<T: Payload>(recorded: Result<String, Failure>) -> Result<Option<T>, Failure> {
    match recorded {
        Err(failure) if failure.kind == FailureKind::Timeout => Ok(None),
        recorded => decode_sent(recorded).map(Some),
    }
}

/// Decodes the payload of a signal as the type of the code.
fn decode_sent<T: Payload>(recorded: Result<String, Failure>) -> Result<T, Failure> {
    json::decode(&recorded?).map_err(|error| {
        let wanted = std::any::type_name::<T>();
        let failure = Failure::from_chain(FailureKind::Decode, &error);
        let message = format!("the signal does not fit the type that this wait takes, `{wanted}`, so it was sent as another: {}", failure.message);
        Failure { message, ..failure }
    })
}
