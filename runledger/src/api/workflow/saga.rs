//! Sagas: steps that can be taken back.

use std::panic::Location;
use std::sync::{Arc, Mutex, PoisonError};

use super::{Wf, refused};
use crate::api::call::Call;
use crate::api::definition::Kind;
use crate::api::job::Job;
use crate::api::step::{Step, decode_output};
use crate::model::failure::{Failure, FailureKind};
use crate::model::payload::Plain;
use crate::runtime::saga::{UndoCall, undo_in_code};

impl Wf {
    /// Begins a saga: steps each of which says how to take back what it did.
    ///
    /// The call that takes it back is recorded with the step. Where the run fails for good or is cancelled, the recorded calls are carried out, the last
    /// first, by any worker and without the workflow's code; then the run ends. They are steps: retried by the policy of their jobs, recorded as
    /// `undo[key]`, and seen in [`Handle::steps`](crate::Handle::steps). Where one fails for good the run is parked with the reason:
    /// [`Handle::resume`](crate::Handle::resume) tries it again, and cancelling the run leaves the rest undone.
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
        Saga { wf: self, done: Arc::default() }
    }
}

/// Steps of a workflow that can be taken back, made by [`Wf::saga`].
#[derive(Debug)]
pub struct Saga<'wf> {
    wf: &'wf Wf,
    /// The keys of the steps that have ended well, in their order.
    done: Arc<Mutex<Vec<String>>>,
}

impl<'wf> Saga<'wf> {
    /// As [`Wf::run`], with the call that takes back what the step did, made of its output.
    ///
    /// # Errors
    /// As [`Wf::run`]. An undo that cannot be made or stored, since `undo` panics or gives a workflow, is a failure of the step, though its body has run: that
    /// cannot be known before. It is recorded, so the body does not run again. What a transactional body did is rolled back with it; what another did is taken
    /// back by nothing, and the failure says so.
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
        let stored = move |output: &str| stored(undo(&decode_output(Ok(output.to_owned()))?));
        let done = Arc::clone(&self.done);
        let step = self.wf.run_with(call, Some(Box::new(stored)), Location::caller());
        let key = step.key().to_owned();
        step.map_ok(move |output| {
            done.lock().unwrap_or_else(PoisonError::into_inner).push(key.clone());
            output
        })
    }

    /// Takes back what the steps of this saga did, the last first. Where one cannot be taken back the run is parked there.
    pub async fn undo(self) {
        let done = std::mem::take(&mut *self.done.lock().unwrap_or_else(PoisonError::into_inner));
        let attempt = &self.wf.attempt;
        for key in done.iter().rev() {
            if let Some(call) = attempt.undo_of(key) {
                undo_in_code(attempt, key, &call).await;
            }
        }
    }
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
        job: call.request.job,
        input: std::borrow::Cow::Owned(input),
        options: call.request.options,
    };
    Ok(plain.within(serde_json::to_string(&undo).map_err(broken)?))
}
