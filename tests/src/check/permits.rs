//! Behaviour 36: the number of claimed runs that need a resource never exceeds its permits.

use uuid::Uuid;

use super::{Facts, Violations};

/// A claimed run that needs a permit.
#[derive(Clone, Debug)]
pub struct Permitted {
    /// The resource.
    pub resource: String,
    /// The run.
    pub run_id: Uuid,
    /// When its lease was inserted. A counter and not a time: a claim that takes a permit has seen
    /// that the lease before it is gone.
    pub began: i64,
    /// When its lease was deleted, if it was.
    pub ended: Option<i64>,
}

/// Finds runs that were claimed while another run had the permit. Each resource has one permit.
#[must_use]
pub fn exceeded(facts: &Facts) -> Violations {
    let mut found = Vec::new();
    for (at, later) in facts.permitted.iter().enumerate() {
        let earlier = facts.permitted[..at].iter().filter(|it| it.resource == later.resource);
        let beside: Vec<Uuid> = earlier
            .filter(|it| it.ended.is_none_or(|ended| ended > later.began))
            .map(|it| it.run_id)
            .collect();
        if !beside.is_empty() {
            found.push(format!(
                "run {} was claimed with a permit of `{}`, which {beside:?} had",
                later.run_id, later.resource
            ));
        }
    }
    found
}

#[test]
fn permit_claimed_by_two_runs_is_violation() {
    let held = |resource: &str, began, ended| Permitted {
        resource: resource.to_owned(),
        run_id: Uuid::now_v7(),
        began,
        ended,
    };
    let n_wrong = |permitted| exceeded(&Facts { permitted, ..Facts::default() }).len();
    assert_eq!(n_wrong(vec![held("a", 1, Some(2)), held("a", 3, None), held("b", 4, None)]), 0);
    assert_eq!(n_wrong(vec![held("a", 1, Some(4)), held("a", 3, None)]), 1);
    assert_eq!(n_wrong(vec![held("a", 1, None), held("a", 3, Some(5)), held("a", 6, None)]), 2);
}
