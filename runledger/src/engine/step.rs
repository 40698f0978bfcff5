//! One step of a workflow, from its claim to the delivery of its result.

pub(crate) mod call;
pub(crate) mod detached_writes;
pub(crate) mod markers;
pub(crate) mod saga;
pub(crate) mod signals;
pub(crate) mod unpolled;
pub(crate) mod waiting;

use std::future::Future;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::connection::code_context::CodeContext;
use crate::connection::panic::{Caught, contained};
use crate::connection::task::spawn_detached;
use crate::connection::tx::Tx;
use crate::definition::invocation::{Finished, unstorable};
use crate::engine::attempt::Attempt;
use crate::engine::attempt::activity::Waiting;
use crate::engine::attempt::stop::{StopReason, Wait};
use crate::engine::beat::watched;
use crate::engine::body::around;
use crate::engine::span::within_span;
use crate::engine::step::saga::compensation_failed;
use crate::engine::step::unpolled::{StepWork, at_work};
use crate::engine::transaction;
use crate::model::payload::{PayloadError, PayloadKind, Place, Plain};
use crate::model::replay::Claim;
use crate::model::replay::recorded::place_of_error;
use crate::model::run::failure::{Failure, FailureKind, Retry};
use crate::model::run::settle::{RetryPolicy, retry_delay};
use crate::model::timestamp::Timestamp;
use crate::store::attempt::checkpoint::{Checkpoint, FailedTry};

/// One try of a step's body.
pub(crate) type Try<'a> = Pin<Box<dyn Future<Output = Finished> + Send + 'a>>;

/// The code of a step that is not recorded yet.
pub(crate) enum Body<'a> {
    /// Code. The argument is the number of the try, from 1.
    Code(Box<dyn Fn(u32) -> Try<'a> + Send + Sync + 'a>),
    /// Code in a transaction that also records the step.
    Transaction(Box<dyn Fn(u32, Tx) -> Try<'a> + Send + Sync + 'a>),
    /// As `Transaction`, for code that borrows nothing.
    OwnTransaction(Arc<dyn Fn(u32, Tx) -> Try<'static> + Send + Sync>),
}

/// How a step is tried.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StepPolicy {
    pub(crate) retry: RetryPolicy,
    pub(crate) timeout: Option<Duration>,
    /// The limit over all tries.
    pub(crate) deadline: Option<Duration>,
    /// How long a body may report no progress.
    pub(crate) heartbeat: Option<Duration>,
}

impl StepPolicy {
    /// The policy of a try with this much time left.
    fn within(self, left: Option<Duration>) -> Self {
        let timeout = match (self.timeout, left) {
            (Some(timeout), Some(left)) => Some(timeout.min(left)),
            (timeout, left) => timeout.or(left),
        };
        Self { timeout, ..self }
    }
}

/// Builds the compensation of a step from its output, as it is stored.
pub(crate) type MakeCompensation<'a> = Box<dyn Fn(&str) -> Result<Plain, Failure> + Send + Sync + 'a>;

/// The body of a step, its policy and its compensation.
pub(crate) struct Work<'a> {
    pub(crate) fingerprint: i64,
    pub(crate) policy: StepPolicy,
    pub(crate) body: Body<'a>,
    pub(crate) compensation: Option<MakeCompensation<'a>>,
    /// The effect on the run after the last failed try.
    pub(crate) last_failure: LastFailure,
}

/// The effect of a step's last failed try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LastFailure {
    /// The failure is recorded and returned to the code.
    IsItsResult,
    /// The failure is not recorded. The run is blocked with it, and tries the step again when
    /// resumed.
    Parks,
}

/// Returns the result of a step when its turn has come: the recorded one, or the result of its
/// body, which is recorded first. Never returns if the attempt stops.
pub(crate) async fn resolve(
    attempt: &Arc<Attempt>,
    claim: &Claim,
    work: &Work<'_>,
) -> Result<String, Failure> {
    let result = outcome(attempt, claim, work).await;
    attempt.turn(claim.ordinal).await;
    result
}

/// Like [`resolve`], without waiting for a turn: for steps outside the code's own order.
pub(crate) async fn outcome(
    attempt: &Arc<Attempt>,
    claim: &Claim,
    work: &Work<'_>,
) -> Result<String, Failure> {
    match attempt.result(claim.ordinal) {
        Some(recorded) if claim.recorded => recorded,
        _ => perform(attempt, claim, work).await,
    }
}

async fn perform(attempt: &Arc<Attempt>, claim: &Claim, work: &Work<'_>) -> Result<String, Failure> {
    let (mut tries, began_at) = attempt.failures(claim.key.as_str());
    let deadline = work.policy.deadline.map(|limit| (began_at.plus(limit), limit));
    loop {
        tries += 1;
        let next: StepWork<'_, _> = Box::pin(try_until_done(attempt, claim, work, tries, deadline));
        match at_work(attempt, claim, next).await {
            Next::Done(result) => return result,
            Next::Again(until, waiting) => {
                attempt.sleep_until(claim.ordinal, until).await;
                drop(waiting);
            }
        }
    }
}

/// The result of a try.
enum Next<'a> {
    Done(Result<String, Failure>),
    /// Try again at this instant. The step registers its wait before it stops working, so that the
    /// run does not look idle in between.
    Again(Timestamp, Waiting<&'a Attempt>),
}

/// Tries once, and records a final result.
async fn try_until_done<'a>(
    attempt: &'a Arc<Attempt>,
    claim: &Claim,
    work: &Work<'_>,
    tries: u32,
    deadline: Option<(Timestamp, Duration)>,
) -> Next<'a> {
    attempt.liveness.guard().await;
    let left = deadline.map(|(until, _)| until.since(attempt.clock.now()));
    let began = Instant::now();
    let tried = try_once(attempt, claim, work, work.policy.within(left), tries).await;
    let (failure, retry) = match tried {
        Tried::Recorded(result) => return Next::Done(result),
        Tried::Output(output) => return Next::Done(record_output(attempt, claim, work, output).await),
        Tried::Failed(failure, retry) => (failure, retry),
    };
    tracing::warn!(
        run_id = %attempt.fence.run_id, step = claim.key.as_str(), attempt = tries, failure = %attempt.sealer().loggable(&failure),
        "a try of a step failed"
    );
    let delay = retry_delay(retry, tries, &work.policy.retry, unit_random());
    if let Some((until, limit)) = deadline {
        let now = attempt.clock.now();
        // Do not wait for a try that would begin after the deadline.
        let is_last = delay.is_some_and(|delay| now.plus(delay) >= until);
        if is_last || (failure.kind == FailureKind::Timeout && now >= until) {
            return Next::Done(
                finish_last_failure(attempt, claim, work, too_late(limit, tries, &failure)).await,
            );
        }
    }
    let Some(delay) = delay else {
        return Next::Done(finish_last_failure(attempt, claim, work, failure).await);
    };
    record_failed_try(attempt, claim, tries, &failure, began.elapsed()).await;
    let until = attempt.clock.now().plus(delay);
    Next::Again(until, attempt.waiting(claim.ordinal, Wait::Until(until)))
}

/// Handles the last failed try of a step.
async fn finish_last_failure(
    attempt: &Arc<Attempt>,
    claim: &Claim,
    work: &Work<'_>,
    failure: Failure,
) -> Result<String, Failure> {
    match work.last_failure {
        LastFailure::IsItsResult => record(attempt, claim, work.fingerprint, Err(failure)).await,
        LastFailure::Parks => {
            stop_reason(attempt, StopReason::CompensationFailed(compensation_failed(claim, failure))).await
        }
    }
}

fn too_late(limit: Duration, tries: u32, last: &Failure) -> Failure {
    let message = format!(
        "gave no output within its deadline of {limit:?}, after {tries} tries; raise `deadline`, or let its tries end sooner by `timeout`"
    );
    Failure { causes: vec![format!("the last try: {last}")], ..Failure::new(FailureKind::Timeout, message) }
}

enum Tried {
    /// The step is recorded by its own transaction.
    Recorded(Result<String, Failure>),
    Output(Plain),
    Failed(Failure, Retry),
}

async fn try_once(
    attempt: &Arc<Attempt>,
    claim: &Claim,
    work: &Work<'_>,
    policy: StepPolicy,
    tries: u32,
) -> Tried {
    let key = claim.key.as_str();
    let watched = |body| watched(attempt, key, policy.heartbeat, body);
    // Write the markers first: values such as an id of `wf.uuid()` must be the same when the body
    // runs again.
    flush_markers(attempt).await;
    match &work.body {
        Body::Code(code) => {
            match bounded(
                CodeContext::Other,
                watched(around(attempt, key, false, || within_span(attempt, key, code(tries)))),
                policy.timeout,
            )
            .await
            .result
            {
                Ok(output) => Tried::Output(output),
                Err((failure, retry)) => Tried::Failed(failure, retry),
            }
        }
        Body::Transaction(code) => {
            attempt.holds_transaction(claim.ordinal);
            run_in_tx(attempt, claim, work, policy, |tx| code(tries, tx)).await
        }
        // The compensation is built by code that borrows, so this body cannot run detached.
        Body::OwnTransaction(code) if work.compensation.is_some() => {
            attempt.holds_transaction(claim.ordinal);
            run_in_tx(attempt, claim, work, policy, |tx| code(tries, tx)).await
        }
        Body::OwnTransaction(code) => {
            let (attempt, claim, code) = (Arc::clone(attempt), claim.clone(), Arc::clone(code));
            let body = Body::OwnTransaction(Arc::clone(&code));
            let work = Work { body, compensation: None, ..*work };
            let done = spawn_detached("transaction", |mut let_go| async move {
                let_go.or(run_in_tx(&attempt, &claim, &work, policy, |tx| code(tries, tx))).await
            });
            match done.await {
                Some(tried) => tried,
                // The waiting future was dropped.
                None => std::future::pending().await,
            }
        }
    }
}

/// One try of a body in a transaction that also records the step.
async fn run_in_tx<'a>(
    attempt: &Arc<Attempt>,
    claim: &Claim,
    work: &Work<'_>,
    policy: StepPolicy,
    code: impl Fn(Tx) -> Try<'a> + Send + Sync,
) -> Tried {
    let key = claim.key.as_str();
    let run = |tx| {
        let body = around(attempt, key, true, || within_span(attempt, key, code(tx)));
        bounded(CodeContext::Other, watched(attempt, key, policy.heartbeat, body), policy.timeout)
    };
    let commit = transaction::Commit::Step { claim, work };
    match Box::pin(transaction::perform(attempt, commit, run)).await {
        Ok(result) => Tried::Recorded(result),
        Err((failure, retry)) => Tried::Failed(failure, retry),
    }
}

async fn record_output(
    attempt: &Arc<Attempt>,
    claim: &Claim,
    work: &Work<'_>,
    output: Plain,
) -> Result<String, Failure> {
    match checkpoint_of(attempt, claim, work, output.clone()) {
        Ok((step, None)) => {
            record_step(attempt, claim, step).await;
            Ok(output.into_text())
        }
        Ok((step, Some(compensation))) => {
            Box::pin(record_compensable(attempt, claim, step, compensation)).await;
            Ok(output.into_text())
        }
        Err(Unstorable::For(failure)) => record(attempt, claim, work.fingerprint, Err(failure)).await,
        Err(Unstorable::Now(failure)) => stop_reason(attempt, StopReason::Sealed(failure)).await,
    }
}

/// Why the output of a step cannot be stored.
pub(crate) enum Unstorable {
    /// It never can. The step fails.
    For(Failure),
    /// The codec does not encrypt it now. The run is blocked.
    Now(Failure),
}

impl From<PayloadError> for Unstorable {
    fn from(error: PayloadError) -> Self {
        let failure = unstorable(error.to_failure());
        if error.is_of_codec() { Self::Now(failure) } else { Self::For(failure) }
    }
}

/// The checkpoint of a successful step, and its compensation.
pub(crate) fn checkpoint_of(
    attempt: &Attempt,
    claim: &Claim,
    work: &Work<'_>,
    output: Plain,
) -> Result<(Checkpoint, Option<String>), Unstorable> {
    let compensation = work
        .compensation
        .as_ref()
        .map(|compensation| compensation_of(compensation, work, &output))
        .transpose()?;
    let place = Place::new(attempt.fence.run_id, PayloadKind::Compensation, claim.key.as_str());
    let sealed =
        compensation.clone().map(|compensation| attempt.sealer().seal(&place, compensation)).transpose()?;
    let step = attempt.checkpoint(claim, work.fingerprint, Ok(output), sealed)?;
    Ok((step, compensation.map(Plain::into_text)))
}

/// Builds the compensation of a step. An error fails the step without another try, which would
/// repeat its effects.
fn compensation_of(
    compensation: &MakeCompensation<'_>,
    work: &Work<'_>,
    output: &str,
) -> Result<Plain, Unstorable> {
    contained(|| compensation(output)).flatten().map_err(|failure| {
        let what_is_left = match work.body {
            Body::Code(_) => "so nothing takes that back: see to it by hand",
            Body::Transaction(_) | Body::OwnTransaction(_) => "so its transaction was rolled back",
        };
        let message = format!(
            "the body has ended well, but the call that takes back what it did could not be made, {what_is_left}: {}",
            failure.message
        );
        Unstorable::For(Failure { message, ..failure })
    })
}

/// Notes the compensation of a recorded step, if it has one.
pub(crate) fn note_compensation(attempt: &Attempt, claim: &Claim, compensation: Option<String>) {
    if let Some(compensation) = compensation {
        attempt.note_compensation(claim.key.as_str(), compensation);
    }
}

/// Polls a try at its site. Captures panics and enforces the time limit.
pub(crate) async fn bounded(site: CodeContext, body: Try<'_>, timeout: Option<Duration>) -> Finished {
    let mut caught = Caught::new(site, body);
    let finished = match timeout {
        None => Ok((&mut caught).await),
        Some(limit) => tokio::time::timeout(limit, &mut caught).await.map_err(|_| limit),
    };
    let failure = match finished {
        Ok(Ok(finished)) => return finished,
        Ok(Err(panic)) => panic,
        Err(limit) => {
            let message = format!(
                "did not end within its timeout of {limit:?} and was dropped at its last await; raise `timeout`, or split it"
            );
            let causes = caught.discard().map(|panic| format!("when it was dropped, it {panic}"));
            Failure { causes: causes.into_iter().collect(), ..Failure::new(FailureKind::Timeout, message) }
        }
    };
    Finished::failed(failure)
}

/// Records the result of a step. Never returns if the attempt has lost its lease.
pub(crate) async fn record(
    attempt: &Arc<Attempt>,
    claim: &Claim,
    fingerprint: i64,
    result: Result<Plain, Failure>,
) -> Result<String, Failure> {
    // The code must receive the failure as stored, because a replay returns that one.
    let result = result.map_err(|failure| attempt.sealer().storable(&failure));
    match attempt.checkpoint(claim, fingerprint, result.clone(), None) {
        Ok(step) => {
            record_step(attempt, claim, step).await;
            result.map(Plain::into_text)
        }
        Err(error) if error.is_of_codec() => {
            stop_reason(attempt, StopReason::Sealed(error.to_failure())).await
        }
        // This failure replaces the output and is within the size limit of failures.
        Err(error) => Box::pin(record(attempt, claim, fingerprint, Err(error.to_failure()))).await,
    }
}

async fn record_step(attempt: &Arc<Attempt>, claim: &Claim, step: Checkpoint) {
    or_stopped(attempt, markers::checkpoint(attempt, step).await.or_stop()).await;
    attempt.acknowledge(claim);
}

/// Like [`record_step`], in a detached task. The step's effects have happened, and an unrecorded
/// step is never compensated.
async fn record_compensable(attempt: &Arc<Attempt>, claim: &Claim, step: Checkpoint, compensation: String) {
    let (recording, claim) = (attempt.recording(claim.key.as_str()), claim.clone());
    let is_recorded = spawn_detached("recording", |_| async move {
        let attempt = recording.attempt();
        let written = tokio::select! {
            biased;
            written = markers::checkpoint(attempt, step) => written,
            // The worker has stopped, so this result has no receiver.
            () = attempt.commit_queue.closed(attempt.fence.run_id) => return false,
        };
        let stop = written.or_stop().err();
        let is_recorded = stop.is_none();
        if let Some(stop) = stop {
            attempt.stop(stop);
        } else {
            attempt.acknowledge(&claim);
            note_compensation(attempt, &claim, Some(compensation));
        }
        is_recorded
    });
    if !is_recorded.await {
        std::future::pending::<()>().await;
    }
}

async fn record_failed_try(attempt: &Attempt, claim: &Claim, tries: u32, failure: &Failure, took: Duration) {
    let item = FailedTry {
        fence: attempt.fence,
        key: claim.key.as_str().to_owned(),
        attempt: tries,
        failure: attempt
            .sealer()
            .seal_failure(&place_of_error(attempt.fence.run_id, claim.key.as_str()), failure),
        took_us: i64::try_from(took.as_micros()).unwrap_or(i64::MAX),
    };
    or_stopped(attempt, attempt.commit_queue.write(item).await.or_stop()).await;
}

/// Writes the buffered markers of the run. Never returns if the attempt must stop.
pub(crate) async fn flush_markers(attempt: &Arc<Attempt>) {
    or_stopped(attempt, markers::flush(attempt).await).await;
}

/// Returns if the write succeeded. Otherwise stops the attempt and never returns.
async fn or_stopped(attempt: &Attempt, written: Result<(), StopReason>) {
    if let Err(stop) = written {
        stop_reason::<()>(attempt, stop).await;
    }
}

/// Stops the attempt and waits until the executor drops this future.
pub(crate) async fn stop_reason<T>(attempt: &Attempt, stop: StopReason) -> T {
    attempt.stop(stop);
    std::future::pending().await
}

/// A number in `0.0..1.0` that spreads retries.
pub(crate) fn unit_random() -> f64 {
    // Every `RandomState` has its own keys, derived from random ones of the thread. That spreads
    // well enough and needs no system call.
    let bits = RandomState::new().build_hasher().finish() >> 11;
    #[expect(clippy::cast_precision_loss, reason = "53 bits fit a double exactly")]
    let fraction = bits as f64 / (1_u64 << 53) as f64;
    fraction
}
