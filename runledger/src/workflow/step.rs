//! A step as the workflow's code holds it: a future with options.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use super::{INLINE, awaited_inside};
use crate::connection::code_context::CodeContext;
use crate::definition::job::Payload;
use crate::definition::step_error::StepError;
use crate::engine::attempt::Attempt;
use crate::engine::step::StepPolicy;
use crate::engine::stop::StopReason;
use crate::model::backoff::Backoff;
use crate::model::failure::{Failure, FailureKind};
use crate::model::json;

/// The work of a step: the JSON text of its output.
pub(crate) type StepFuture<'wf> = Pin<Box<dyn Future<Output = Result<String, Failure>> + Send + 'wf>>;

type Make<'wf> = Box<dyn FnOnce(StepPolicy) -> StepFuture<'wf> + Send + 'wf>;
type Decode<'wf, T> = Box<dyn Fn(Result<String, Failure>) -> Result<T, Failure> + Send + 'wf>;

/// A step of a workflow. Its key was claimed when it was built; its body starts when it is first polled, unless it is recorded.
///
/// It works with every combinator: `join!`, `select!`, `FuturesUnordered`, loops and branches.
///
/// # Cancel safety
/// A dropped step may or may not be recorded. Replay drops it at the same place.
#[must_use = "a step does nothing until it is awaited"]
pub struct Step<'wf, T> {
    key: String,
    policy: StepPolicy,
    make: Option<Make<'wf>>,
    future: Option<StepFuture<'wf>>,
    decode: Decode<'wf, T>,
    /// Whether it is tried again where it fails: a wait and what the engine does by itself are not.
    has_tries: bool,
    /// Whether it was refused when it was built: it has no place in the record, and whatever is decoded is the reason.
    is_refused: bool,
    /// The attempt that stops where the recorded output does not fit the type of the code: the run is parked, and nothing of it lost. None where that is
    /// the failure of the step.
    strict: Option<Arc<Attempt>>,
}

impl<'wf, T> Step<'wf, T> {
    /// A step that gives the code what does not fit its type as its failure.
    pub(crate) fn new(
        key: String,
        policy: StepPolicy,
        make: impl FnOnce(StepPolicy) -> StepFuture<'wf> + Send + 'wf,
        decode: impl Fn(Result<String, Failure>) -> Result<T, Failure> + Send + 'wf,
    ) -> Self {
        let (make, decode) = (Some(Box::new(make) as Make<'wf>), Box::new(decode));
        Self { key, policy, make, future: None, decode, has_tries: true, is_refused: false, strict: None }
    }

    /// A step that is not tried again: it waits, or it is the engine's own.
    pub(crate) fn without_tries(
        key: String,
        make: impl FnOnce() -> StepFuture<'wf> + Send + 'wf,
        decode: impl Fn(Result<String, Failure>) -> Result<T, Failure> + Send + 'wf,
    ) -> Self {
        Self { has_tries: false, ..Self::new(key, INLINE, move |_| make(), decode) }
    }

    /// A step that fails with this whenever it is awaited.
    pub(crate) fn refused(key: String, policy: StepPolicy, failure: Failure) -> Self {
        let decode = Box::new(move |_| Err(failure.clone()));
        Self {
            key,
            policy,
            make: None,
            future: None,
            decode,
            has_tries: false,
            is_refused: true,
            strict: None,
        }
    }

    /// The same step, of code that recorded its output itself: where that does not fit its type, the run is parked.
    pub(crate) fn of_own_output(self, attempt: &Arc<Attempt>) -> Self {
        Self { strict: Some(Arc::clone(attempt)), ..self }
    }

    /// The same step, whose output somebody else has sent: where that does not fit its type, it is the failure of the step. A rehearsal cannot see
    /// whether the code has counted on that, and stops.
    pub(crate) fn of_others_output(self, attempt: &Arc<Attempt>) -> Self {
        if attempt.works() { self } else { self.of_own_output(attempt) }
    }

    /// Whether it was refused when it was built.
    pub(crate) fn is_refused(&self) -> bool {
        self.is_refused
    }

    /// Its key.
    pub(crate) fn key(&self) -> &str {
        &self.key
    }

    /// The same step, whose output the code has in another form: for a [race](crate::Wf::race), whose steps give one type. What is recorded stays as it is,
    /// and every replay changes it anew.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use runledger::prelude::*;
    /// # #[job] async fn quote(shop: &str) -> Result<u64> { Ok(shop.len() as u64) }
    /// #[workflow]
    /// async fn price(wf: &Wf) -> Result<Option<u64>> {
    ///     let quoted = wf.start(quote("north")).await?.result();
    ///     let late = wf.sleep(Duration::from_secs(3600));
    ///     let (_, price) = wf.race([quoted.map_ok(Some), late.map_ok(|()| None)]).await?;
    ///     Ok(price)
    /// }
    /// ```
    pub fn map_ok<U>(self, change: impl Fn(T) -> U + Send + 'wf) -> Step<'wf, U>
    where
        T: 'wf,
    {
        let Self { key, policy, make, future, decode, has_tries, is_refused, strict } = self;
        let decode = Box::new(move |recorded| decode(recorded).map(&change));
        Step { key, policy, make, future, decode, has_tries, is_refused, strict }
    }

    /// The same step, which tells whether it has given an output when the code receives its result.
    pub(crate) fn telling(self, tell: impl Fn(bool) + Send + 'wf) -> Self
    where
        T: 'wf,
    {
        let decode = self.decode;
        let decode = Box::new(move |recorded| {
            let read = decode(recorded);
            tell(read.is_ok());
            read
        });
        Self { decode, ..self }
    }

    /// How many tries of this step may fail; at least 1. For a call the default is the job's own, for an inline step 5.
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.policy.retry.max_attempts = attempts.max(1);
        self
    }

    /// The delays between tries: the first, and the largest. The default is the job's own, for an inline step one second up to five minutes.
    pub fn backoff(mut self, first: Duration, cap: Duration) -> Self {
        self.policy.retry.backoff = Backoff::new(first, cap);
        self
    }

    /// How long one try may take. The default is the job's own, for an inline step none. Refused where nothing is tried: of a sleep, the start of a child,
    /// its result, a wait for a signal. Such are [raced](crate::Wf::race) against a sleep; [`SignalWait::timeout`](crate::SignalWait::timeout) is for signals.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.policy.timeout = Some(timeout);
        self.of_tries("timeout")
    }

    /// How long all tries of this step may take together, with the delays between them; none by default. Afterwards the step fails as by a timeout, with
    /// the failure of its last try as the cause; a try that is still at work is dropped at its next await. Refused where nothing is tried, as
    /// [`timeout`](Self::timeout) is.
    ///
    /// The time counts from the first try that is known: from the first failed one that is recorded, in this attempt of the run or an earlier one, or
    /// otherwise from the first in this attempt. So a crash in the middle of the first try begins the time anew, and one after a failed try does not.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.policy.deadline = Some(deadline);
        self.of_tries("deadline")
    }

    /// Refuses a limit that would limit nothing: a wait that somebody believes to have an end has none.
    fn of_tries(self, limit: &str) -> Self {
        if self.has_tries || self.is_refused {
            return self;
        }
        let message = format!(
            "the step `{}` has no tries that its {limit} could limit: race it against a sleep with `wf.race`; a wait for a signal is limited where it \
             begins, by `wf.signal(…).timeout(…)`, and a child by the deadline of its call",
            self.key
        );
        Self::refused(self.key, self.policy, Failure::new(FailureKind::Setup, message))
    }

    /// For how long the body of a call may say nothing of its progress; the default is the `heartbeat` of its job, where it has one. A try that has not called
    /// [`Context::progress`](crate::Context::progress) for so long is dropped at its last await, as by a timeout: for bodies whose whole time nobody can
    /// tell, but whose silence says that they hang. Time in which such a call waits for the database counts as silence too. An inline step has no context
    /// to call it on, so it may only take so long altogether.
    pub fn heartbeat_timeout(mut self, silence: Duration) -> Self {
        self.policy.heartbeat = Some(silence);
        self
    }
}

impl<T> Future for Step<'_, T> {
    type Output = Result<T, StepError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if this.is_refused {
            let refused = (this.decode)(Ok(String::new()));
            return Poll::Ready(refused.map_err(|failure| StepError::new(this.key.clone(), failure)));
        }
        if CodeContext::InlineStep.is_here() {
            return Poll::Ready(Err(StepError::new(this.key.clone(), awaited_inside(&this.key))));
        }
        if let Some(make) = this.make.take() {
            this.future = Some(make(this.policy));
        }
        let Some(future) = &mut this.future else { return Poll::Pending };
        let Poll::Ready(recorded) = future.as_mut().poll(cx) else { return Poll::Pending };
        let was_output = recorded.is_ok();
        match ((this.decode)(recorded), &this.strict) {
            (Err(failure), Some(attempt)) if was_output => {
                attempt.stop(StopReason::unreadable(&this.key, failure.message));
                // It may be polled again before the executor looks.
                this.future = Some(Box::pin(std::future::pending()));
                Poll::Pending
            }
            (read, _) => Poll::Ready(read.map_err(|failure| StepError::new(this.key.clone(), failure))),
        }
    }
}

impl<T> std::fmt::Debug for Step<'_, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Step").field("key", &self.key).finish_non_exhaustive()
    }
}

/// Reads a recorded output as the type of the code: the first execution and the replay see the same value.
pub(crate) fn decode_output<T: Payload>(recorded: Result<String, Failure>) -> Result<T, Failure> {
    json::decode(&recorded?).map_err(|error| {
        let failure = Failure::from_chain(FailureKind::Decode, &error);
        let message = format!("the recorded output does not fit the type of the code: {}", failure.message);
        Failure { message, ..failure }
    })
}
