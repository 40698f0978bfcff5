//! Failures as they are stored: their kinds stay readable, for people and for their queries.

use serde::{Deserialize, Serialize};

use super::codec::{PayloadKind, Place};
use super::error::PayloadError;
use super::sealer::Sealer;
use super::text::{Plain, Stored};
use crate::model::failure::{Failure, FailureKind};

/// A failure whose text is sealed.
#[derive(Serialize, Deserialize)]
struct SealedFailure {
    kind: FailureKind,
    message: String,
    #[serde(rename = "$sealed")]
    sealed: String,
}

/// What those read who look into the table.
const HIDDEN: &str = "its text is sealed";

impl Sealer {
    /// As much of a failure as is recorded.
    pub(crate) fn storable(&self, failure: &Failure) -> Failure {
        failure.storable(self.limits().of(PayloadKind::Error))
    }

    /// A failure as it is stored. One that cannot be sealed is stored without its text: a run must be able to fail.
    #[must_use]
    pub fn seal_failure(&self, place: &Place<'_>, failure: &Failure) -> Stored {
        self.try_seal_failure(place, failure).unwrap_or_else(|error| {
            let unsealed = error.to_failure();
            let message = format!("its text is lost: {}", unsealed.message);
            Stored(as_json(&Failure { kind: failure.kind, message, ..unsealed }))
        })
    }

    /// A failure as it is stored, with its text.
    ///
    /// # Errors
    /// [`PayloadError::Seal`].
    pub fn try_seal_failure(&self, place: &Place<'_>, failure: &Failure) -> Result<Stored, PayloadError> {
        let failure = self.storable(failure);
        let text = as_json(&failure);
        let Some(codec) = self.sealing().filter(|_| !is_engines_own(failure.kind)) else {
            return Ok(Stored(text));
        };
        let sealed = self.sealed_by(codec, place, &Plain::ready(text))?;
        Ok(Stored(as_json(&SealedFailure { kind: failure.kind, message: HIDDEN.to_owned(), sealed })))
    }

    /// A failure as it was.
    ///
    /// # Errors
    /// [`PayloadError`], where it is sealed and does not open, or is no failure.
    pub fn open_failure(&self, place: &Place<'_>, stored: &Stored) -> Result<Failure, PayloadError> {
        let malformed = || PayloadError::Malformed { what: place.to_string() };
        let Ok(found) = serde_json::from_str::<SealedFailure>(&stored.0) else {
            return serde_json::from_str(&stored.0).map_err(|_| malformed());
        };
        let text = self.open_sealed(place, &found.sealed)?;
        serde_json::from_str(&text).map_err(|_| malformed())
    }

    /// A failure that is stored at this place as it is stored at another.
    ///
    /// # Errors
    /// As [`open_failure`](Self::open_failure).
    pub fn reseal_failure(
        &self,
        from: &Place<'_>,
        to: &Place<'_>,
        stored: Stored,
    ) -> Result<Stored, PayloadError> {
        if serde_json::from_str::<SealedFailure>(&stored.0).is_err() {
            return Ok(stored);
        }
        Ok(self.seal_failure(to, &self.open_failure(from, &stored)?))
    }

    /// As [`open_failure`](Self::open_failure), for people: one that does not open says so.
    #[must_use]
    pub fn show_failure(&self, place: &Place<'_>, stored: &Stored) -> Failure {
        self.open_failure(place, stored).unwrap_or_else(|error| {
            let kind = serde_json::from_str::<SealedFailure>(&stored.0).map(|found| found.kind);
            Failure { kind: kind.unwrap_or(FailureKind::Sealed), ..error.to_failure() }
        })
    }
}

/// Whether failures of this kind have only words of the engine and of its operators: the engine writes some of them without a codec, and adds to others in
/// statements.
const fn is_engines_own(kind: FailureKind) -> bool {
    matches!(kind, FailureKind::Cancelled | FailureKind::Crash | FailureKind::Sealed | FailureKind::Skipped)
}

fn as_json<T: Serialize>(failure: &T) -> String {
    // A struct of strings always has a JSON form.
    serde_json::to_string(failure).unwrap_or_else(|_| "{}".to_owned())
}
