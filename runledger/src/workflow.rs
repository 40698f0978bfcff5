//! The workflow's view of its run: steps and sleeps. Each submodule adds one feature.

mod branch;
pub(crate) mod child;
pub(crate) mod config;
mod continue_as_new;
pub(crate) mod macro_traits;
mod map;
mod mark;
pub(crate) mod output;
pub(crate) mod progress;
mod saga;
mod signal;
pub(crate) mod step;
mod tx;

use std::future::Future;
use std::panic::Location;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use uuid::Uuid;

pub use self::branch::{Branch, Race};
pub use self::child::Child;
pub use self::map::Map;
pub use self::saga::Saga;
pub use self::signal::SignalWait;
use self::step::{Step, StepFuture, decode_output};
pub use self::tx::StepTx;
use crate::connection::code_context::CodeContext;
use crate::connection::panic::contained;
use crate::definition::call::Call;
use crate::definition::invocation::{Finished, Invocation, finished};
use crate::definition::job::{Job, JobResult, Payload};
use crate::definition::{DEFAULT_MAX_ATTEMPTS, Kind};
use crate::engine::attempt::Attempt;
use crate::engine::attempt::stop::StopReason;
use crate::engine::step::call::{body_of, policy_of};
use crate::engine::step::waiting::{self, Alarm};
use crate::engine::step::{Body, LastFailure, MakeCompensation, StepPolicy, Work, resolve};
use crate::model::payload::Plain;
use crate::model::replay::{Claim, Line, Scope, StepKind};
use crate::model::run::backoff::Backoff;
use crate::model::run::failure::{Failure, FailureKind};
use crate::model::run::name::{check_key, check_name};
use crate::model::run::settle::RetryPolicy;
use crate::model::timestamp::{FURTHEST, Timestamp};

/// A workflow's view of its run.
///
/// It is borrowed and cannot be cloned. So no step can move into a spawned task, where replay could
/// not reproduce the order of the claims.
#[derive(Debug)]
pub struct Wf {
    attempt: Arc<Attempt>,
    scope: Scope,
}

/// The policy of steps without a job.
pub(crate) const INLINE: StepPolicy = StepPolicy {
    retry: RetryPolicy { max_attempts: DEFAULT_MAX_ATTEMPTS, backoff: Backoff::DEFAULT },
    timeout: None,
    deadline: None,
    heartbeat: None,
};

impl Invocation {
    /// Returns the workflow's view of its run.
    #[must_use]
    pub fn wf(&self) -> Wf {
        Wf::new(Arc::clone(&self.attempt))
    }
}

impl Wf {
    pub(crate) fn new(attempt: Arc<Attempt>) -> Self {
        Self { attempt, scope: Scope::root() }
    }

    pub(crate) fn attempt(&self) -> &Arc<Attempt> {
        &self.attempt
    }

    /// The path of the branch. Empty for the workflow itself.
    pub(crate) fn path(&self) -> &str {
        self.scope.path()
    }

    /// The id of the run.
    #[must_use]
    pub fn run_id(&self) -> Uuid {
        self.attempt.fence.run_id
    }

    /// The tenant of the run. Empty for none.
    #[must_use]
    pub fn tenant(&self) -> &str {
        &self.attempt.tenant
    }

    /// Executes a call as a step of this run, in this worker. Returns the recorded output if there
    /// is one.
    ///
    /// The body may run more than once; its output is recorded once. The key of the step is the
    /// job's name, plus [`Call::key`] if the call has one, counted per occurrence. For a renamed
    /// job, the oldest name counts: the first of its `aliases`.
    ///
    /// # Errors
    /// The step's failure, after its last try. A call with an option that only a separate run can
    /// have is refused: queue, priority, tenant, idempotency key, delay, start.
    ///
    /// # Cost
    /// One statement, shared with other steps under load.
    #[track_caller]
    pub fn run<J: Job>(&self, call: Call<J>) -> Step<'_, J::Output> {
        self.run_with(call, None, Location::caller())
    }

    fn run_with<'wf, J: Job>(
        &'wf self,
        call: Call<J>,
        compensation: Option<MakeCompensation<'wf>>,
        line: Line,
    ) -> Step<'wf, J::Output> {
        let definition = J::DEFINITION;
        if definition.kind() == Kind::Workflow {
            return refused(definition.name, not_a_step(definition.name));
        }
        if let Some(option) = call.request.said_beyond(&["max_attempts", "timeout", "backoff"]) {
            return refused(definition.name, not_for_a_step(definition.name, option));
        }
        let policy = policy_of(&call.request.options, definition, &self.attempt.registry);
        let input = match call.request.input {
            Ok(input) => input,
            Err(error) => return refused(definition.name, Failure::from_chain(FailureKind::Encode, &error)),
        };
        let what = input_of(definition.name);
        let fingerprints = match self.fingerprints(definition.name, &input) {
            Ok(fingerprints) => fingerprints,
            Err(step) => return step,
        };
        let fingerprint = fingerprints.first().copied().unwrap_or(0);
        let refusal = self.attempt.sealer().check_secret(&what, &input).map_err(|error| error.to_failure());
        let input: Arc<str> = input.into_text().into();
        let body = move |attempt, key| match refusal {
            Ok(()) => body_of(definition, attempt, key, input),
            Err(failure) => {
                Body::Code(Box::new(move |_| Box::pin(std::future::ready(Finished::broken(failure.clone())))))
            }
        };
        let claim = self.claim_at(definition.oldest_name(), call.key.as_deref(), &fingerprints, line);
        self.compensable(claim, fingerprint, policy, body, compensation)
    }

    /// Executes a closure as a step: `wf.step("total", || async { … })`.
    ///
    /// The closure may borrow the workflow's locals. It cannot modify them, because replay would
    /// skip the modification. The key of the step is its name, counted per occurrence.
    ///
    /// # Errors
    /// The step's failure, after its last try (5 by default).
    #[track_caller]
    pub fn step<'wf, F, Fut, R>(&'wf self, name: &str, body: F) -> Step<'wf, R::Ok>
    where
        F: Fn() -> Fut + Send + Sync + 'wf,
        Fut: Future<Output = R> + Send + 'wf,
        R: JobResult + Send,
    {
        if let Err(error) = check_name("step", name) {
            return refused(name, Failure::new(FailureKind::Setup, error.to_string()));
        }
        self.step_with(name, None, 0, INLINE, move |_, _| {
            Body::Code(Box::new(move |_| {
                // The closure may itself build a step, `|| wf.run(…)`, and may panic before it
                // returns a future.
                let made = contained(|| {
                    let _inside = CodeContext::InlineStep.enter();
                    body()
                });
                match made {
                    Ok(body) => Box::pin(async move { ended(CodeContext::InlineStep.of(body).await) }),
                    Err(panic) => Box::pin(std::future::ready(Finished::failed(panic))),
                }
            }))
        })
    }

    /// Sleeps by the database's clock.
    ///
    /// The wake-up time is recorded, so a crash or a deploy does not lengthen the sleep. A run that
    /// only sleeps is suspended: it uses no worker slot, connection or memory.
    ///
    /// # Errors
    /// The duration is longer than 100 years.
    #[track_caller]
    pub fn sleep(&self, duration: Duration) -> Step<'_, ()> {
        if duration > FURTHEST {
            return refused("sleep", too_long("sleep", duration));
        }
        self.alarm("sleep", Alarm::After(duration))
    }

    /// Sleeps until an instant of the database's clock.
    ///
    /// The instant is recorded, to the microsecond. Every replay uses the recorded instant, even if
    /// the code computes another one. An instant in the past is recorded too, and the sleep ends at
    /// once. Otherwise it is like [`sleep`](Self::sleep), at the same cost.
    ///
    /// ```no_run
    /// # use runledger::prelude::*;
    /// # use std::time::{Duration, SystemTime};
    /// #[workflow]
    /// async fn remind(wf: &Wf, opens_at: SystemTime) -> Result<()> {
    ///     wf.sleep_until(opens_at - Duration::from_secs(3600)).await?;
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Errors
    /// The instant is more than 100 years away.
    #[track_caller]
    pub fn sleep_until(&self, instant: SystemTime) -> Step<'_, ()> {
        self.alarm("sleep_until", Alarm::At(Timestamp::not_before(instant)))
    }

    #[track_caller]
    fn alarm(&self, name: &str, alarm: Alarm) -> Step<'_, ()> {
        let claim = match self.claim(name, None, StepKind::Alarm.fingerprint(0)) {
            Ok(claim) => claim,
            Err(step) => return step,
        };
        let attempt = Arc::clone(&self.attempt);
        let key = claim.key.as_str().to_owned();
        Step::without_tries(
            key,
            move || Box::pin(async move { waiting::sleep(&attempt, &claim, alarm).await }),
            |recorded| recorded.map(drop),
        )
    }

    #[track_caller]
    fn step_with<'wf, T: Payload>(
        &'wf self,
        name: &str,
        key: Option<&str>,
        fingerprint: i64,
        policy: StepPolicy,
        body: impl FnOnce(Arc<Attempt>, Arc<str>) -> Body<'wf> + Send + 'wf,
    ) -> Step<'wf, T> {
        self.compensable(self.claim(name, key, fingerprint), fingerprint, policy, body, None)
    }

    fn compensable<'wf, T: Payload>(
        &'wf self,
        claim: Result<Claim, Step<'wf, T>>,
        fingerprint: i64,
        policy: StepPolicy,
        body: impl FnOnce(Arc<Attempt>, Arc<str>) -> Body<'wf> + Send + 'wf,
        compensation: Option<MakeCompensation<'wf>>,
    ) -> Step<'wf, T> {
        let claim = match claim {
            Ok(claim) => claim,
            Err(step) => return step,
        };
        let attempt = Arc::clone(&self.attempt);
        let key = claim.key.as_str().to_owned();
        let work = move |policy| -> StepFuture<'wf> {
            Box::pin(async move {
                let body = body(Arc::clone(&attempt), claim.key.as_str().into());
                let last_failure = LastFailure::IsItsResult;
                let work = Work { fingerprint, policy, body, compensation, last_failure };
                resolve(&attempt, &claim, &work).await
            })
        };
        Step::new(key, policy, work, decode_output).of_own_output(&self.attempt)
    }

    /// Claims the next step. The error is a step that fails with the reason.
    #[expect(clippy::result_large_err, reason = "the step is handed on at once, never stored")]
    #[track_caller]
    pub(crate) fn claim<'wf, T>(
        &'wf self,
        name: &str,
        key: Option<&str>,
        fingerprint: i64,
    ) -> Result<Claim, Step<'wf, T>> {
        self.claim_at(name, key, &[fingerprint], Location::caller())
    }

    /// Returns the fingerprints of a step's input. They do not depend on the order of map keys.
    ///
    /// The first is the current one. A history may contain any of the others. The error is a step
    /// that never completes, because the attempt stops.
    #[expect(clippy::result_large_err, reason = "the step is handed on at once, never stored")]
    pub(crate) fn fingerprints<'wf, T>(
        &'wf self,
        name: &str,
        input: &Plain,
    ) -> Result<Vec<i64>, Step<'wf, T>> {
        self.attempt.sealer().fingerprints(input, || input_of(name)).map_err(|error| {
            self.attempt.stop(StopReason::of_payload(&error));
            never(name)
        })
    }

    /// Like [`claim`](Self::claim), for a step at this line of the workflow's code whose input has
    /// one of these fingerprints.
    #[expect(clippy::result_large_err, reason = "the step is handed on at once, never stored")]
    pub(crate) fn claim_at<'wf, T>(
        &'wf self,
        name: &str,
        key: Option<&str>,
        fingerprints: &[i64],
        line: Line,
    ) -> Result<Claim, Step<'wf, T>> {
        if let Some(Err(error)) = key.map(|key| check_key("step key", key)) {
            return Err(refused(name, Failure::new(FailureKind::Setup, error.to_string())));
        }
        if let Some(key) = key.filter(|_| OF_ENGINE.contains(&name)) {
            return Err(refused(name, of_engine(name, key)));
        }
        if CodeContext::InlineStep.is_here() {
            return Err(refused(name, nested(name)));
        }
        self.attempt.claim(&self.scope, name, key, fingerprints, line).ok_or_else(|| never(name))
    }
}

/// The names of built-in steps that are identified by a key.
const OF_ENGINE: [&str; 3] = ["compensate", "saga.compensate", "patched"];

fn of_engine(name: &str, key: &str) -> Failure {
    let message = format!(
        "step `{name}[{key}]` would have the key of one of the engine's own, which says what was done about `{key}`; give the job another name, or the call no \
         `key`"
    );
    Failure::new(FailureKind::Setup, message)
}

/// The failure of a step that is built in the body of another step.
pub(crate) fn nested(name: &str) -> Failure {
    let message = format!(
        "step `{name}` was started inside the body of another step, whose replay would skip it; start it in the workflow's own code, \
         before or after that step"
    );
    Failure::new(FailureKind::Setup, message)
}

/// The failure of a step that is awaited in the body of another step.
pub(crate) fn awaited_inside(key: &str) -> Failure {
    let message = format!(
        "step `{key}` was awaited inside the body of another step, whose replay would skip it; await it in the workflow's own code, before that step, \
         and give that step its output"
    );
    Failure::new(FailureKind::Setup, message)
}

fn too_long(what: &str, duration: Duration) -> Failure {
    let message = format!(
        "a {what} of {} years is longer than the 100 that are allowed; if the run should wait for something that may never come, wait for that instead",
        duration.as_secs() / (365 * 24 * 60 * 60)
    );
    Failure::new(FailureKind::Setup, message)
}

fn not_for_a_step(name: &str, option: &str) -> Failure {
    let message = format!(
        "the call of job `{name}` has a `{option}`, which means nothing for a step: it runs here and now, in this run; leave it out, or start the call \
         as a run of its own with `wf.start`"
    );
    Failure::new(FailureKind::Setup, message)
}

fn not_a_step(name: &str) -> Failure {
    let message = format!(
        "workflow `{name}` cannot be a step, since its own steps would be skipped with it on replay; start it as a run of its own: \
         `wf.start({name}(…)).await?.result().await?`"
    );
    Failure::new(FailureKind::Setup, message)
}

/// A step that never completes, because the attempt stops. The executor ends the attempt.
pub(crate) fn never<'wf, T>(name: &str) -> Step<'wf, T> {
    Step::new(name.to_owned(), INLINE, |_| Box::pin(std::future::pending()), |_| Err(nested("")))
}

fn input_of(step: &str) -> String {
    format!("the input of step `{step}`")
}

/// A step that fails before it is claimed. Nothing is recorded, so it fails again in every replay.
pub(crate) fn refused<'wf, T>(name: &str, failure: Failure) -> Step<'wf, T> {
    Step::refused(name.to_owned(), INLINE, failure)
}

fn ended<R: JobResult>(result: R) -> Finished {
    finished(result, None)
}
