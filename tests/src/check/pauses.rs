//! A paused run does nothing until it is resumed.

use uuid::Uuid;

use super::{Event, Excuses, Facts, Violations, What};

/// A time in which a run was known to be paused.
#[derive(Clone, Copy, Debug)]
pub struct Pause {
    /// The run.
    pub run_id: Uuid,
    /// When a client knew that the run was paused, in microseconds since 1970.
    pub from_us: i64,
    /// Just before a client asked to resume the run.
    pub until_us: i64,
}

impl Pause {
    fn covers(&self, run_id: Uuid, at_us: i64) -> bool {
        self.run_id == run_id && self.from_us < at_us && at_us < self.until_us
    }
}

/// Finds starts of bodies, claims and other writes of paused runs. A process with an excuse may not
/// know that it has lost the run.
#[must_use]
pub fn broken(pauses: &[Pause], events: &[Event], facts: &Facts, excuses: &Excuses) -> Violations {
    let paused = |run_id, at_us| pauses.iter().any(|pause| pause.covers(run_id, at_us));
    let began = events
        .iter()
        .filter(|event| event.what == What::Start && paused(event.run_id, event.at_us))
        .filter(|event| !excuses.cover(event.pid, event.at_us, event.at_us))
        .map(|event| format!("body `{}` of run {} began while that was paused", event.key, event.run_id));
    let claimed = facts
        .claims
        .iter()
        .filter(|claim| paused(claim.run_id, claim.at_us))
        .map(|claim| format!("run {} was claimed while it was paused", claim.run_id));
    let written =
        facts.steps.iter().chain(&facts.ends).filter(|written| paused(written.run_id, written.at_us)).map(
            |written| {
                format!("`{}` of run {} was written while that was paused", written.key, written.run_id)
            },
        );
    began.chain(claimed).chain(written).collect()
}

#[cfg(test)]
mod tests {
    use super::super::facts::{Claim, Written};
    use super::*;

    #[test]
    fn run_activity_during_pause_is_violation_unless_excused() {
        let [run_id, token] = [(); 2].map(|()| Uuid::now_v7());
        let pauses = [Pause { run_id, from_us: 10, until_us: 20 }];
        let began = |pid, at_us| Event { what: What::Start, run_id, key: String::new(), token, pid, at_us };
        let n_wrong = |events: &[Event], facts: &Facts| {
            broken(&pauses, events, facts, &Excuses::during(7, 0, 100)).len()
        };
        assert_eq!(n_wrong(&[began(1, 9), began(1, 21)], &Facts::default()), 0);
        assert_eq!(n_wrong(&[began(1, 15)], &Facts::default()), 1);
        assert_eq!(n_wrong(&[began(7, 15)], &Facts::default()), 0, "its process did not know");
        let claim = |at_us| Facts::of_claims(vec![Claim { run_id, token, worker_id: 1, claims: 1, at_us }]);
        assert_eq!((n_wrong(&[], &claim(15)), n_wrong(&[], &claim(21))), (1, 0));
        let written = |at_us| Facts { steps: vec![Written::step(run_id, "a", at_us)], ..Facts::default() };
        assert_eq!((n_wrong(&[], &written(15)), n_wrong(&[], &written(21))), (1, 0));
    }
}
