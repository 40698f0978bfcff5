//! Limits the size of a run's history. Each attempt reads all of it in one statement, and
//! PostgreSQL cannot build a text above 1 GB.

use std::collections::HashMap;

use crate::model::payload::PayloadError;
use crate::model::replay::divergence::Divergence;

/// The size in bytes above which a run starts no further step.
pub const MAX_HISTORY: usize = 128 << 20;

/// The maximum size in bytes, including the outputs of steps that were already running when the run
/// reached [`MAX_HISTORY`].
const MAX_WITH_UNDER_WAY: usize = 2 * MAX_HISTORY;

/// A record of at most this size is never refused, so [`PayloadError::HistoryFull`] itself can be
/// recorded.
const SMALL: usize = 4096;

/// The bytes of a record's other columns in the text that a claim reads.
const OVERHEAD: usize = 96;

/// The size of a record whose result and compensation have `content` bytes.
#[must_use]
pub fn record_size(key: &str, content: usize) -> usize {
    OVERHEAD + key.len() + content
}

/// The size of the recorded steps of one run.
#[derive(Debug, Default)]
pub struct HistorySize {
    bytes: usize,
    /// The bytes of steps that are being recorded, by ordinal. Recording a step may need several
    /// tries.
    under_way: HashMap<u64, usize>,
}

impl HistorySize {
    /// The size of a run with this many recorded bytes.
    #[must_use]
    pub fn of(bytes: usize) -> Self {
        Self { bytes, ..Self::default() }
    }

    /// Whether the run may start another step.
    ///
    /// # Errors
    /// [`Divergence::LargeHistory`] if it may not.
    pub fn check(&self) -> Result<(), Divergence> {
        if self.bytes > MAX_HISTORY { Err(Divergence::LargeHistory { size: self.bytes }) } else { Ok(()) }
    }

    /// Adds a step that is about to be recorded.
    ///
    /// # Errors
    /// [`PayloadError::HistoryFull`] if the step does not fit. A compensation always fits: a run
    /// that is too large must still be compensated.
    pub fn add(&mut self, ordinal: u64, key: &str, bytes: usize) -> Result<(), PayloadError> {
        let bytes = record_size(key, bytes);
        let others = self.bytes - self.under_way.remove(&ordinal).unwrap_or(0);
        self.bytes = others;
        let may_be_refused = bytes > SMALL && !key.starts_with("compensate[");
        if may_be_refused && others + bytes > MAX_WITH_UNDER_WAY {
            return Err(PayloadError::HistoryFull { size: others, added: bytes, limit: MAX_WITH_UNDER_WAY });
        }
        self.bytes += bytes;
        self.under_way.insert(ordinal, bytes);
        Ok(())
    }

    /// Adds a record that is tried only once.
    pub fn grow(&mut self, key: &str, bytes: usize) {
        self.bytes += record_size(key, bytes);
    }

    /// Marks a step as recorded.
    pub fn keep(&mut self, ordinal: u64) {
        self.under_way.remove(&ordinal);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_begins_no_step_above_its_limit() {
        assert_eq!(HistorySize::of(MAX_HISTORY).check(), Ok(()));
        let size = MAX_HISTORY + 1;
        assert_eq!(HistorySize::of(size).check(), Err(Divergence::LargeHistory { size }));
    }

    #[test]
    fn retried_record_counts_once() {
        let mut size = HistorySize::default();
        for _ in 0..3 {
            size.add(7, "", MAX_HISTORY - OVERHEAD).unwrap();
        }
        assert_eq!(size.check(), Ok(()));
        size.keep(7);
        size.add(7, "", 1).unwrap();
        assert_eq!(size.check(), Err(Divergence::LargeHistory { size: MAX_HISTORY + OVERHEAD + 1 }));
    }

    #[test]
    fn running_steps_fill_history_up_to_twice_its_limit() {
        let mut size = HistorySize::of(MAX_HISTORY);
        size.add(0, "", MAX_HISTORY - OVERHEAD).unwrap();
        let error = size.add(1, "", SMALL).unwrap_err();
        assert!(
            matches!(error, PayloadError::HistoryFull { added, .. } if added == OVERHEAD + SMALL),
            "{error}"
        );
        size.add(0, "", MAX_HISTORY - 2 * OVERHEAD - SMALL).unwrap();
        size.add(1, "", SMALL).unwrap();
    }

    #[test]
    fn full_history_accepts_small_records_and_compensations() {
        let mut size = HistorySize::of(MAX_WITH_UNDER_WAY);
        size.add(0, "sleep", 20).unwrap();
        size.add(1, "compensate[charge]", MAX_HISTORY).unwrap();
    }
}
