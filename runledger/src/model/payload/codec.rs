//! The interface for codecs that encrypt or compress payloads before they are stored.

use std::fmt;
use std::sync::Arc;

use sha2::{Digest, Sha256};
use thiserror::Error;
use uuid::Uuid;

/// Encodes payloads before they are stored, and decodes them: encryption or compression.
/// [`AesGcm`](crate::AesGcm) is a ready codec (feature `aes-gcm`).
/// [`Db::with_codec`](crate::Db::with_codec) sets a codec.
///
/// Methods run in the task that writes or reads the payload, so they should not block for long. An
/// error stops the operation and loses nothing: a call is not enqueued, and a run is blocked with
/// the reason until an operator resumes it.
///
/// A panic counts as an error, with the panic message as the reason. Every [`CodecError`] is logged
/// and stored, so it must not contain a payload or a key.
///
/// A codec that compresses:
///
/// ```
/// use runledger::{Codec, CodecError, Place, Sealed};
///
/// /// Writes runs of equal bytes as a length and a byte.
/// struct RunLengths;
///
/// impl Codec for RunLengths {
///     fn seal(&self, _place: &Place<'_>, plain: &[u8]) -> Result<Sealed, CodecError> {
///         let runs = plain.chunk_by(|one, other| one == other).flat_map(|run| run.chunks(255));
///         Ok(Sealed::new("run-lengths", runs.flat_map(|run| [run.len() as u8, run[0]]).collect()))
///     }
///
///     fn open(&self, _place: &Place<'_>, sealed: &Sealed) -> Result<Vec<u8>, CodecError> {
///         if sealed.key_id() != "run-lengths" {
///             return Err(CodecError::no_key(sealed));
///         }
///         Ok(sealed.bytes().chunks_exact(2).flat_map(|run| vec![run[1]; usize::from(run[0])]).collect())
///     }
///
///     fn digest(&self, bytes: &[u8]) -> [u8; 32] {
///         Self::hash(bytes) // nothing is secret
///     }
/// }
///
/// # let run_id = uuid::Uuid::nil();
/// # let place = Place::new(run_id, runledger::PayloadKind::Input, "");
/// let sealed = RunLengths.seal(&place, b"aaaaaaaaaaaaaaab").unwrap();
/// assert_eq!(sealed.bytes(), [15, b'a', 1, b'b']);
/// assert_eq!(RunLengths.open(&place, &sealed).unwrap(), b"aaaaaaaaaaaaaaab");
/// ```
pub trait Codec: Send + Sync + 'static {
    /// Encodes the bytes of a payload for this place.
    ///
    /// # Errors
    /// [`CodecError`] if the payload cannot be encoded, now or ever.
    fn seal(&self, place: &Place<'_>, plain: &[u8]) -> Result<Sealed, CodecError>;

    /// Decodes bytes that were encoded for this place, including bytes with older keys and formats.
    /// Should refuse bytes that were encoded for another place.
    ///
    /// # Errors
    /// [`CodecError`] if the key is missing, the bytes were changed, or they belong to another
    /// place.
    fn open(&self, place: &Place<'_>, sealed: &Sealed) -> Result<Vec<u8>, CodecError>;

    /// Returns a digest that identifies the bytes without revealing them, the same in every
    /// process: a keyed hash such as HMAC.
    ///
    /// The engine stores the digest with steps whose inputs must be equal in a replay, and with
    /// lines that a run emits. With a plain hash, a guessable text could be found by trying.
    fn digest(&self, bytes: &[u8]) -> [u8; 32];

    /// Returns the digests under older keys. Keep an older key while live runs have recorded its
    /// digests.
    fn old_digests(&self, bytes: &[u8]) -> Vec<[u8; 32]> {
        let _ = bytes;
        Vec::new()
    }

    /// A hash without a key, for the [`digest`](Self::digest) of a codec whose payloads are not
    /// secret.
    fn hash(bytes: &[u8]) -> [u8; 32]
    where
        Self: Sized,
    {
        Sha256::digest(bytes).into()
    }
}

impl<C: Codec + ?Sized> Codec for Arc<C> {
    fn seal(&self, place: &Place<'_>, plain: &[u8]) -> Result<Sealed, CodecError> {
        (**self).seal(place, plain)
    }

    fn open(&self, place: &Place<'_>, sealed: &Sealed) -> Result<Vec<u8>, CodecError> {
        (**self).open(place, sealed)
    }

    fn digest(&self, bytes: &[u8]) -> [u8; 32] {
        (**self).digest(bytes)
    }

    fn old_digests(&self, bytes: &[u8]) -> Vec<[u8; 32]> {
        (**self).old_digests(bytes)
    }
}

/// The bytes of a payload as a codec encoded them, and the name of the key that decodes them.
#[derive(Clone, PartialEq, Eq)]
pub struct Sealed {
    key_id: String,
    bytes: Vec<u8>,
}

impl Sealed {
    /// Creates a sealed payload. The key name has 1 to 64 of `A-Z`, `a-z`, `0-9`, `_`, `.` and `-`.
    /// It is stored and shown in plain text.
    pub fn new(key_id: impl Into<String>, bytes: Vec<u8>) -> Self {
        Self { key_id: key_id.into(), bytes }
    }

    /// The name of the key.
    #[must_use]
    pub fn key_id(&self) -> &str {
        &self.key_id
    }

    /// The encoded bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl fmt::Debug for Sealed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sealed").field("key_id", &self.key_id).field("n_bytes", &self.bytes.len()).finish()
    }
}

/// The kind of a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PayloadKind {
    /// The arguments of a run.
    Input,
    /// The output of a run.
    Output,
    /// The output of a step, or a value that a workflow received from `now`, `uuid` or `random`.
    Step,
    /// A value that a workflow publishes.
    Published,
    /// The payload of a signal.
    Signal,
    /// The failure of a run or a step.
    Error,
    /// A line that a run emits.
    Emitted,
    /// The progress that a body reports.
    Progress,
    /// The call that compensates a step of a saga.
    Compensation,
    /// A line that a body logs.
    Log,
    /// The configuration of a job. It belongs to no run.
    Config,
}

impl PayloadKind {
    /// The name of the kind in the associated data. It must never change.
    const fn word(self) -> &'static str {
        match self {
            Self::Input => "input",
            Self::Output => "output",
            Self::Step => "step",
            Self::Published => "published",
            Self::Signal => "signal",
            Self::Error => "error",
            Self::Emitted => "emitted",
            Self::Progress => "progress",
            Self::Compensation => "compensation",
            Self::Log => "log",
            Self::Config => "config",
        }
    }
}

/// The place that a payload belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place<'a> {
    run_id: Uuid,
    kind: PayloadKind,
    key: &'a str,
}

impl<'a> Place<'a> {
    /// Creates the place of a payload of this run. `key` distinguishes payloads of the same kind.
    #[must_use]
    pub const fn new(run_id: Uuid, kind: PayloadKind, key: &'a str) -> Self {
        Self { run_id, kind, key }
    }

    /// Creates the place of a step's output.
    #[must_use]
    pub fn of_step(run_id: Uuid, key: &'a str) -> Self {
        let name = key.rsplit_once('/').map_or(key, |(_, name)| name);
        let kind = if name.starts_with(PUBLISHED) { PayloadKind::Published } else { PayloadKind::Step };
        Self { run_id, kind, key }
    }

    /// The run. Nil if the payload belongs to no run.
    #[must_use]
    pub const fn run_id(&self) -> Uuid {
        self.run_id
    }

    /// The kind of the payload.
    #[must_use]
    pub const fn kind(&self) -> PayloadKind {
        self.kind
    }

    /// The key within the kind, empty for the run itself.
    ///
    /// - **Step**: the key of the step.
    /// - **Signal**: the name and the idempotency key, separated by `/`.
    /// - **Line of output**: the step and the number, separated by `#`.
    /// - **Configuration**: the job and the version, separated by `/`.
    #[must_use]
    pub const fn key(&self) -> &'a str {
        self.key
    }

    /// The place as bytes, distinct for every place. An authenticated cipher binds its ciphertext
    /// to them.
    #[must_use]
    pub fn associated_data(&self) -> Vec<u8> {
        // The encoding is unambiguous: no kind contains a space, and an id always has 16 bytes.
        let mut bytes = format!("runledger 1 {} ", self.kind.word()).into_bytes();
        bytes.extend_from_slice(self.run_id.as_bytes());
        bytes.extend_from_slice(self.key.as_bytes());
        bytes
    }
}

/// The prefix of the key of a step that publishes. No step name contains a colon.
pub(crate) const PUBLISHED: &str = "publish:";

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = self.key;
        match (self.kind, key) {
            (PayloadKind::Input, _) => f.write_str("the input"),
            (PayloadKind::Output, _) => f.write_str("the output"),
            (PayloadKind::Step, _) => write!(f, "the output of step `{key}`"),
            (PayloadKind::Published, _) => write!(f, "the value that step `{key}` publishes"),
            (PayloadKind::Signal, _) => {
                write!(f, "the payload of signal `{}`", key.split('/').next().unwrap_or(key))
            }
            (PayloadKind::Error, "") => f.write_str("the failure"),
            (PayloadKind::Error, _) => write!(f, "the failure of step `{key}`"),
            (PayloadKind::Emitted, _) => f.write_str("a line of output"),
            (PayloadKind::Progress, "") => f.write_str("the progress"),
            (PayloadKind::Progress, _) => write!(f, "the progress of step `{key}`"),
            (PayloadKind::Log, _) => f.write_str("a line of the log"),
            (PayloadKind::Compensation, _) => write!(f, "the call that compensates step `{key}`"),
            (PayloadKind::Config, _) => {
                write!(f, "the configuration of job `{}`", key.split('/').next().unwrap_or(key))
            }
        }
    }
}

/// An error of a codec.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CodecError {
    /// The codec has no key of this name.
    #[error("it is sealed under key `{key_id}`, which this program does not have; add it as an old key")]
    NoKey {
        /// The name of the key.
        key_id: String,
    },
    /// The key exists and does not decrypt the payload.
    #[error(
        "it does not open under key `{key_id}`: it was changed, it belongs to another run or step, or another key has this name"
    )]
    Mismatch {
        /// The name of the key.
        key_id: String,
    },
    /// Any other error.
    #[error(transparent)]
    Other(Box<dyn std::error::Error + Send + Sync>),
}

impl CodecError {
    /// Creates the error for a missing key.
    #[must_use]
    pub fn no_key(sealed: &Sealed) -> Self {
        Self::NoKey { key_id: sealed.key_id.clone() }
    }

    /// Creates the error for a key that does not decrypt these bytes.
    #[must_use]
    pub fn mismatch(sealed: &Sealed) -> Self {
        Self::Mismatch { key_id: sealed.key_id.clone() }
    }

    /// Creates an error with any other reason. The reason is logged and stored, so it must not
    /// contain a payload or a key.
    pub fn other(reason: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Other(reason.into())
    }
}
