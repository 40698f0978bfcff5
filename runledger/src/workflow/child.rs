//! Runs started by a workflow.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;
use std::panic::Location;
use std::sync::Arc;

use uuid::Uuid;

use super::step::{Step, StepFuture, decode_output};
use super::{Wf, refused};
use crate::definition::call::Call;
use crate::definition::job::{Job, Payload};
use crate::engine::attempt::stop::Wait;
use crate::engine::step::waiting;
use crate::model::json;
use crate::model::payload::Sealer;
use crate::model::replay::{Line, StepKind};
use crate::model::run::failure::{Failure, FailureKind};
use crate::model::run::request::child_run_id;
use crate::store::attempt::wait::NewChild;
use crate::store::run::enqueue::NewRun;

impl Wf {
    /// Starts a call as a child run, on its own queue.
    ///
    /// The start and its record are one commit. The child is cancelled if this run is cancelled or
    /// fails. After a cancel request for this run, it starts no more children: the attempt ends at
    /// this call.
    ///
    /// # Errors
    /// - This run already has 100 ancestors. This limit stops a workflow that starts itself
    ///   endlessly. The failure is recorded and terminal, and names the topmost run.
    /// - The call cannot be stored.
    /// - The call has a tenant, an active key or an idempotency key. A child has the tenant of its
    ///   parent, and the key of its step identifies it.
    #[track_caller]
    pub fn start<J: Job>(&self, call: Call<J>) -> Step<'_, Child<'_, J::Output>> {
        self.start_at(call, Location::caller())
    }

    pub(super) fn start_at<J: Job>(&self, call: Call<J>, line: Line) -> Step<'_, Child<'_, J::Output>> {
        let (name, oldest) = (J::DEFINITION.name, J::DEFINITION.oldest_name());
        if let Some(option) = call.request.identity_said() {
            return refused(name, not_for_a_child("call of job", name, option));
        }
        let fingerprints = match call.request.input.as_ref() {
            Ok(input) => match self.fingerprints(name, input) {
                Ok(fingerprints) => of_child(&fingerprints),
                Err(step) => return step,
            },
            Err(_) => of_child(&[0]),
        };
        let fingerprint = fingerprints.first().copied().unwrap_or(0);
        let new_run = match call.request.into_new_run() {
            Ok(new_run) => new_run,
            Err(error) => return refused(name, Failure::from_chain(FailureKind::Encode, &error)),
        };
        let claim = match self.claim_at(oldest, call.key.as_deref(), &fingerprints, line) {
            Ok(claim) => claim,
            Err(step) => return step,
        };
        let attempt = Arc::clone(&self.attempt);
        let child = NewRun {
            run_id: child_run_id(attempt.fence.run_id, &attempt.key_of_slice(claim.key.as_str())),
            ..new_run
        };
        let key = claim.key.as_str().to_owned();
        Step::without_tries(
            key,
            move || {
                let child = |sealer: &Sealer| child.sealed(sealer).map(NewChild::Run);
                Box::pin(async move { waiting::start(&attempt, &claim, fingerprint, child).await })
            },
            move |recorded| Ok(Child::new(self, oldest, decode_output(recorded)?)),
        )
        .of_own_output(&self.attempt)
    }
}

/// A run with the output `T` that a workflow has started.
pub struct Child<'wf, T> {
    wf: &'wf Wf,
    /// The name of the job or graph. The step that waits for the result is named after it.
    name: Cow<'static, str>,
    run_id: Uuid,
    marker: PhantomData<fn() -> T>,
}

impl<T> fmt::Debug for Child<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Child")
            .field("name", &self.name)
            .field("run_id", &self.run_id)
            .finish_non_exhaustive()
    }
}

impl<'wf, T: Payload> Child<'wf, T> {
    pub(crate) fn new(wf: &'wf Wf, name: impl Into<Cow<'static, str>>, run_id: Uuid) -> Self {
        Self { wf, name: name.into(), run_id, marker: PhantomData }
    }

    /// The id of the child run.
    #[must_use]
    pub fn id(&self) -> Uuid {
        self.run_id
    }

    /// Waits until the child ends and returns its output. A run that only waits is suspended.
    ///
    /// # Errors
    /// The child failed or was cancelled, or its output has another type.
    #[track_caller]
    pub fn result(&self) -> Step<'wf, T> {
        self.result_at(Location::caller())
    }

    pub(super) fn result_at(&self, line: Line) -> Step<'wf, T> {
        self.end(Wait::Child(self.run_id), line)
    }

    /// Like [`result`](Self::result), for a run that has nothing to do until all of these children
    /// have ended.
    pub(super) fn result_of_all(&self, all: Arc<[Uuid]>, line: Line) -> Step<'wf, T> {
        self.end(Wait::LastOf(all), line)
    }

    fn end(&self, wait: Wait, line: Line) -> Step<'wf, T> {
        let (wf, child) = (self.wf, self.run_id);
        let name = format!("{}.result", self.name);
        let fingerprint = json::fingerprint(&child.to_string());
        let claim = match wf.claim_at(&name, None, &[fingerprint], line) {
            Ok(claim) => claim,
            Err(step) => return step,
        };
        let attempt = Arc::clone(&wf.attempt);
        let key = claim.key.as_str().to_owned();
        let work = move || -> StepFuture<'wf> {
            Box::pin(async move { waiting::child_result(&attempt, &claim, fingerprint, child, wait).await })
        };
        Step::without_tries(key, work, decode_output).of_own_output(&wf.attempt)
    }
}

/// Returns the fingerprints of the start of a child whose input has these fingerprints.
pub(crate) fn of_child(fingerprints: &[i64]) -> Vec<i64> {
    fingerprints.iter().map(|input| StepKind::Child.fingerprint(*input)).collect()
}

pub(crate) fn not_for_a_child(what: &str, name: &str, option: &str) -> Failure {
    let message = format!(
        "the {what} `{name}` has a `{option}`, which a child cannot have: it has the tenant of its parent, and the step that starts it is its \
         key, so that it is started once; leave it out, and use `key` to tell children apart"
    );
    Failure::new(FailureKind::Setup, message)
}
