//! I9: when a run is cancelled or fails, its descendants are cancelled too.

use std::collections::HashMap;
use std::time::Duration;

use uuid::Uuid;

use super::facts::Written;
use super::{Facts, Violations};

/// Finds children that reached their own end more than `bound` after their parent was cancelled or
/// failed.
#[must_use]
pub fn outlived(facts: &Facts, bound: Duration) -> Violations {
    let bound = i64::try_from(bound.as_micros()).unwrap_or(i64::MAX);
    let ends: HashMap<Uuid, &Written> = facts.ends.iter().map(|end| (end.run_id, end)).collect();
    let went_on = |(child, parent): (&Uuid, &Uuid)| {
        let (child, parent) = (ends.get(child)?, ends.get(parent)?);
        let late = parent.state != "completed"
            && child.state != "cancelled"
            && child.at_us > parent.at_us.saturating_add(bound);
        late.then(|| {
            format!(
                "run {} {} {} s after its parent {} {}",
                child.run_id,
                child.state,
                (child.at_us - parent.at_us) / 1_000_000,
                parent.run_id,
                parent.state
            )
        })
    };
    facts.parents.iter().filter_map(went_on).collect()
}

#[test]
fn child_completing_long_after_parent_cancelled_or_failed_is_violation() {
    let [child, parent] = [(); 2].map(|()| Uuid::now_v7());
    let n_wrong = |parents_end: &str, childs_end: &str, at_s: i64| {
        let ends = vec![
            Written::end(parent, parents_end, "null", 0),
            Written::end(child, childs_end, "null", at_s * 1_000_000),
        ];
        let parents = HashMap::from([(child, parent)]);
        outlived(&Facts { ends, parents, ..Facts::default() }, Duration::from_secs(10)).len()
    };
    assert_eq!(n_wrong("cancelled", "completed", 40), 1);
    assert_eq!(n_wrong("failed", "completed", 40), 1);
    assert_eq!(n_wrong("cancelled", "cancelled", 40), 0);
    assert_eq!(n_wrong("cancelled", "completed", 5), 0, "it was about to end");
    assert_eq!(n_wrong("completed", "completed", 40), 0);
}
