//! How large payloads may be.

use super::codec::PayloadKind;
use crate::model::json::MAX_BYTES;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// How large payloads may be, in bytes of JSON text before they are sealed. Give them to [`Db::with_limits`](crate::Db::with_limits).
///
/// A payload that is larger is refused, or fails the step or the run that it is the output of, with an error that names it, its size and its limit. What
/// is stored is read again by every replay, and sent to the server and from it whole: keep what is larger in a table or an object store, and its key here.
///
/// ```
/// # use runledger::Limits;
/// let limits = Limits::DEFAULT.input(4 << 20).emitted(4 << 10);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    input: usize,
    output: usize,
    step: usize,
    signal: usize,
    published: usize,
    emitted: usize,
    progress: usize,
    config: usize,
    error: usize,
}

/// Writes the setters: none sets more than the encoder gives.
macro_rules! limits {
    ($($(#[doc = $doc:literal])+ $name:ident = $default:expr;)*) => {
        impl Limits {
            /// The limits where nobody says others.
            pub const DEFAULT: Self = Self { $($name: $default),* };

            $(
                $(#[doc = $doc])+
                #[must_use]
                pub const fn $name(self, bytes: usize) -> Self {
                    Self { $name: if bytes > MAX_BYTES { MAX_BYTES } else { bytes }, ..self }
                }
            )*
        }
    };
}

limits! {
    /// Inputs of runs, children and continuations, and the calls that take steps of a saga back: 1 MiB by default, 16 MiB at most.
    input = MIB;
    /// Outputs of runs: 1 MiB by default, 16 MiB at most.
    output = MIB;
    /// Outputs of steps: 1 MiB by default, 16 MiB at most.
    step = MIB;
    /// Payloads of signals: 256 KiB by default, 16 MiB at most.
    signal = 256 * KIB;
    /// Values that a workflow publishes: 256 KiB by default, 16 MiB at most.
    published = 256 * KIB;
    /// Lines that a run emits, each: 64 KiB by default, 16 MiB at most. All lines of a run have 16 MiB together, as they are stored.
    emitted = 64 * KIB;
    /// What bodies say of their progress: 64 KiB by default, 16 MiB at most.
    progress = 64 * KIB;
    /// Configurations of jobs: 256 KiB by default, 16 MiB at most. Every worker keeps all of them in memory.
    config = 256 * KIB;
    /// Messages of failures and of their causes, each: 8 KiB by default, 16 MiB at most. A longer one is cut, and says by how much: a failure is never
    /// refused.
    error = 8 * KIB;
}

impl Limits {
    pub(super) fn of(&self, kind: PayloadKind) -> usize {
        match kind {
            PayloadKind::Input | PayloadKind::Undo => self.input,
            PayloadKind::Output => self.output,
            PayloadKind::Step => self.step,
            PayloadKind::Signal => self.signal,
            PayloadKind::Published => self.published,
            PayloadKind::Emitted => self.emitted,
            PayloadKind::Progress => self.progress,
            PayloadKind::Config => self.config,
            PayloadKind::Error => self.error,
            // Cut where it is said.
            PayloadKind::Log => MAX_BYTES,
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self::DEFAULT
    }
}
