//! The stored form of failures. The kind stays readable, for operators and their queries.

use serde::{Deserialize, Serialize};

use super::codec::{PayloadKind, Place};
use super::error::PayloadError;
use super::sealer::Sealer;
use super::text::{Plain, Stored};
use crate::model::run::failure::{Failure, FailureKind};

/// A failure with an encrypted text.
#[derive(Serialize, Deserialize)]
struct SealedFailure {
    kind: FailureKind,
    message: String,
    #[serde(rename = "$sealed")]
    sealed: String,
}

/// The text that readers of the table see.
const HIDDEN: &str = "its text is sealed";

impl Sealer {
    /// Cuts a failure to the limits of a record.
    pub(crate) fn storable(&self, failure: &Failure) -> Failure {
        failure.storable(self.limits().of(PayloadKind::Error))
    }

    /// Encrypts a failure. If that fails, the failure is stored without its text, because a run
    /// must be able to fail.
    #[must_use]
    pub fn seal_failure(&self, place: &Place<'_>, failure: &Failure) -> Stored {
        self.try_seal_failure(place, failure).unwrap_or_else(|error| {
            let unsealed = error.to_failure();
            let message = format!("its text is lost: {}", unsealed.message);
            Stored(as_json(&Failure { kind: failure.kind, message, ..unsealed }))
        })
    }

    /// Encrypts a failure with its text.
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

    /// Decrypts a failure.
    ///
    /// # Errors
    /// [`PayloadError`] if the failure cannot be decrypted, or the text is not a failure.
    pub fn open_failure(&self, place: &Place<'_>, stored: &Stored) -> Result<Failure, PayloadError> {
        let malformed = || PayloadError::Malformed { what: place.to_string() };
        let Ok(found) = serde_json::from_str::<SealedFailure>(&stored.0) else {
            return serde_json::from_str(&stored.0).map_err(|_| malformed());
        };
        let text = self.open_sealed(place, &found.sealed)?;
        serde_json::from_str(&text).map_err(|_| malformed())
    }

    /// Encrypts a stored failure again, for another place.
    ///
    /// # Errors
    /// Same as [`open_failure`](Self::open_failure).
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

    /// Decrypts a failure for display. If that fails, the result contains the reason.
    #[must_use]
    pub fn show_failure(&self, place: &Place<'_>, stored: &Stored) -> Failure {
        self.open_failure(place, stored).unwrap_or_else(|error| {
            let kind = serde_json::from_str::<SealedFailure>(&stored.0).map(|found| found.kind);
            Failure { kind: kind.unwrap_or(FailureKind::Sealed), ..error.to_failure() }
        })
    }
}

/// Whether failures of this kind contain only texts of the engine and its operators. The engine
/// writes some of them without a codec, and extends others in SQL statements.
const fn is_engines_own(kind: FailureKind) -> bool {
    matches!(kind, FailureKind::Cancelled | FailureKind::Crash | FailureKind::Sealed | FailureKind::Skipped)
}

fn as_json<T: Serialize>(failure: &T) -> String {
    // A struct of strings always has a JSON form.
    serde_json::to_string(failure).unwrap_or_else(|_| "{}".to_owned())
}
