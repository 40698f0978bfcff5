//! What a workflow may ask of the world without a step: the time, an id, a number, and whether a change of its code concerns it.

use std::time::SystemTime;

use uuid::Uuid;

use super::{Wf, nested};
use crate::connection::code_context::CodeContext;
use crate::engine::markers;
use crate::engine::stop::StopReason;
use crate::model::failure::{Failure, FailureKind};
use crate::model::name::check_name;
use crate::model::replay::StepKind;
use crate::model::timestamp::Timestamp;

impl Wf {
    /// The time, by the database's clock. It is recorded: a replay gives the same instant.
    ///
    /// Costs a row that is written before the next step's body begins, and no round trip where it is called. Its key is `now`, counted per occurrence.
    #[must_use]
    #[track_caller]
    pub fn now(&self) -> SystemTime {
        let now = self.mark("now", || self.attempt.clock.now().unix_micros());
        Timestamp::from_unix_micros(now).into()
    }

    /// A fresh id (version 7). It is recorded: a replay gives the same one. Costs what [`now`](Self::now) does; its key is `uuid`.
    #[must_use]
    #[track_caller]
    pub fn uuid(&self) -> Uuid {
        self.mark("uuid", Uuid::now_v7)
    }

    /// A random number, uniform over all of them; seed a generator with it for more. It is recorded: a replay gives the same one. Costs what
    /// [`now`](Self::now) does; its key is `random`.
    #[must_use]
    #[track_caller]
    pub fn random(&self) -> u64 {
        self.mark("random", || {
            // Of a random id the lower half has two fixed bits at its top, and the upper one four in its middle.
            let (one, other) = (Uuid::new_v4().as_u64_pair().1, Uuid::new_v4().as_u64_pair().1);
            one ^ other.rotate_left(2)
        })
    }

    /// Whether a change of the workflow's code is in force for this run: `if wf.patched("thank-you-mail") { … }`.
    ///
    /// True for runs that had not come to this place when the changed code first ran them, which is recorded, and false for those that had gone on
    /// beyond it: these go on as the old code did. Decided once for a run and name. The call may go when no run is left that was begun before it;
    /// [`RunHandle::steps`](crate::RunHandle::steps) shows who has decided.
    ///
    /// Costs what [`now`](Self::now) does where it is true, and nothing where it is false; its key is `patched[name]`.
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

    /// Gives a value that is recorded: what it was, or what it is now.
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

    /// Ends the attempt at its next await: what has no result of its own cannot say what is wrong otherwise.
    fn refuse(&self, failure: Failure) -> bool {
        self.attempt.stop(StopReason::Refused(failure));
        false
    }
}
