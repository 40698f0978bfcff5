//! Sagas: compensations are recorded with their steps. They execute when the run fails, when it is
//! cancelled, or when the code requests it.

use std::collections::HashSet;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::connection::db_timeout::{STATEMENT_LIMIT, with_timeout};
use crate::connection::outage::warn_outage;
use crate::connection::task::spawn_detached;
use crate::definition::Definition;
use crate::definition::call::is_workflow;
use crate::definition::registry::Registry;
use crate::engine::attempt::stop::StopReason;
use crate::engine::attempt::{Attempt, Mode};
use crate::engine::step::call::{body_of, policy_of};
use crate::engine::step::waiting::REPEAT;
use crate::engine::step::{LastFailure, Work, outcome, record, stop_reason};
use crate::model::payload::Plain;
use crate::model::replay::Claim;
use crate::model::run::failure::{Failure, FailureKind};
use crate::model::run::request::RequestOptions;
use crate::model::run::version::{listed, others, parts};
use crate::store::run::link::{Sharer, sharers};

/// A compensation, as it is stored.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct CompensationCall<'a> {
    pub(crate) job: std::borrow::Cow<'a, str>,
    #[serde(borrow)]
    pub(crate) input: std::borrow::Cow<'a, RawValue>,
    #[serde(default)]
    pub(crate) options: RequestOptions,
}

/// Decodes a recorded compensation and finds its job.
///
/// # Errors
/// The job is missing, or the call does not decode. The run is blocked with this failure.
pub(crate) fn found<'c>(
    call: &'c str,
    registry: &Registry,
) -> Result<(CompensationCall<'c>, &'static Definition), Failure> {
    let call: CompensationCall<'_> =
        serde_json::from_str(call).map_err(|error| Failure::from_chain(FailureKind::Decode, &error))?;
    let setup = |message| Failure::new(FailureKind::Setup, message);
    match registry.get(&call.job) {
        Some(definition) if is_workflow(definition) => {
            Err(setup(format!("workflow `{}` cannot compensate a step; use a job", call.job)))
        }
        Some(definition) => Ok((call, definition)),
        None => {
            let ((name, version), served) = (parts(&call.job), others(&call.job, registry.names()));
            Err(setup(if served.is_empty() {
                format!("this program has no code for job `{}`", call.job)
            } else {
                let served = listed(&served);
                format!("this program has no code for version {version} of job `{name}` (it has {served})")
            }))
        }
    }
}

/// Executes all open compensations, the last step first. Never returns if one of them fails.
pub(crate) async fn compensate_all(attempt: &Arc<Attempt>) {
    for (key, call) in attempt.to_undo() {
        Box::pin(compensate(attempt, &key, &call)).await;
    }
}

/// Returns which dropped steps of a saga have completed and can be compensated. Never returns if
/// the decision cannot be recorded.
///
/// The decision is made once, when no detached task records one of these steps any more, and is
/// recorded: a replay must compensate the same steps.
pub(crate) async fn done_of(attempt: &Arc<Attempt>, first: &str, dropped: &[&str]) -> HashSet<String> {
    let Some(claim) = attempt.claim_saga(first) else { return std::future::pending().await };
    let decided = match attempt.result(claim.ordinal) {
        Some(recorded) if claim.recorded => recorded,
        _ => {
            let _working = attempt.begin_work().await;
            attempt.settled(|key| dropped.contains(&key)).await;
            let done: Vec<&str> =
                dropped.iter().copied().filter(|key| attempt.compensation_of(key).is_some()).collect();
            let done = serde_json::to_string(&done).map(Plain::ready);
            let done = done.map_err(|error| Failure::from_chain(FailureKind::Encode, &error));
            record(attempt, &claim, 0, done).await
        }
    };
    attempt.turn(claim.ordinal).await;
    let stop = match decided.map(|done| serde_json::from_str(&done)) {
        Ok(Ok(done)) => return done,
        Ok(Err(error)) => StopReason::unreadable(claim.key.as_str(), error.to_string()),
        // The run fails with this failure, which compensates all steps.
        Err(failure) => StopReason::Refused(failure),
    };
    stop_reason(attempt, stop).await
}

/// Like [`compensate`], as a step of the workflow's code.
pub(crate) async fn compensate_in_code(attempt: &Arc<Attempt>, key: &str, call: &str) {
    let ordinal = Box::pin(compensate(attempt, key, call)).await;
    attempt.turn(ordinal).await;
}

/// Executes the recorded compensation of one step, once. Returns the ordinal of the compensating
/// step.
///
/// Never returns if the compensation fails for good: the run is blocked with the reason.
async fn compensate(attempt: &Arc<Attempt>, key: &str, call: &str) -> u64 {
    let Some(claim) = attempt.claim_undo(key) else { return std::future::pending().await };
    // A recorded compensation needs no code.
    if claim.recorded {
        return claim.ordinal;
    }
    if attempt.mode == Mode::Work && attempt.is_linked {
        match shared(attempt, key).await {
            Shared::No => {}
            Shared::With(sharer) => {
                return stop_reason(
                    attempt,
                    StopReason::CompensationFailed(shared_with(&claim, key, &sharer)),
                )
                .await;
            }
            Shared::StepCompensated => {
                let _ = record(attempt, &claim, 0, Ok(Plain::ready("null".to_owned()))).await;
                return claim.ordinal;
            }
        }
    }
    let (call, definition) = match found(call, &attempt.registry) {
        Ok(found) => found,
        Err(failure) => {
            return stop_reason(
                attempt,
                StopReason::CompensationFailed(compensation_failed(&claim, failure)),
            )
            .await;
        }
    };
    let body = body_of(definition, Arc::clone(attempt), claim.key.as_str().into(), call.input.get().into());
    let work = Work {
        fingerprint: 0,
        policy: policy_of(&call.options, definition, &attempt.registry),
        body,
        compensation: None,
        last_failure: LastFailure::Parks,
    };
    // The output of a compensation is only recorded.
    let _ = outcome(attempt, &claim, &work).await;
    claim.ordinal
}

/// The state of a step that this run may share with others, because one was created from the other.
enum Shared {
    /// This run may compensate the step.
    No,
    /// Another run still relies on the step, compensates it itself, or may have done so.
    With(Sharer),
    /// Another run has compensated the step.
    StepCompensated,
}

/// Queries the other runs that have recorded this step.
async fn shared(attempt: &Arc<Attempt>, key: &str) -> Shared {
    let _working = attempt.begin_work().await;
    let sharers = loop {
        // Detached, because it holds a connection and the code may stop polling this future.
        match spawn_detached("sharers", |_| asked(Arc::clone(attempt), key.to_owned())).await {
            Ok(sharers) => break sharers,
            Err(error) => {
                warn_outage!(static, %error, "what is to be taken back in a fork waits for the database");
            }
        }
        tokio::time::sleep(REPEAT).await;
    };
    if sharers.iter().any(|sharer| sharer.is_compensated) {
        return Shared::StepCompensated;
    }
    // Another fork compensates nothing before its own query, which then sees this run.
    let is_in_doubt = |sharer: &Sharer| sharer.has_forgotten || (sharer.is_before && !sharer.has_ended);
    sharers.into_iter().find(is_in_doubt).map_or(Shared::No, Shared::With)
}

async fn asked(attempt: Arc<Attempt>, key: String) -> Result<Vec<Sharer>, sqlx::Error> {
    let ask = async { sharers(&mut *attempt.db.acquire().await?, attempt.fence.run_id, &key).await };
    with_timeout(STATEMENT_LIMIT, ask).await
}

/// The failure for a run whose compensation may affect a step that another run needs or
/// compensated.
fn shared_with(claim: &Claim, key: &str, sharer: &Sharer) -> Failure {
    let why = if sharer.has_forgotten {
        "and that one has begun anew since, so nothing tells whether it has taken that back; see to it by hand and cancel this run, which leaves it as it is"
    } else {
        "and that one goes on; let it end or cancel it, and resume this run"
    };
    let message = format!(
        "step `{}` would take back what `{key}` did, which run `{}` did or was given too, {why}",
        claim.key, sharer.run_id
    );
    Failure::new(FailureKind::Error, message)
}

/// The failure for a run whose compensation failed.
pub(crate) fn compensation_failed(claim: &Claim, failure: Failure) -> Failure {
    let message = format!(
        "step `{}` could not take back what was done: {}; mend the cause and resume the run, or cancel it, which leaves that undone",
        claim.key, failure.message
    );
    Failure { message, ..failure }
}
