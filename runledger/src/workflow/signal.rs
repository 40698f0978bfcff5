//! Waits for signals.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use super::step::{Step, StepFuture};
use super::{Wf, refused, too_long};
use crate::definition::job::Payload;
use crate::definition::step_error::StepError;
use crate::engine::signals::{Limit, receive};
use crate::model::failure::{Failure, FailureKind};
use crate::model::json;
use crate::model::name::check_name;
use crate::model::replay::{Claim, StepKind};
use crate::model::timestamp::FURTHEST;

impl Wf {
    /// Waits for a signal: a value that somebody outside sends to this run by [`RunHandle::signal`](crate::RunHandle::signal). One that was sent before the wait
    /// counts. Signals of one name are taken in the order in which they were sent, each by one wait, and recorded with it in one commit, before anything that the
    /// workflow does with it; of two waits of one name at a time it is left to chance which takes the first, and a replay gives each its own again. A run that
    /// only waits leaves its worker: it holds no slot, no connection and no memory.
    ///
    /// Waits as long as it takes; [`SignalWait::timeout`] sets a limit. Its key is `signal[name]`, counted per occurrence.
    ///
    /// # Errors
    /// The payload does not fit `T`: the signal is taken all the same, and the workflow may wait for another. The name breaks a rule.
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

/// A wait for a signal: a future that gives its payload.
///
/// # Cancel safety
/// A dropped wait has taken nothing: a signal that has come for it is left for the next wait of its name. So waits may stand in `tokio::select!` in a loop.
#[must_use = "a wait for a signal does nothing until it is awaited"]
#[derive(Debug)]
pub struct SignalWait<'wf, T> {
    wf: &'wf Wf,
    name: String,
    /// None where the wait was refused.
    claim: Option<Claim>,
    step: Step<'wf, T>,
}

impl<'wf, T: Payload> SignalWait<'wf, T> {
    /// Waits no longer than this, by the database's clock: `None` where no signal has come by then. The instant is recorded as a step of its own,
    /// `signal.timeout[name]`, so a crash or a deploy does not lengthen the wait; a signal that is there at the instant is taken.
    ///
    /// # Errors
    /// As [`Wf::signal`], and a limit of more than 100 years.
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
    /// The wait as a step like others: for a list or a [`race`](Wf::race) of steps and waits.
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

/// Reads what a signal has brought as the type of the code.
fn decode_sent<T: Payload>(recorded: Result<String, Failure>) -> Result<T, Failure> {
    json::decode(&recorded?).map_err(|error| {
        let wanted = std::any::type_name::<T>();
        let failure = Failure::from_chain(FailureKind::Decode, &error);
        let message = format!("the signal does not fit the type that this wait takes, `{wanted}`, so it was sent as another: {}", failure.message);
        Failure { message, ..failure }
    })
}
