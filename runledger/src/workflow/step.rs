//! A step as seen by the workflow's code: a future with options.

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
use crate::engine::attempt::stop::StopReason;
use crate::engine::step::StepPolicy;
use crate::model::json;
use crate::model::run::backoff::Backoff;
use crate::model::run::failure::{Failure, FailureKind};

/// The work of a step. Its result is the JSON text of the output.
pub(crate) type StepFuture<'wf> = Pin<Box<dyn Future<Output = Result<String, Failure>> + Send + 'wf>>;

type Make<'wf> = Box<dyn FnOnce(StepPolicy) -> StepFuture<'wf> + Send + 'wf>;
type Decode<'wf, T> = Box<dyn Fn(Result<String, Failure>) -> Result<T, Failure> + Send + 'wf>;

/// A step of a workflow. Building it claims its key. The first poll starts its body, unless the
/// step is recorded.
///
/// It works with every combinator: `join!`, `select!`, `FuturesUnordered`, loops and branches.
///
/// # Cancel safety
/// A dropped step may or may not be recorded. A replay drops it at the same point.
#[must_use = "a step does nothing until it is awaited"]
pub struct Step<'wf, T> {
    key: String,
    policy: StepPolicy,
    make: Option<Make<'wf>>,
    future: Option<StepFuture<'wf>>,
    decode: Decode<'wf, T>,
    /// Whether a failure leads to another try. False for waits and built-in steps.
    has_tries: bool,
    /// Whether it was refused when built. Then it has no place in the history, and `decode` returns
    /// the reason.
    is_refused: bool,
    /// If the recorded output does not fit the type of the code, this attempt stops and the run is
    /// blocked; nothing is lost. `None` if the step fails instead.
    strict: Option<Arc<Attempt>>,
}

impl<'wf, T> Step<'wf, T> {
    /// A step that fails if its output does not fit the type of the code.
    pub(crate) fn new(
        key: String,
        policy: StepPolicy,
        make: impl FnOnce(StepPolicy) -> StepFuture<'wf> + Send + 'wf,
        decode: impl Fn(Result<String, Failure>) -> Result<T, Failure> + Send + 'wf,
    ) -> Self {
        let (make, decode) = (Some(Box::new(make) as Make<'wf>), Box::new(decode));
        Self { key, policy, make, future: None, decode, has_tries: true, is_refused: false, strict: None }
    }

    /// A step without retries: a wait or a built-in step.
    pub(crate) fn without_tries(
        key: String,
        make: impl FnOnce() -> StepFuture<'wf> + Send + 'wf,
        decode: impl Fn(Result<String, Failure>) -> Result<T, Failure> + Send + 'wf,
    ) -> Self {
        Self { has_tries: false, ..Self::new(key, INLINE, move |_| make(), decode) }
    }

    /// A step that fails with this failure whenever it is awaited.
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

    /// The same step, for output that the code recorded itself. If it does not fit the type, the
    /// run is blocked.
    pub(crate) fn of_own_output(self, attempt: &Arc<Attempt>) -> Self {
        Self { strict: Some(Arc::clone(attempt)), ..self }
    }

    /// The same step, for output that another program sent. If it does not fit the type, the step
    /// fails. A rehearsal cannot tell whether the code handles this failure, so it stops.
    pub(crate) fn of_others_output(self, attempt: &Arc<Attempt>) -> Self {
        if attempt.works() { self } else { self.of_own_output(attempt) }
    }

    /// Whether it was refused when built.
    pub(crate) fn is_refused(&self) -> bool {
        self.is_refused
    }

    /// The key of the step.
    pub(crate) fn key(&self) -> &str {
        &self.key
    }

    /// Converts the output for the code, for example because all steps of a [race](crate::Wf::race)
    /// must have one type. The recorded output does not change; every replay converts it again.
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

    /// The same step, which also reports whether it succeeded, when the code receives its result.
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

    /// Sets how often this step is tried, at least 1. Default: the job's own; 5 for an inline step.
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.policy.retry.max_attempts = attempts.max(1);
        self
    }

    /// Sets the delays between tries: the first and the largest. Default: the job's own; 1 s to 5
    /// min for an inline step.
    pub fn backoff(mut self, first: Duration, cap: Duration) -> Self {
        self.policy.retry.backoff = Backoff::new(first, cap);
        self
    }

    /// Limits the time of one try. Default: the job's own; none for an inline step.
    ///
    /// Refused for a step without tries: a sleep, the start of a child, its result, a wait for a
    /// signal. [Race](crate::Wf::race) such a step against a sleep. For signals use
    /// [`SignalWait::timeout`](crate::SignalWait::timeout).
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.policy.timeout = Some(timeout);
        self.of_tries("timeout")
    }

    /// Limits the time of all tries together, including the delays between them. None by default.
    ///
    /// After this time the step fails with a timeout, whose cause is the failure of the last try. A
    /// running try is dropped at its next await. Refused for a step without tries, like
    /// [`timeout`](Self::timeout).
    ///
    /// The time counts from the first recorded failed try, in this attempt of the run or an earlier
    /// one. If there is none, it counts from the first try in this attempt. So a crash during the
    /// first try restarts the time; a crash after a failed try does not.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.policy.deadline = Some(deadline);
        self.of_tries("deadline")
    }

    /// Refuses a limit that has no effect. Otherwise a wait would be endless although the code
    /// limits it.
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

    /// Limits the time between two reports of progress by the body of a call. Default: the job's
    /// `heartbeat`.
    ///
    /// A try that does not call [`Context::progress`](crate::Context::progress) for this long is
    /// dropped at its last await and fails with a timeout. Use it for bodies whose total time is
    /// unknown but whose silence means that they hang. Time that `progress` waits for the database
    /// counts too. An inline step has no context, so for it this limits the whole try.
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
                // The step may be polled again before the executor handles the stop.
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

/// Decodes a recorded output. The first execution and every replay decode the same text.
pub(crate) fn decode_output<T: Payload>(recorded: Result<String, Failure>) -> Result<T, Failure> {
    json::decode(&recorded?).map_err(|error| {
        let failure = Failure::from_chain(FailureKind::Decode, &error);
        let message = format!("the recorded output does not fit the type of the code: {}", failure.message);
        Failure { message, ..failure }
    })
}
