//! Sagas: the calls that take back what steps did, recorded with these, and carried out where the run fails, is cancelled, or says so.

use std::collections::HashSet;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::attempt::{Attempt, Mode};
use super::call::{body_of, policy_of};
use super::step::{LastFailure, Work, outcome, record, stop_reason};
use super::stop::StopReason;
use super::waiting::REPEAT;
use crate::connection::db_timeout::{STATEMENT_LIMIT, with_timeout};
use crate::connection::outage::warn_outage;
use crate::connection::task::spawn_detached;
use crate::definition::Definition;
use crate::definition::call::is_workflow;
use crate::definition::registry::Registry;
use crate::model::failure::{Failure, FailureKind};
use crate::model::payload::Plain;
use crate::model::replay::Claim;
use crate::model::request::RequestOptions;
use crate::model::version::{listed, others, parts};
use crate::store::link::{Sharer, sharers};

/// A call that takes something back, as it is stored.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct UndoCall<'a> {
    pub(crate) job: std::borrow::Cow<'a, str>,
    #[serde(borrow)]
    pub(crate) input: std::borrow::Cow<'a, RawValue>,
    #[serde(default)]
    pub(crate) options: RequestOptions,
}

/// Reads a recorded call, and finds the code that carries it out.
///
/// # Errors
/// What is not there, or does not decode: the run is parked with that.
pub(crate) fn found<'c>(
    call: &'c str,
    registry: &Registry,
) -> Result<(UndoCall<'c>, &'static Definition), Failure> {
    let call: UndoCall<'_> =
        serde_json::from_str(call).map_err(|error| Failure::from_chain(FailureKind::Decode, &error))?;
    let setup = |message| Failure::new(FailureKind::Setup, message);
    match registry.get(&call.job) {
        Some(definition) if is_workflow(definition) => {
            Err(setup(format!("workflow `{}` cannot undo a step; use a job", call.job)))
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

/// Takes back everything that can be and is not, the last step first. Never returns where one of them cannot.
pub(crate) async fn undo_all(attempt: &Arc<Attempt>) {
    for (key, call) in attempt.to_undo() {
        Box::pin(undo(attempt, &key, &call)).await;
    }
}

/// Which of the steps that the code has dropped have done something that can be taken back. It is decided once and recorded, when none of them is under way
/// behind the code any more: a replay must take back the same. Never returns where that cannot be.
pub(crate) async fn done_of(attempt: &Arc<Attempt>, first: &str, dropped: &[&str]) -> HashSet<String> {
    let Some(claim) = attempt.claim_saga(first) else { return std::future::pending().await };
    let decided = match attempt.result(claim.ordinal) {
        Some(recorded) if claim.recorded => recorded,
        _ => {
            let _working = attempt.begin_work().await;
            attempt.settled(|key| dropped.contains(&key)).await;
            let done: Vec<&str> =
                dropped.iter().copied().filter(|key| attempt.undo_of(key).is_some()).collect();
            let done = serde_json::to_string(&done).map(Plain::ready);
            let done = done.map_err(|error| Failure::from_chain(FailureKind::Encode, &error));
            record(attempt, &claim, 0, done).await
        }
    };
    attempt.turn(claim.ordinal).await;
    let stop = match decided.map(|done| serde_json::from_str(&done)) {
        Ok(Ok(done)) => return done,
        Ok(Err(error)) => StopReason::unreadable(claim.key.as_str(), error.to_string()),
        // The run fails with it, and all is taken back.
        Err(failure) => StopReason::Refused(failure),
    };
    stop_reason(attempt, stop).await
}

/// As [`undo`], as a step of the workflow's code.
pub(crate) async fn undo_in_code(attempt: &Arc<Attempt>, key: &str, call: &str) {
    let ordinal = Box::pin(undo(attempt, key, call)).await;
    attempt.turn(ordinal).await;
}

/// Takes back what one step did, once, by its recorded call, and gives the ordinal of the step that did so. Never returns where that fails for good: the run
/// is parked with the reason.
async fn undo(attempt: &Arc<Attempt>, key: &str, call: &str) -> u64 {
    let Some(claim) = attempt.claim_undo(key) else { return std::future::pending().await };
    // What is done needs no code.
    if claim.recorded {
        return claim.ordinal;
    }
    if attempt.mode == Mode::Work && attempt.is_linked {
        match shared(attempt, key).await {
            Shared::No => {}
            Shared::With(sharer) => {
                return stop_reason(attempt, StopReason::UndoFailed(shared_with(&claim, key, &sharer))).await;
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
            return stop_reason(attempt, StopReason::UndoFailed(compensation_failed(&claim, failure))).await;
        }
    };
    let body = body_of(definition, Arc::clone(attempt), claim.key.as_str().into(), call.input.get().into());
    let work = Work {
        fingerprint: 0,
        policy: policy_of(&call.options, definition, &attempt.registry),
        body,
        undo: None,
        last_failure: LastFailure::Parks,
    };
    // What it gives is for the record.
    let _ = outcome(attempt, &claim, &work).await;
    claim.ordinal
}

/// What becomes of a step that this run may share with others, since it was made of one of them.
enum Shared {
    /// It is this run's to take back.
    No,
    /// Another run still rests on it, or takes it back itself, or may have done so.
    With(Sharer),
    /// Another run has taken it back.
    StepCompensated,
}

/// Asks the other runs that have this step on record.
async fn shared(attempt: &Arc<Attempt>, key: &str) -> Shared {
    let _working = attempt.begin_work().await;
    let sharers = loop {
        // Apart: the code may keep what waits here without polling it, and it holds a connection.
        match spawn_detached("sharers", |_| asked(Arc::clone(attempt), key.to_owned())).await {
            Ok(sharers) => break sharers,
            Err(error) => {
                warn_outage!(static, %error, "what is to be taken back in a fork waits for the database");
            }
        }
        tokio::time::sleep(REPEAT).await;
    };
    if sharers.iter().any(|sharer| sharer.is_undone) {
        return Shared::StepCompensated;
    }
    // Another fork takes nothing back before this one asks.
    let is_in_doubt = |sharer: &Sharer| sharer.has_forgotten || (sharer.is_before && !sharer.has_ended);
    sharers.into_iter().find(is_in_doubt).map_or(Shared::No, Shared::With)
}

async fn asked(attempt: Arc<Attempt>, key: String) -> Result<Vec<Sharer>, sqlx::Error> {
    let ask = async { sharers(&mut *attempt.db.acquire().await?, attempt.fence.run_id, &key).await };
    with_timeout(STATEMENT_LIMIT, ask).await
}

/// Why a run is parked that would take back what another one may need, or may have taken back.
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

/// Why a run is parked whose steps are to be undone.
pub(crate) fn compensation_failed(claim: &Claim, failure: Failure) -> Failure {
    let message = format!(
        "step `{}` could not take back what was done: {}; mend the cause and resume the run, or cancel it, which leaves that undone",
        claim.key, failure.message
    );
    Failure { message, ..failure }
}
