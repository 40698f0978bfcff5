//! Sagas: steps with compensations.

use std::collections::HashSet;
use std::panic::Location;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::step::{Step, decode_output};
use super::{Wf, nested, refused};
use crate::connection::code_context::CodeContext;
use crate::definition::Kind;
use crate::definition::call::Call;
use crate::definition::job::Job;
use crate::engine::attempt::stop::StopReason;
use crate::engine::step::saga::{CompensationCall, compensate_in_code, done_of};
use crate::model::payload::Plain;
use crate::model::run::failure::{Failure, FailureKind};
use crate::model::run::version::stored_name;

impl Wf {
    /// Starts a saga: a group of steps, each with a compensation that undoes its effect.
    ///
    /// The compensation is a call, recorded with its step. If the run fails or is cancelled, a
    /// worker executes the recorded compensations, last step first, and then the run ends. Any
    /// worker can execute them, without the workflow's code.
    ///
    /// Compensations are steps. The policy of their job retries them. They are recorded as
    /// `compensate[key]` and appear in [`RunHandle::steps`](crate::RunHandle::steps). If one fails
    /// for good, the run is blocked with the reason.
    /// [`RunHandle::resume`](crate::RunHandle::resume) tries it again; cancelling the run leaves
    /// the remaining effects in place.
    ///
    /// A failed step is not compensated, even if its body did part of its work. The body must clean
    /// up before it fails.
    ///
    /// ```no_run
    /// # use runledger::prelude::*;
    /// # #[job] async fn book(what: &str) -> Result<u64> { Ok(what.len() as u64) }
    /// # #[job] async fn unbook(id: u64) -> Result<()> { drop(id.to_string()); Ok(()) }
    /// #[workflow]
    /// async fn journey(wf: &Wf) -> Result<u64> {
    ///     let saga = wf.saga();
    ///     let flight = saga.run(book("flight"), |id| unbook(*id)).await?;
    ///     let hotel = saga.run(book("hotel"), |id| unbook(*id)).await?; // if this fails, the flight is unbooked
    ///     if wf.signal::<bool>("confirmed").await? {
    ///         return Ok(flight + hotel);
    ///     }
    ///     saga.compensate().await; // hotel, then flight
    ///     Ok(0)
    /// }
    /// ```
    pub fn saga(&self) -> Saga<'_> {
        Saga { wf: self, steps: Arc::default() }
    }
}

/// Steps of a workflow with compensations, made by [`Wf::saga`].
#[derive(Debug)]
pub struct Saga<'wf> {
    wf: &'wf Wf,
    /// The steps, in the order in which the code built them.
    steps: Arc<Mutex<Vec<Part>>>,
}

/// A step of a saga.
#[derive(Debug)]
struct Part {
    key: String,
    seen: Seen,
}

/// How much the code has seen of a step's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    /// Nothing: the step is in flight, or the code dropped it, for example as the loser of a race.
    Nothing,
    Output,
    Failure,
}

impl<'wf> Saga<'wf> {
    /// Executes a call as a step, like [`Wf::run`], with a compensation.
    ///
    /// `compensation` builds the compensating call from the step's output. It is not called for a
    /// recorded step. If the call needs other values of the workflow, such as an id, obtain them
    /// before.
    ///
    /// # Errors
    /// As for [`Wf::run`]. Also, the step fails if `compensation` panics or its call cannot be
    /// recorded, although the body has run. This failure is recorded, so the body does not run
    /// again. The effects of a transactional body are rolled back. The effects of any other body
    /// are not undone, and the failure says so. A workflow as compensation is refused before the
    /// body runs.
    ///
    /// # Cancel safety
    /// As for [`Step`]. If the step is dropped while its body runs, it is not recorded, and the
    /// effects of the body so far are not compensated. If the body has ended, the step is still
    /// recorded. A transactional job progresses only while the code polls its step, as with
    /// [`Wf::tx`], because `compensation` may borrow.
    #[track_caller]
    pub fn run<J: Job, U: Job>(
        &self,
        call: Call<J>,
        compensation: impl Fn(&J::Output) -> Call<U> + Send + Sync + 'wf,
    ) -> Step<'wf, J::Output>
    where
        J::Output: 'wf,
    {
        if U::DEFINITION.kind() == Kind::Workflow {
            let message = format!("workflow `{}` cannot compensate a step; use a job", U::DEFINITION.name);
            return refused(J::DEFINITION.name, Failure::new(FailureKind::Setup, message));
        }
        let stored = move |output: &str| {
            // Like the body, `compensation` does not run again for a recorded step.
            let _inside = CodeContext::InlineStep.enter();
            stored(compensation(&decode_output(Ok(output.to_owned()))?))
        };
        let step = self.wf.run_with(call, Some(Box::new(stored)), Location::caller());
        // A refused step has the key of another step.
        if step.is_refused() {
            return step;
        }
        let steps = Arc::clone(&self.steps);
        let place = {
            let mut steps = locked(&steps);
            steps.push(Part { key: step.key().to_owned(), seen: Seen::Nothing });
            steps.len() - 1
        };
        step.telling(move |is_output| {
            // If the saga was compensated in the meantime, the part is gone.
            if let Some(part) = locked(&steps).get_mut(place) {
                part.seen = if is_output { Seen::Output } else { Seen::Failure };
            }
        })
    }

    /// Compensates the steps of this saga, last step first.
    ///
    /// This includes steps that the code dropped after their bodies had ended, as `race` and
    /// `try_join!` do. If a compensation fails for good, the run is blocked at that point.
    ///
    /// The set of steps is decided once. If the code dropped steps, the decision is recorded before
    /// the first compensation, as the step `saga.compensate[…]` with the key of the saga's first
    /// step. A step that is in flight in another branch and ends later is not in the set. It keeps
    /// its effect unless the run fails.
    ///
    /// In a [fork](crate::RunHandle::fork), the steps kept from the original are compensated after
    /// the original has ended, unless the original compensated them itself. Until then the fork is
    /// blocked here. If a run that shares a step has continued as new, nobody can tell whether it
    /// compensated the step. The fork is then blocked, and an operator must decide.
    ///
    /// # Cost
    /// The cost of the compensations as steps. One statement if the code dropped steps. In a fork,
    /// one query for each kept step.
    pub async fn compensate(self) {
        let attempt = &self.wf.attempt;
        if CodeContext::InlineStep.is_here() {
            attempt.stop(StopReason::Refused(nested("saga.compensate")));
            return std::future::pending().await;
        }
        let steps = std::mem::take(&mut *locked(&self.steps));
        let dropped: Vec<&str> =
            steps.iter().filter(|part| part.seen == Seen::Nothing).map(|part| part.key.as_str()).collect();
        let done = match steps.first() {
            Some(first) if !dropped.is_empty() => Box::pin(done_of(attempt, &first.key, &dropped)).await,
            _ => HashSet::new(),
        };
        for Part { key, seen } in steps.iter().rev() {
            let was_done = match seen {
                Seen::Output => true,
                Seen::Failure => false,
                Seen::Nothing => done.contains(key),
            };
            if was_done && let Some(call) = attempt.compensation_of(key) {
                compensate_in_code(attempt, key, &call).await;
            }
        }
    }
}

fn locked(steps: &Mutex<Vec<Part>>) -> MutexGuard<'_, Vec<Part>> {
    // No code panics while it holds the lock.
    steps.lock().unwrap_or_else(PoisonError::into_inner)
}

fn stored<U: Job>(call: Call<U>) -> Result<Plain, Failure> {
    let name = U::DEFINITION.name;
    if let Some(option) = call.request.said_beyond(&["max_attempts", "timeout", "backoff"]) {
        return Err(super::not_for_a_step(name, option));
    }
    let input = call.request.input.map_err(|error| Failure::from_chain(FailureKind::Encode, &error))?;
    let broken = |error: serde_json::Error| Failure::from_chain(FailureKind::Encode, &error);
    let plain = input.clone();
    let input = serde_json::value::RawValue::from_string(input.into_text()).map_err(broken)?;
    let compensation = CompensationCall {
        // So that a program from before a renaming can execute it too.
        job: stored_name(U::DEFINITION.oldest_name(), U::DEFINITION.version),
        input: std::borrow::Cow::Owned(input),
        options: call.request.options,
    };
    Ok(plain.within(serde_json::to_string(&compensation).map_err(broken)?))
}
