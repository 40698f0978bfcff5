//! What an application may do with the bytes of payloads before they are stored.

use std::fmt;
use std::sync::Arc;

use sha2::{Digest, Sha256};
use thiserror::Error;
use uuid::Uuid;

/// Changes payloads before they are stored, and back: by encryption, or by compression. [`AesGcm`](crate::AesGcm) is one that is ready (feature `aes-gcm`);
/// [`Db::with_codec`](crate::Db::with_codec) sets one.
///
/// Its methods are called where payloads are written and read, in the tasks of those who do: they should not block for long. What one of them fails
/// with stops what needs it, and loses nothing: a call is not enqueued; a run is parked with the reason until somebody resumes it. A panic of any
/// of them is such an error, with what it said as the reason: like that of every [`CodecError`], it is logged and stored, and should show no payload and no
/// key.
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
    /// Seals the bytes of a payload that belongs to this place.
    ///
    /// # Errors
    /// [`CodecError`]: the payload cannot be sealed now, or ever.
    fn seal(&self, place: &Place<'_>, plain: &[u8]) -> Result<Sealed, CodecError>;

    /// Gives back what was sealed for this place, also under keys and in forms of before. What was sealed for another place should not open.
    ///
    /// # Errors
    /// [`CodecError`]: the key is not there, or the bytes were changed, or they belong to another place.
    fn open(&self, place: &Place<'_>, sealed: &Sealed) -> Result<Vec<u8>, CodecError>;

    /// What identifies these bytes without telling what they are, the same in every process: a keyed hash such as HMAC. It stands beside steps whose inputs
    /// must be the same in a replay, and beside lines that a run emits, in the place of a bare hash, of which a guessable text is found by trying.
    fn digest(&self, bytes: &[u8]) -> [u8; 32];

    /// What [`digest`](Self::digest) gave under keys of before, as long as runs go on that have it on record.
    fn old_digests(&self, bytes: &[u8]) -> Vec<[u8; 32]> {
        let _ = bytes;
        Vec::new()
    }

    /// A hash without a key, for the [`digest`](Self::digest) of a codec whose payloads are no secret.
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

/// The bytes of a payload as a codec gives them, and the name of the key that opens them.
#[derive(Clone, PartialEq, Eq)]
pub struct Sealed {
    key_id: String,
    bytes: Vec<u8>,
}

impl Sealed {
    /// Bytes that are opened by the key of this name: 1 to 64 of `A-Z`, `a-z`, `0-9`, `_`, `.` and `-`. It is stored beside them, and shown.
    pub fn new(key_id: impl Into<String>, bytes: Vec<u8>) -> Self {
        Self { key_id: key_id.into(), bytes }
    }

    /// The name of the key.
    #[must_use]
    pub fn key_id(&self) -> &str {
        &self.key_id
    }

    /// The bytes.
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

/// What a payload is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PayloadKind {
    /// The arguments of a run.
    Input,
    /// What a run gave.
    Output,
    /// What a step gave; what a workflow was given by `now`, `uuid` or `random`.
    Step,
    /// What a workflow publishes.
    Published,
    /// A signal that was sent.
    Signal,
    /// What a run or a step failed with.
    Error,
    /// A line that a run emits.
    Emitted,
    /// What a body says of its progress.
    Progress,
    /// The call that takes a step of a saga back.
    Undo,
    /// A line that a body logs.
    Log,
    /// What an operator configures of a job. It belongs to no run.
    Config,
}

impl PayloadKind {
    /// The word for it in what is authenticated: never changed.
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
            Self::Undo => "undo",
            Self::Log => "log",
            Self::Config => "config",
        }
    }
}

/// What a payload belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place<'a> {
    run_id: Uuid,
    kind: PayloadKind,
    key: &'a str,
}

impl<'a> Place<'a> {
    /// The place of a payload of this run; `key` tells it from others of its kind.
    #[must_use]
    pub const fn new(run_id: Uuid, kind: PayloadKind, key: &'a str) -> Self {
        Self { run_id, kind, key }
    }

    /// The place of what a step gave.
    #[must_use]
    pub fn of_step(run_id: Uuid, key: &'a str) -> Self {
        let name = key.rsplit_once('/').map_or(key, |(_, name)| name);
        let kind = if name.starts_with(PUBLISHED) { PayloadKind::Published } else { PayloadKind::Step };
        Self { run_id, kind, key }
    }

    /// The run; the nil id for what belongs to none.
    #[must_use]
    pub const fn run_id(&self) -> Uuid {
        self.run_id
    }

    /// What it is.
    #[must_use]
    pub const fn kind(&self) -> PayloadKind {
        self.kind
    }

    /// The key of the step; of a signal its name and its idempotency key, with `/` between; of a line of output the step and the number, with `#` between;
    /// of a configuration the job and the version, with `/` between; empty for the run itself.
    #[must_use]
    pub const fn key(&self) -> &'a str {
        self.key
    }

    /// The place as bytes, different for every other one: the data that an authenticated cipher binds its text to.
    #[must_use]
    pub fn associated_data(&self) -> Vec<u8> {
        // No word has a blank, and an id has always 16 bytes.
        let mut bytes = format!("runledger 1 {} ", self.kind.word()).into_bytes();
        bytes.extend_from_slice(self.run_id.as_bytes());
        bytes.extend_from_slice(self.key.as_bytes());
        bytes
    }
}

/// What begins the key of a step that publishes: no name of a step has a colon.
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
            (PayloadKind::Undo, _) => write!(f, "the call that undoes step `{key}`"),
            (PayloadKind::Config, _) => {
                write!(f, "the configuration of job `{}`", key.split('/').next().unwrap_or(key))
            }
        }
    }
}

/// Why a codec cannot seal or open a payload.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CodecError {
    /// The codec has no key of this name.
    #[error("it is sealed under key `{key_id}`, which this program does not have; add it as an old key")]
    NoKey {
        /// The name of the key.
        key_id: String,
    },
    /// The key is there, and does not open it.
    #[error(
        "it does not open under key `{key_id}`: it was changed, it belongs to another run or step, or another key has this name"
    )]
    Mismatch {
        /// The name of the key.
        key_id: String,
    },
    /// Something else.
    #[error(transparent)]
    Other(Box<dyn std::error::Error + Send + Sync>),
}

impl CodecError {
    /// The codec has no key for these bytes.
    #[must_use]
    pub fn no_key(sealed: &Sealed) -> Self {
        Self::NoKey { key_id: sealed.key_id.clone() }
    }

    /// The key does not open these bytes.
    #[must_use]
    pub fn mismatch(sealed: &Sealed) -> Self {
        Self::Mismatch { key_id: sealed.key_id.clone() }
    }

    /// Any other reason, in words or as an error. It is logged and stored: no payload and no key belongs into it.
    pub fn other(reason: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Other(reason.into())
    }
}
