//! Errors of storing and reading payloads.

use thiserror::Error;

use super::codec::CodecError;
use crate::model::json::EncodeError;
use crate::model::run::failure::{Failure, FailureKind};

/// An error of storing or reading a payload. Its texts never show a value.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PayloadError {
    /// The payload has no JSON form that can be stored.
    #[error(transparent)]
    Encode(#[from] EncodeError),
    /// The payload exceeds the limit of its kind: see [`Limits`](crate::Limits).
    #[error(
        "{what} has {size} bytes of JSON, and at most {limit} are allowed (passed at `{path}`): store it in a table or an object store and pass its key, or \
         raise the limit by `Db::with_limits`"
    )]
    TooLarge {
        /// Which payload.
        what: String,
        /// The size in bytes of JSON text.
        size: usize,
        /// The limit in bytes.
        limit: usize,
        /// The path at which the payload exceeds the limit.
        path: String,
    },
    /// The step does not fit into the history of the run: see `wf.continue_as_new`.
    #[error(
        "the record of this step has {added} bytes, the history of the run has {size}, and at most {limit} are allowed together: store it elsewhere and return its key, or begin \
         fewer steps at once and continue with `wf.continue_as_new`, which starts the history of the run afresh"
    )]
    HistoryFull {
        /// The size of the history in bytes.
        size: usize,
        /// The size of the record in bytes: the key, the result, the compensation, and 96 for the
        /// other columns.
        added: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// The payload contains a [`Secret`](crate::Secret), and no codec would encrypt it.
    #[error(
        "{what} has a `Secret`, and no codec seals it: it would be stored for everybody to read; set one by `Db::with_codec`, or pass the name under which a \
         vault has the secret"
    )]
    SecretWithoutCodec {
        /// Which payload.
        what: String,
    },
    /// The plain payload looks like an encrypted one.
    #[error(
        "{what} is an object that begins with the key `$sealed`, as sealed payloads do, and would be taken for one; give the key another name"
    )]
    Reserved {
        /// Which payload.
        what: String,
    },
    /// The codec could not encrypt the payload.
    #[error("{what} cannot be sealed")]
    Seal {
        /// Which payload.
        what: String,
        /// The error of the codec.
        source: CodecError,
    },
    /// The codec could not compute a digest of the payload.
    #[error("{what} has no digest")]
    Digest {
        /// Which payload.
        what: String,
        /// The error of the codec.
        source: CodecError,
    },
    /// The payload is encrypted, and this program has no codec.
    #[error(
        "{what} is sealed under key `{key_id}`, and this program has no codec; set the one that has sealed it by `Db::with_codec`"
    )]
    NoCodec {
        /// Which payload.
        what: String,
        /// The name of the key.
        key_id: String,
    },
    /// The codec could not decrypt the payload.
    #[error("{what} cannot be opened")]
    Open {
        /// Which payload.
        what: String,
        /// The error of the codec.
        source: CodecError,
    },
    /// The payload begins like an encrypted one, but its format is invalid.
    #[error("{what} looks sealed and is cut or changed: compare the stored row with a backup")]
    Malformed {
        /// Which payload.
        what: String,
    },
}

impl PayloadError {
    /// Whether the cause is the codec or its keys. A repair of the codec may help without another
    /// value, so the operation waits for it.
    #[must_use]
    pub fn is_of_codec(&self) -> bool {
        match self {
            Self::Seal { .. }
            | Self::Digest { .. }
            | Self::NoCodec { .. }
            | Self::Open { .. }
            | Self::Malformed { .. } => true,
            Self::Encode(_)
            | Self::TooLarge { .. }
            | Self::HistoryFull { .. }
            | Self::SecretWithoutCodec { .. }
            | Self::Reserved { .. } => false,
        }
    }

    /// The failure to record.
    #[must_use]
    pub fn to_failure(&self) -> Failure {
        let kind = if self.is_of_codec() { FailureKind::Sealed } else { FailureKind::Encode };
        Failure::from_chain(kind, self)
    }
}
