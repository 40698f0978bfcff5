//! Sagas: when a run fails or is cancelled, each recorded step is compensated once, the last one
//! first.

use std::collections::HashMap;

use uuid::Uuid;

use super::facts::Written;
use super::{Event, Facts, Violations, What};

/// Finds steps without compensation in failed and cancelled runs, and steps compensated before
/// later ones, both in the records and in what the bodies did.
///
/// Only for runs that no operator allowed to end with a step uncompensated.
#[must_use]
pub fn disordered(events: &[Event], facts: &Facts) -> Violations {
    let ends: HashMap<Uuid, &str> = facts.ends.iter().map(|end| (end.run_id, end.state.as_str())).collect();
    let recorded: HashMap<(Uuid, &str), &Written> =
        facts.steps.iter().map(|step| ((step.run_id, step.key.as_str()), step)).collect();
    let mut bodies: HashMap<(Uuid, &str, What), i64> = HashMap::new();
    for event in events {
        let first = bodies.entry((event.run_id, event.key.as_str(), event.what)).or_insert(event.at_us);
        *first = event.at_us.min(*first);
    }
    let mut compensable: HashMap<Uuid, Vec<&Written>> = HashMap::new();
    for step in facts.steps.iter().filter(|step| step.is_undoable) {
        compensable.entry(step.run_id).or_default().push(step);
    }
    let mut violations = Violations::new();
    for (run_id, mut steps) in compensable {
        steps.sort_by_key(|step| step.at_us);
        let undone = |step: &Written| format!("compensate[{}]", step.key);
        let has_failed = matches!(ends.get(&run_id), Some(&("failed" | "cancelled")));
        let left = steps.iter().filter(|step| !recorded.contains_key(&(run_id, undone(step).as_str())));
        violations.extend(left.filter(|_| has_failed).map(|step| {
            format!("run {run_id} has ended, and what its step `{}` did is not taken back", step.key)
        }));
        for (earlier, later) in
            steps.iter().zip(steps.iter().skip(1)).map(|(one, next)| (undone(one), undone(next)))
        {
            let at = |key: &str| recorded.get(&(run_id, key)).map(|step| step.at_us);
            let body = |key, what| bodies.get(&(run_id, key, what));
            let in_records = at(&earlier).is_some_and(|first| at(&later).is_none_or(|then| first < then));
            let in_bodies = body(earlier.as_str(), What::Start)
                .is_some_and(|began| body(later.as_str(), What::End).is_none_or(|ended| began < ended));
            if in_records || in_bodies {
                violations.push(format!("run {run_id} was at `{earlier}` before `{later}` was done"));
            }
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks a run with two compensable steps, its end, and these compensations, each recorded at
    /// its time.
    fn n_wrong(state: &str, compensations: &[(&str, i64)]) -> usize {
        let run_id = Uuid::now_v7();
        let step = |key, at_us| Written { is_undoable: true, ..Written::step(run_id, key, at_us) };
        let mut steps = vec![step("first", 1), step("second", 2)];
        steps.extend(compensations.iter().map(|(key, at_us)| Written::step(run_id, key, *at_us)));
        let ends = vec![Written::end(run_id, state, "null", 9)];
        disordered(&[], &Facts { steps, ends, ..Facts::default() }).len()
    }

    #[test]
    fn missing_or_misordered_compensation_is_violation() {
        assert_eq!(n_wrong("failed", &[("compensate[second]", 5), ("compensate[first]", 6)]), 0);
        assert_eq!(n_wrong("completed", &[]), 0);
        assert_eq!(
            n_wrong("completed", &[("compensate[second]", 5), ("compensate[first]", 6)]),
            0,
            "by the code"
        );
        assert_eq!(
            n_wrong("failed", &[("compensate[first]", 5), ("compensate[second]", 6)]),
            1,
            "the wrong order"
        );
        assert_eq!(n_wrong("cancelled", &[("compensate[second]", 5)]), 1, "one is left");
        assert_eq!(n_wrong("failed", &[]), 2);
    }

    #[test]
    fn compensation_starting_before_later_steps_compensation_ends_is_violation() {
        let run_id = Uuid::now_v7();
        let step = |key, at_us| Written { is_undoable: true, ..Written::step(run_id, key, at_us) };
        let undo = |key, at_us| Written::step(run_id, key, at_us);
        let steps = vec![
            step("first", 1),
            step("second", 2),
            undo("compensate[second]", 7),
            undo("compensate[first]", 8),
        ];
        let facts = Facts { steps, ..Facts::default() };
        let event = |what, key: &str, at_us| Event {
            what,
            run_id,
            key: key.to_owned(),
            token: run_id,
            pid: 1,
            at_us,
        };
        let began = |at_us| {
            [event(What::End, "compensate[second]", 5), event(What::Start, "compensate[first]", at_us)]
        };
        assert_eq!(disordered(&began(6), &facts).len(), 0);
        assert_eq!(disordered(&began(4), &facts).len(), 1);
    }
}
