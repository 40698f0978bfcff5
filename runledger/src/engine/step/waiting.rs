//! Steps that wait for an instant or a child. They hold nothing while they wait. The executor
//! decides whether the run is suspended.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use uuid::Uuid;

use crate::connection::db::Db;
use crate::connection::db_timeout::{STATEMENT_LIMIT, with_timeout};
use crate::connection::outage::warn_outage;
use crate::connection::task::{Abandoned, spawn_detached};
use crate::engine::attempt::Attempt;
use crate::engine::attempt::activity::Waiting;
use crate::engine::attempt::stop::{StopReason, Wait};
use crate::engine::step::unpolled::at_work;
use crate::engine::step::{flush_markers, record, stop_reason};
use crate::model::payload::{PayloadError, PayloadKind, Place, Plain, Sealer};
use crate::model::replay::recorded::place_of_error;
use crate::model::replay::{Claim, StepKind};
use crate::model::run::failure::{Failure, FailureKind};
use crate::model::run::request::MAX_DEPTH;
use crate::model::run::state::RunState;
use crate::model::timestamp::{FURTHEST, Timestamp};
use crate::store::attempt::checkpoint::Checkpoint;
use crate::store::attempt::wait::{NewChild, Started, start_child, topmost};
use crate::store::error::{Class, class};
use crate::store::run::inspect::{self, End};

/// How often a resident workflow polls for the event that it waits for.
pub(crate) const ASK_AGAIN: Duration = Duration::from_secs(1);

/// The pause before a statement is retried after a transient error.
pub(crate) const REPEAT: Duration = Duration::from_millis(200);

/// When a sleeping step wakes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Alarm {
    /// This long after its first execution.
    After(Duration),
    /// At this instant of the database's clock.
    At(Timestamp),
}

/// Waits for an instant that is recorded once. Fails the step if the instant is too far away.
pub(crate) async fn sleep(attempt: &Arc<Attempt>, claim: &Claim, alarm: Alarm) -> Result<String, Failure> {
    let until = instant(attempt, claim, alarm).await;
    if let Ok(until) = until {
        let waiting = attempt.waiting(claim.ordinal, Wait::Until(until));
        attempt.sleep_until(claim.ordinal, until).await;
        drop(waiting);
    }
    attempt.turn(claim.ordinal).await;
    until.map(|_| "null".to_owned())
}

/// Returns the recorded instant of a step. If there is none, records the instant of the alarm.
pub(crate) async fn instant(
    attempt: &Arc<Attempt>,
    claim: &Claim,
    alarm: Alarm,
) -> Result<Timestamp, Failure> {
    if let Some(recorded) = attempt.result(claim.ordinal).transpose()? {
        return match recorded.parse() {
            Ok(micros) => Ok(Timestamp::from_unix_micros(micros)),
            Err(_) => {
                let why = format!("an instant in microseconds was expected, and `{recorded}` is recorded");
                stop_reason(attempt, StopReason::unreadable(claim.key.as_str(), why)).await
            }
        };
    }
    at_work(attempt, claim, Box::pin(new_instant(attempt, claim, alarm))).await
}

/// Records the instant of the alarm, computed now.
async fn new_instant(attempt: &Arc<Attempt>, claim: &Claim, alarm: Alarm) -> Result<Timestamp, Failure> {
    let now = attempt.clock.now();
    let instant = match alarm {
        Alarm::After(duration) => now.plus(duration),
        Alarm::At(instant) => instant,
    };
    let is_too_far = instant.since(now) > FURTHEST;
    let recorded = if is_too_far {
        Err(too_far(instant.since(now)))
    } else {
        Ok(Plain::ready(instant.unix_micros().to_string()))
    };
    record(attempt, claim, StepKind::Alarm.fingerprint(0), recorded).await?;
    Ok(instant)
}

fn too_far(away: Duration) -> Failure {
    let message = format!(
        "an instant {} years from now is further away than the 100 that are allowed; if the run should wait for something that may never come, wait for \
         that instead",
        away.as_secs() / (365 * 24 * 60 * 60)
    );
    Failure::new(FailureKind::Setup, message)
}

/// Starts a child, once, and returns its id. Encrypts the child's payloads only if it starts now.
pub(crate) async fn start(
    attempt: &Arc<Attempt>,
    claim: &Claim,
    fingerprint: i64,
    child: impl FnOnce(&Sealer) -> Result<NewChild, PayloadError> + Send,
) -> Result<String, Failure> {
    // A step that was copied from another run names the child of that run.
    let result = match attempt.result(claim.ordinal) {
        Some(recorded) if claim.recorded => recorded,
        _ => {
            let start = async {
                match child(attempt.sealer()).map(Box::new) {
                    Ok(child) => start_now(attempt, claim, fingerprint, child).await,
                    Err(error) if error.is_of_codec() => {
                        stop_reason(attempt, StopReason::Sealed(error.to_failure())).await
                    }
                    Err(error) => record(attempt, claim, fingerprint, Err(error.to_failure())).await,
                }
            };
            at_work(attempt, claim, Box::pin(start)).await
        }
    };
    attempt.turn(claim.ordinal).await;
    result
}

async fn start_now(
    attempt: &Arc<Attempt>,
    claim: &Claim,
    fingerprint: i64,
    child: Box<NewChild>,
) -> Result<String, Failure> {
    flush_markers(attempt).await;
    // A run id is not a payload. It is never encrypted, so that statements can find it.
    let child_id = child.run().run_id;
    let start = Arc::new(Start {
        step: attempt.place_of(claim, fingerprint),
        output: format!("\"{child_id}\""),
        child,
    });
    loop {
        // Detached, because it holds a connection and the code may stop polling this future.
        match spawn_detached("start", |_| started(attempt.db.clone(), Arc::clone(&start))).await {
            Ok(Started::Yes) => break,
            Ok(Started::TooDeep) => {
                let refusal = too_deep(attempt, start.child.name()).await;
                return record(attempt, claim, fingerprint, Err(refusal)).await;
            }
            Ok(Started::LeaseLost) => return stop_reason(attempt, StopReason::LeaseLost).await,
            Ok(Started::ParentCancelled) => return stop_reason(attempt, StopReason::Cancelled).await,
            Err(error) if class(&error) == Class::Permanent => {
                let failure = Failure::from_chain(FailureKind::Error, &error);
                return stop_reason(attempt, StopReason::Refused(failure)).await;
            }
            Err(error) => {
                warn_outage!(static, %error, "the start of a child waits for the database");
            }
        }
        tokio::time::sleep(REPEAT).await;
    }
    attempt.note_start(child_id);
    attempt.acknowledge(claim);
    Ok(start.output.clone())
}

/// A child to start, and the step that starts it.
struct Start {
    step: Checkpoint,
    output: String,
    child: Box<NewChild>,
}

async fn started(db: Db, start: Arc<Start>) -> Result<Started, sqlx::Error> {
    let connection = db.acquire().await;
    if db.is_overtaken() {
        return Ok(Started::LeaseLost);
    }
    let mut connection = connection?;
    with_timeout(STATEMENT_LIMIT, start_child(&mut connection, &start.step, &start.output, &start.child))
        .await
}

/// The failure for a chain of parents that is too deep. Queries the top run of the chain; if the
/// query fails, the message contains its error instead.
async fn too_deep(attempt: &Attempt, job: &str) -> Failure {
    let run_id = attempt.fence.run_id;
    let ask = async { topmost(&mut *attempt.db.acquire().await?, run_id).await };
    let root = match with_timeout(STATEMENT_LIMIT, ask).await {
        Ok(root) => format!("run `{root}`"),
        Err(error) => format!("a run that could not be asked for ({error})"),
    };
    let message = format!(
        "no child `{job}` is started: {MAX_DEPTH} runs are above this one, up to {root}, and a chain of parents has at most so many; if a workflow starts \
         itself, directly or through others, let it end or use `wf.continue_as_new`"
    );
    Failure::new(FailureKind::Setup, message)
}

/// Waits for the end of a child, records it, and returns its output or failure.
pub(crate) async fn child_result(
    attempt: &Arc<Attempt>,
    claim: &Claim,
    fingerprint: i64,
    child: Uuid,
    wait: Wait,
) -> Result<String, Failure> {
    let result = match attempt.result(claim.ordinal) {
        Some(recorded) if claim.recorded => recorded,
        _ => {
            let result = wait_for_child(attempt, claim, child, &wait).await;
            at_work(attempt, claim, Box::pin(record(attempt, claim, fingerprint, result))).await
        }
    };
    attempt.turn(claim.ordinal).await;
    result
}

async fn wait_for_child(
    attempt: &Arc<Attempt>,
    claim: &Claim,
    child: Uuid,
    wait: &Wait,
) -> Result<Plain, Failure> {
    loop {
        let mut wakeups = attempt.wakeups.listen();
        let look = |let_go| look_at_child(Arc::clone(attempt), let_go, child, (claim.ordinal, wait.clone()));
        let waiting = match looked(attempt, "child", look).await {
            Seen::Ended(end) => {
                return match opened(attempt.sealer(), child, end) {
                    Ok(result) => result,
                    Err(error) => stop_reason(attempt, StopReason::Sealed(error.to_failure())).await,
                };
            }
            Seen::Absent => {
                if attempt.has_started(child) {
                    return stop_reason(attempt, StopReason::FailedOver).await;
                }
                let message = format!("child run `{child}` is not in this database any more: it was deleted");
                return Err(Failure::new(FailureKind::Error, message));
            }
            Seen::GoesOn(waiting) => waiting,
        };
        tokio::select! {
            () = wakeups.notified() => {}
            () = tokio::time::sleep(ASK_AGAIN) => {}
        }
        drop(waiting);
    }
}

/// The result of polling a child.
enum Seen {
    Ended(End),
    Absent,
    GoesOn(Waiting<Arc<Attempt>>),
}

/// Polls a child. The poll runs to its end even if its wait is not polled, because it holds a
/// connection.
async fn look_at_child(
    attempt: Arc<Attempt>,
    mut let_go: Abandoned,
    child: Uuid,
    (ordinal, wait): (u64, Wait),
) -> (Seen, IsNews) {
    let end = match let_go.or(attempt.db.acquire()).await {
        Some(Ok(mut connection)) => {
            Some(with_timeout(STATEMENT_LIMIT, inspect::end_of_run(&mut connection, child)).await)
        }
        Some(Err(error)) => Some(Err(error)),
        None => None,
    };
    match end {
        Some(Ok(Some(end))) if end.state.is_terminal() => return (Seen::Ended(end), IsNews::Yes),
        Some(Ok(None)) => return (Seen::Absent, IsNews::Yes),
        // Still running, or the wait was dropped.
        Some(Ok(Some(_))) | None => {}
        Some(Err(error)) => {
            warn_outage!(static, %error, "the wait for a child waits for the database");
        }
    }
    (Seen::GoesOn(Attempt::waiting_of(attempt, ordinal, wait)), IsNews::No)
}

/// Whether a poll found something that its step continues with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IsNews {
    Yes,
    No,
}

/// Polls for the event of a waiting step, in a detached task.
///
/// The run counts as working until the step has the result. After news, it also counts as working
/// until the body was polled: it must not be suspended in between.
pub(crate) async fn looked<T, F>(
    attempt: &Arc<Attempt>,
    name: &'static str,
    look: impl FnOnce(Abandoned) -> F,
) -> T
where
    T: Send + 'static,
    F: Future<Output = (T, IsNews)> + Send + 'static,
{
    let working = Attempt::begin_work_of(Arc::clone(attempt)).await;
    let (tell, mut told) = oneshot::channel();
    let look = spawn_detached(name, |let_go| {
        let look = look(let_go);
        async move {
            let (seen, is_news) = look.await;
            // Send first: a poll of the body before the end of this task must find the result.
            let _ = tell.send(seen);
            match is_news {
                IsNews::Yes => working.ends_with_news(),
                IsNews::No => working.ends_apart(),
            }
        }
    });
    tokio::select! {
        biased;
        Ok(seen) = &mut told => seen,
        () = look => match told.try_recv() {
            Ok(seen) => seen,
            // Unreachable: the task sends before it ends, and a panic of the task propagates.
            Err(_) => std::future::pending().await,
        },
    }
}

/// Decrypts the result of a child.
fn opened(sealer: &Sealer, child: Uuid, end: End) -> Result<Result<Plain, Failure>, PayloadError> {
    let End { state, output, failure } = end;
    match (output, failure) {
        (_, Some(failure)) => {
            let failure = sealer.open_failure(&place_of_error(child, ""), &failure)?;
            Ok(Err(Failure::from_chain(failure.kind, &ChildEnded { child, state, failure })))
        }
        (Some(output), None) => sealer.take_over(&Place::new(child, PayloadKind::Output, ""), output).map(Ok),
        (None, None) => Ok(Ok(Plain::ready("null".to_owned()))),
    }
}

/// How a child without an output ended.
#[derive(Debug, thiserror::Error)]
#[error("child run `{child}` is {state}")]
struct ChildEnded {
    child: Uuid,
    state: RunState,
    #[source]
    failure: Failure,
}
