//! I11: only a failure consumes an attempt; a crash does not.

use std::collections::HashMap;

use uuid::Uuid;

use super::{Facts, Violations};

/// Finds runs whose attempt number is not the number of their failures, plus one for the attempt
/// that ended them.
#[must_use]
pub fn miscounted(facts: &Facts) -> Violations {
    let mut n_failed: HashMap<Uuid, usize> = HashMap::new();
    for run_id in &facts.failed {
        *n_failed.entry(*run_id).or_default() += 1;
    }
    facts
        .ends
        .iter()
        .filter(|end| end.state != "cancelled")
        .filter_map(|end| {
            let failed = n_failed.get(&end.run_id).copied().unwrap_or_default();
            let expected = i32::try_from(failed).unwrap_or(i32::MAX).saturating_add(1);
            (end.attempt != expected).then(|| {
                format!("run {} ended in attempt {} after {failed} failed ones", end.run_id, end.attempt)
            })
        })
        .collect()
}
