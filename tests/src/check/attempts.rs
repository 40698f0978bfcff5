//! I11: only a failure consumes an attempt; a crash does not.

use super::{Facts, Violations};

/// Runs whose attempt number is not that of their failures, plus the attempt that ended them.
#[must_use]
pub fn miscounted(facts: &Facts) -> Violations {
    facts
        .ends
        .iter()
        .filter(|end| end.state != "cancelled")
        .filter_map(|end| {
            let failed = facts.failed.iter().filter(|run_id| **run_id == end.run_id).count();
            let expected = i32::try_from(failed).unwrap_or(i32::MAX).saturating_add(1);
            (end.attempt != expected).then(|| {
                format!("run {} ended in attempt {} after {failed} failed ones", end.run_id, end.attempt)
            })
        })
        .collect()
}
