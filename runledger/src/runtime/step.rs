//! One step of a workflow, from its claim to the delivery of its result.

use std::future::Future;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::attempt::{Attempt, Halt, Wait};
use super::journal::Written;
use super::marks;
use super::panic::Caught;
use super::transaction;
use crate::api::invocation::Finished;
use crate::model::failure::{Failure, FailureKind, Retry};
use crate::model::replay::Claim;
use crate::model::settle::{RetryPolicy, retry_delay};
use crate::store::checkpoint::FailedTry;

/// One try of a step's body.
pub(crate) type Try<'a> = Pin<Box<dyn Future<Output = Finished> + Send + 'a>>;

/// What a step does when it is not recorded yet.
pub(crate) enum Body<'a> {
    /// Runs code; the argument is the number of the try, from 1.
    Code(Box<dyn Fn(u32) -> Try<'a> + Send + Sync + 'a>),
    /// Runs code in a transaction that also records the step.
    Transaction(Box<dyn Fn(u32, crate::api::tx::Tx) -> Try<'a> + Send + Sync + 'a>),
}

/// How a step is tried.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StepPolicy {
    pub(crate) retry: RetryPolicy,
    pub(crate) timeout: Option<Duration>,
}

/// Gives the recorded result of a step, or runs its body until it has one, records it, and gives it when its turn has come. Never completes where
/// the attempt halts.
pub(crate) async fn resolve(
    attempt: &Arc<Attempt>,
    claim: &Claim,
    fingerprint: i64,
    policy: StepPolicy,
    body: &Body<'_>,
) -> Result<String, Failure> {
    let result = match attempt.result(claim.ordinal) {
        Some(recorded) if claim.recorded => recorded,
        _ => perform(attempt, claim, fingerprint, policy, body).await,
    };
    attempt.turn(claim.ordinal).await;
    result
}

async fn perform(
    attempt: &Arc<Attempt>,
    claim: &Claim,
    fingerprint: i64,
    policy: StepPolicy,
    body: &Body<'_>,
) -> Result<String, Failure> {
    let mut tries = attempt.failures(claim.key.as_str());
    loop {
        let working = attempt.begin_work().await;
        attempt.liveness.guard().await;
        tries += 1;
        let began = Instant::now();
        let (failure, retry) = match one_try(attempt, claim, fingerprint, policy, body, tries).await {
            Tried::Recorded(result) => return result,
            Tried::Output(output) => return record(attempt, claim, fingerprint, Ok(output)).await,
            Tried::Failed(failure, retry) => (failure, retry),
        };
        tracing::warn!(run_id = %attempt.fence.run_id, step = claim.key.as_str(), attempt = tries, %failure, "a try of a step failed");
        let Some(delay) = retry_delay(retry, tries, &policy.retry, unit_random()) else {
            return record(attempt, claim, fingerprint, Err(failure)).await;
        };
        keep(attempt, claim, tries, failure, began.elapsed()).await;
        let until = attempt.clock.now().plus(delay);
        // Waiting first, then no longer working: in between the run must not look idle.
        let waiting = attempt.waiting(claim.ordinal, Wait::Until(until));
        drop(working);
        attempt.sleep_until(claim.ordinal, until).await;
        drop(waiting);
    }
}

enum Tried {
    /// The step is recorded, by its own transaction.
    Recorded(Result<String, Failure>),
    Output(String),
    Failed(Failure, Retry),
}

async fn one_try(
    attempt: &Arc<Attempt>,
    claim: &Claim,
    fingerprint: i64,
    policy: StepPolicy,
    body: &Body<'_>,
    tries: u32,
) -> Tried {
    match body {
        Body::Code(code) => match bounded(code(tries), policy.timeout).await.result {
            Ok(output) => Tried::Output(output),
            Err((failure, retry)) => Tried::Failed(failure, retry),
        },
        Body::Transaction(code) => {
            marks_first(attempt).await;
            let commit = transaction::Commit::Step { claim, fingerprint };
            let run = |tx| bounded(code(tries, tx), policy.timeout);
            match Box::pin(transaction::perform(attempt, commit, run)).await {
                Ok(result) => Tried::Recorded(result),
                Err((failure, retry)) => Tried::Failed(failure, retry),
            }
        }
    }
}

/// Polls a try under panic capture and its time limit.
pub(crate) async fn bounded(body: Try<'_>, timeout: Option<Duration>) -> Finished {
    let mut caught = Caught::new(body);
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

/// Records the result of a step. Never returns where the attempt has lost its lease.
pub(crate) async fn record(
    attempt: &Attempt,
    claim: &Claim,
    fingerprint: i64,
    result: Result<String, Failure>,
) -> Result<String, Failure> {
    let checkpoint = attempt.checkpoint(claim, fingerprint, result.clone());
    match marks::checkpoint(attempt, checkpoint).await {
        Written::Yes => {
            attempt.acknowledge(claim);
            result
        }
        Written::LeaseLost => halted(attempt, Halt::LeaseLost).await,
        Written::Refused(failure) => halted(attempt, Halt::Refused(failure)).await,
    }
}

async fn keep(attempt: &Attempt, claim: &Claim, tries: u32, failure: Failure, took: Duration) {
    let item = FailedTry {
        fence: attempt.fence,
        key: claim.key.as_str().to_owned(),
        attempt: tries,
        failure,
        took_us: i64::try_from(took.as_micros()).unwrap_or(i64::MAX),
    };
    match attempt.journal.failed_try(item).await {
        Written::Yes => {}
        Written::LeaseLost => halted(attempt, Halt::LeaseLost).await,
        Written::Refused(failure) => halted(attempt, Halt::Refused(failure)).await,
    }
}

/// Writes the marks of the run, if it has any. Never returns where the attempt cannot go on.
pub(crate) async fn marks_first(attempt: &Attempt) {
    if let Err(halt) = marks::first(attempt).await {
        halted::<()>(attempt, halt).await;
    }
}

/// Tells the executor why the attempt ends, and waits for it to drop this future.
pub(crate) async fn halted<T>(attempt: &Attempt, halt: Halt) -> T {
    attempt.halt(halt);
    std::future::pending().await
}

/// A number in `0.0..1.0` that spreads retries.
pub(crate) fn unit_random() -> f64 {
    // Every state of the standard library's hasher has keys of its own, from random ones of the thread: good enough to spread, and without a system call.
    let bits = RandomState::new().build_hasher().finish() >> 11;
    #[expect(clippy::cast_precision_loss, reason = "53 bits fit a double exactly")]
    let fraction = bits as f64 / (1_u64 << 53) as f64;
    fraction
}
