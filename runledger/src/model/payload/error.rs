//! Why a payload cannot be stored or read.

use thiserror::Error;

use super::codec::CodecError;
use crate::model::failure::{Failure, FailureKind};
use crate::model::json::EncodeError;

/// Why a payload cannot be stored, or what is stored cannot be read. No text of it shows a value.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PayloadError {
    /// It has no JSON form that can be stored.
    #[error(transparent)]
    Encode(#[from] EncodeError),
    /// It is larger than its kind may be: see [`Limits`](crate::Limits).
    #[error(
        "{what} has {size} bytes of JSON, and at most {limit} are allowed (passed at `{path}`): store it in a table or an object store and pass its key, or \
         raise the limit by `Db::with_limits`"
    )]
    TooLarge {
        /// Which payload.
        what: String,
        /// How large it is, in bytes of JSON text.
        size: usize,
        /// How large it may be.
        limit: usize,
        /// Where in it the limit is passed.
        path: String,
    },
    /// The history of the run would become larger than one may be: see `wf.continue_as_new`.
    #[error(
        "the record of this step has {added} bytes, the history of the run has {size}, and at most {limit} are allowed together: store it elsewhere and return its key, or begin \
         fewer steps at once and continue with `wf.continue_as_new`, which starts the history of the run afresh"
    )]
    HistoryFull {
        /// The bytes of the history.
        size: usize,
        /// The bytes of the record: the key, the result, the compensation, and 96 for the other columns.
        added: usize,
        /// How many a run may have.
        limit: usize,
    },
    /// A [`Secret`](crate::Secret) is part of it, and nothing would seal it.
    #[error(
        "{what} has a `Secret`, and no codec seals it: it would be stored for everybody to read; set one by `Db::with_codec`, or pass the name under which a \
         vault has the secret"
    )]
    SecretWithoutCodec {
        /// Which payload.
        what: String,
    },
    /// It looks like a sealed one, and is none.
    #[error(
        "{what} is an object that begins with the key `$sealed`, as sealed payloads do, and would be taken for one; give the key another name"
    )]
    Reserved {
        /// Which payload.
        what: String,
    },
    /// The codec could not seal it.
    #[error("{what} cannot be sealed")]
    Seal {
        /// Which payload.
        what: String,
        /// What the codec says.
        source: CodecError,
    },
    /// The codec could not give what identifies it.
    #[error("{what} has no digest")]
    Digest {
        /// Which payload.
        what: String,
        /// What the codec says.
        source: CodecError,
    },
    /// It is sealed, and this program has no codec.
    #[error(
        "{what} is sealed under key `{key_id}`, and this program has no codec; set the one that has sealed it by `Db::with_codec`"
    )]
    NoCodec {
        /// Which payload.
        what: String,
        /// The name of the key.
        key_id: String,
    },
    /// The codec could not open it.
    #[error("{what} cannot be opened")]
    Open {
        /// Which payload.
        what: String,
        /// What the codec says.
        source: CodecError,
    },
    /// It begins as a sealed payload does, and is none that can be read.
    #[error("{what} looks sealed and is cut or changed: compare the stored row with a backup")]
    Malformed {
        /// Which payload.
        what: String,
    },
}

impl PayloadError {
    /// Whether it says something of the codec and its keys, and so may be mended without another value: what needs the payload waits for that.
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

    /// What is recorded of it.
    #[must_use]
    pub fn to_failure(&self) -> Failure {
        let kind = if self.is_of_codec() { FailureKind::Sealed } else { FailureKind::Encode };
        Failure::from_chain(kind, self)
    }
}
