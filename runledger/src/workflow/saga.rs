//! Sagas: steps that can be taken back.

use std::collections::HashSet;
use std::panic::Location;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::step::{Step, decode_output};
use super::{Wf, nested, refused};
use crate::connection::code_context::CodeContext;
use crate::definition::Kind;
use crate::definition::call::Call;
use crate::definition::job::Job;
use crate::engine::saga::{UndoCall, done_of, undo_in_code};
use crate::engine::stop::StopReason;
use crate::model::failure::{Failure, FailureKind};
use crate::model::payload::Plain;
use crate::model::version::stored_name;

impl Wf {
    /// Begins a saga: steps each of which says how to take back what it did.
    ///
    /// The call that takes it back is recorded with the step. Where the run fails for good or is cancelled, the recorded calls are carried out, the last
    /// first, by any worker and without the workflow's code; then the run ends. They are steps: retried by the policy of their jobs, recorded as
    /// `undo[key]`, and seen in [`RunHandle::steps`](crate::RunHandle::steps). Where one fails for good the run is parked with the reason:
    /// [`RunHandle::resume`](crate::RunHandle::resume) tries it again, and cancelling the run leaves the rest undone.
    ///
    /// A step that fails has nothing to take back, though its body may have begun: what it does before it fails is for its own code.
    ///
    /// ```no_run
    /// # use runledger::prelude::*;
    /// # #[job] async fn book(what: &str) -> Result<u64> { Ok(what.len() as u64) }
    /// # #[job] async fn unbook(id: u64) -> Result<()> { drop(id.to_string()); Ok(()) }
    /// #[workflow]
    /// async fn journey(wf: &Wf) -> Result<u64> {
    ///     let saga = wf.saga();
    ///     let flight = saga.run(book("flight"), |id| unbook(*id)).await?;
    ///     let hotel = saga.run(book("hotel"), |id| unbook(*id)).await?; // where this fails the flight is unbooked
    ///     if wf.signal::<bool>("confirmed").await? {
    ///         return Ok(flight + hotel);
    ///     }
    ///     saga.undo().await; // hotel, then flight
    ///     Ok(0)
    /// }
    /// ```
    pub fn saga(&self) -> Saga<'_> {
        Saga { wf: self, steps: Arc::default() }
    }
}

/// Steps of a workflow that can be taken back, made by [`Wf::saga`].
#[derive(Debug)]
pub struct Saga<'wf> {
    wf: &'wf Wf,
    /// Its steps, in the order in which they were built.
    steps: Arc<Mutex<Vec<Part>>>,
}

/// A step of a saga.
#[derive(Debug)]
struct Part {
    key: String,
    seen: Seen,
}

/// What the code has seen of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    /// Nothing: it is under way, or was dropped, as one that has lost a race.
    Nothing,
    Output,
    Failure,
}

impl<'wf> Saga<'wf> {
    /// As [`Wf::run`], with the call that takes back what the step did, made of its output. What else that call needs of the workflow, such as an id, is
    /// asked for before: `undo` is not called where the step is recorded.
    ///
    /// # Errors
    /// As [`Wf::run`]. An undo that cannot be made or stored, since `undo` panics or gives a workflow, is a failure of the step, though its body has run: that
    /// cannot be known before. It is recorded, so the body does not run again. What a transactional body did is rolled back with it; what another did is taken
    /// back by nothing, and the failure says so.
    ///
    /// # Cancel safety
    /// As [`Step`]. A transactional job goes on only while the code polls its step, as the closure of [`Wf::tx`] does, since `undo` may borrow. One that is dropped while its body runs is not recorded, and what the body has done outside by then is not taken back. One whose body has
    /// ended is recorded all the same.
    #[track_caller]
    pub fn run<J: Job, U: Job>(
        &self,
        call: Call<J>,
        undo: impl Fn(&J::Output) -> Call<U> + Send + Sync + 'wf,
    ) -> Step<'wf, J::Output>
    where
        J::Output: 'wf,
    {
        if U::DEFINITION.kind() == Kind::Workflow {
            let message = format!("workflow `{}` cannot undo a step; use a job", U::DEFINITION.name);
            return refused(J::DEFINITION.name, Failure::new(FailureKind::Setup, message));
        }
        let stored = move |output: &str| {
            // Like the body it is not carried out again where the step is recorded.
            let _inside = CodeContext::InlineStep.enter();
            stored(undo(&decode_output(Ok(output.to_owned()))?))
        };
        let step = self.wf.run_with(call, Some(Box::new(stored)), Location::caller());
        // One that was refused has the key of another.
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
            // Where the saga was undone meanwhile, nobody asks any more.
            if let Some(part) = locked(&steps).get_mut(place) {
                part.seen = if is_output { Seen::Output } else { Seen::Failure };
            }
        })
    }

    /// Takes back what the steps of this saga did, the last first: also those that the code has dropped after their bodies had ended, as `race` and `try_join!`
    /// do. Where one cannot be taken back the run is parked there.
    ///
    /// Which steps these are is decided once. Where the code has dropped some, that is recorded before the first is taken back, as the step `saga.undo[…]` with
    /// the key of the saga's first step. One that is under way elsewhere meanwhile and ends later is not among them: it stays, unless the run fails.
    ///
    /// In a run that goes on from the record of another ([`fork`](crate::RunHandle::fork)), what that one did is taken back once it has ended and has not done so
    /// itself; until then this run is parked here. Where one of those that share it has begun anew since, nothing tells whether it has: this run is parked, and a
    /// person decides.
    ///
    /// Costs as much as the calls that it makes as steps, a statement where the code has dropped steps, and in a fork a query for each step that it was given.
    pub async fn undo(self) {
        let attempt = &self.wf.attempt;
        if CodeContext::InlineStep.is_here() {
            attempt.stop(StopReason::Refused(nested("saga.undo")));
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
            if was_done && let Some(call) = attempt.undo_of(key) {
                undo_in_code(attempt, key, &call).await;
            }
        }
    }
}

fn locked(steps: &Mutex<Vec<Part>>) -> MutexGuard<'_, Vec<Part>> {
    // Nothing panics while it holds the lock.
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
    let undo = UndoCall {
        // So that a program from before a renaming carries it out too.
        job: stored_name(U::DEFINITION.oldest_name(), U::DEFINITION.version),
        input: std::borrow::Cow::Owned(input),
        options: call.request.options,
    };
    Ok(plain.within(serde_json::to_string(&undo).map_err(broken)?))
}
