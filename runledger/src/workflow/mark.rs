//! Recorded values without a step: the time, an id, a number, and whether a code change applies.

use std::time::SystemTime;

use uuid::Uuid;

use super::{Wf, nested};
use crate::connection::code_context::CodeContext;
use crate::engine::attempt::stop::StopReason;
use crate::engine::step::markers;
use crate::model::replay::StepKind;
use crate::model::run::failure::{Failure, FailureKind};
use crate::model::run::name::check_name;
use crate::model::timestamp::Timestamp;

impl Wf {
    /// Returns the time of the database's clock. It is recorded: a replay returns the same instant.
    ///
    /// Its key is `now`, counted per occurrence.
    ///
    /// # Cost
    /// One row, written before the next step's body starts. The call itself makes no round trip.
    #[must_use]
    #[track_caller]
    pub fn now(&self) -> SystemTime {
        let now = self.mark("now", || self.attempt.clock.now().unix_micros());
        Timestamp::from_unix_micros(now).into()
    }

    /// Returns a new id (UUID version 7). It is recorded: a replay returns the same id.
    ///
    /// Its key is `uuid`. Costs as much as [`now`](Self::now).
    #[must_use]
    #[track_caller]
    pub fn uuid(&self) -> Uuid {
        self.mark("uuid", Uuid::now_v7)
    }

    /// Returns a uniformly distributed random number. It is recorded: a replay returns the same
    /// number.
    ///
    /// Seed a generator with it if you need more. Its key is `random`. Costs as much as
    /// [`now`](Self::now).
    #[must_use]
    #[track_caller]
    pub fn random(&self) -> u64 {
        self.mark("random", || {
            // A random UUID has two fixed bits at the top of its lower half, and four in the middle
            // of its upper.
            let (one, other) = (Uuid::new_v4().as_u64_pair().1, Uuid::new_v4().as_u64_pair().1);
            one ^ other.rotate_left(2)
        })
    }

    /// Whether a change of the workflow's code applies to this run:
    /// `if wf.patched("thank-you-mail") { … }`.
    ///
    /// True for a run that had not reached this call when the changed code first executed it; this
    /// decision is recorded. False for a run that had already gone further; it continues like the
    /// old code. The decision is made once per run and name. Remove the call when no run from
    /// before the change is live. [`RunHandle::steps`](crate::RunHandle::steps) shows which runs
    /// have decided.
    ///
    /// A worker with the old code blocks a run that has recorded the change. Stop such workers
    /// before the first worker with the changed code starts, or resume the blocked runs afterwards.
    ///
    /// Its key is `patched[name]`.
    ///
    /// # Cost
    /// If true, as much as [`now`](Self::now). If false, nothing.
    #[must_use]
    pub fn patched(&self, name: &str) -> bool {
        if let Err(error) = check_name("patch", name) {
            return self.refuse(Failure::new(FailureKind::Setup, error.to_string()));
        }
        if CodeContext::InlineStep.is_here() {
            return self.refuse(nested("patched"));
        }
        let Some((is_patched, claim)) = self.attempt.patched(name) else { return false };
        if let Some(claim) = claim.filter(|claim| !claim.recorded) {
            markers::keep(&self.attempt, &claim, 0, "true".to_owned());
        }
        is_patched
    }

    /// Returns the recorded value, or records the current one.
    #[track_caller]
    fn mark<T>(&self, name: &str, now: impl Fn() -> T) -> T
    where
        T: serde::Serialize + serde::de::DeserializeOwned,
    {
        if CodeContext::InlineStep.is_here() {
            let _ = self.refuse(nested(name));
            return now();
        }
        let (fingerprint, line) = (StepKind::Value.fingerprint(0), std::panic::Location::caller());
        let Some(claim) = self.attempt.claim(&self.scope, name, None, &[fingerprint], line) else {
            return now();
        };
        if let Some(recorded) = self.attempt.result(claim.ordinal).filter(|_| claim.recorded) {
            let why = match recorded.map(|text| serde_json::from_str(&text)) {
                Ok(Ok(value)) => return value,
                Ok(Err(error)) => error.to_string(),
                Err(failure) => failure.message,
            };
            self.attempt.stop(StopReason::unreadable(claim.key.as_str(), why));
            return now();
        }
        let value = now();
        // Numbers and ids always have a JSON form.
        markers::keep(&self.attempt, &claim, fingerprint, serde_json::to_string(&value).unwrap_or_default());
        value
    }

    /// Stops the attempt at its next await. A method without a `Result` has no other way to report
    /// the failure.
    fn refuse(&self, failure: Failure) -> bool {
        self.attempt.stop(StopReason::Refused(failure));
        false
    }
}
