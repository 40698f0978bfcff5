//! Size limits of payloads.

use super::codec::PayloadKind;
use crate::model::json::MAX_BYTES;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// Size limits of payloads, in bytes of JSON text before encryption.
/// [`Db::with_limits`](crate::Db::with_limits) sets them.
///
/// A larger payload is refused, or fails the step or run that returned it. The error names the
/// payload, its size and its limit. Every replay reads stored payloads again, and transfers them
/// whole. Store larger values in a table or an object store, and pass their keys.
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

/// Generates the setters. No setter exceeds the limit of the encoder.
macro_rules! limits {
    ($($(#[doc = $doc:literal])+ $name:ident = $default:expr;)*) => {
        impl Limits {
            /// The default limits.
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
    /// Inputs of runs and children, inputs for continue-as-new, and compensating calls: 1 MiB by
    /// default, 16 MiB at most.
    input = MIB;
    /// Outputs of runs: 1 MiB by default, 16 MiB at most.
    output = MIB;
    /// Outputs of steps: 1 MiB by default, 16 MiB at most.
    step = MIB;
    /// Payloads of signals: 256 KiB by default, 16 MiB at most.
    signal = 256 * KIB;
    /// Values that a workflow publishes: 256 KiB by default, 16 MiB at most.
    published = 256 * KIB;
    /// Each line that a run emits: 64 KiB by default, 16 MiB at most. All stored lines of a run
    /// together have at most 16 MiB.
    emitted = 64 * KIB;
    /// Progress that bodies report: 64 KiB by default, 16 MiB at most.
    progress = 64 * KIB;
    /// Configurations of jobs: 256 KiB by default, 16 MiB at most. Every worker keeps all
    /// configurations in memory.
    config = 256 * KIB;
    /// Each message of a failure or of a cause: 8 KiB by default, 16 MiB at most. A longer message
    /// is cut, and says by how many bytes. A failure is never refused.
    error = 8 * KIB;
}

impl Limits {
    pub(super) fn of(&self, kind: PayloadKind) -> usize {
        match kind {
            PayloadKind::Input | PayloadKind::Compensation => self.input,
            PayloadKind::Output => self.output,
            PayloadKind::Step => self.step,
            PayloadKind::Signal => self.signal,
            PayloadKind::Published => self.published,
            PayloadKind::Emitted => self.emitted,
            PayloadKind::Progress => self.progress,
            PayloadKind::Config => self.config,
            PayloadKind::Error => self.error,
            // Lines are cut when they are logged.
            PayloadKind::Log => MAX_BYTES,
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self::DEFAULT
    }
}
