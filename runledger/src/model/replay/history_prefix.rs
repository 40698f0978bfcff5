//! The steps that a fork or a revived run keeps.
//!
//! A replay over the kept rows accepts what the original code did until then. The order of
//! deliveries is computed again for the kept rows: a removed row may have stored the part that
//! other rows need.

use std::collections::{HashMap, HashSet};

use uuid::Uuid;

use crate::model::json;
use crate::model::replay::Recorded;
use crate::model::replay::deliveries::{order_of, stored_from};
use crate::model::replay::scope::{Scope, is_beside, is_from};
use crate::model::run::request::{child_run_id, key_in_slice};

/// The steps whose results are available at once. A user's step with one of these names is treated
/// the same.
const AT_ONCE: [&str; 3] = ["now", "uuid", "random"];

/// The steps that a fork from the step `key` keeps: earlier steps, and steps of other branches that
/// did not need its result. `None` if the step is not recorded. Compensations by the
/// engine are excluded, because the code did not claim them.
///
/// Any branch may have seen a value that was available at once, and the record does not show which
/// branches did. If the fork would compute such a value again, and other branches made claims at
/// the same time, it drops all steps that were claimed after the previous delivery.
#[must_use]
pub fn before(rows: Vec<Recorded>, key: &str) -> Option<Vec<Recorded>> {
    let (place, seen_len) = rows.iter().find(|row| row.key == key).map(|row| (row.ordinal, row.seen_len))?;
    // A signal is recorded when the code receives it, as one of the deliveries in its row. The
    // other deliveries came before it.
    let last = (seen_len as usize).checked_sub(1).and_then(|last| order_of(&rows).get(last).copied());
    if last.is_some_and(|last| last.ordinal == place) {
        return Some(keep(rows, |row| row.seen_len < seen_len && !row.is_compensated_by_engine()));
    }
    let beside = || rows.iter().filter(|row| row.seen_len == seen_len);
    let rests_on_a_value = beside().any(|row| is_from(row.ordinal, place) && is_given_at_once(row))
        && beside().any(|row| !is_beside(row.ordinal, place));
    // A kept step has all its earlier deliveries among the kept steps: each was claimed before,
    // after fewer deliveries.
    let is_kept = |row: &Recorded| {
        let is_before = row.seen_len < seen_len
            || (row.seen_len == seen_len && !is_from(row.ordinal, place) && !rests_on_a_value);
        is_before && !row.is_compensated_by_engine()
    };
    Some(keep(rows, is_kept))
}

/// Whether the code had the result at once, without a delivery.
fn is_given_at_once(row: &Recorded) -> bool {
    let name = row.key.rsplit_once('/').map_or(row.key.as_str(), |(_, name)| name);
    let name = name.split_once('#').map_or(name, |(name, _)| name);
    let patch = name.strip_prefix("patched[").and_then(|patch| patch.strip_suffix(']'));
    AT_ONCE.contains(&name) || patch.is_some_and(|patch| Scope::of_patch(patch).base == row.ordinal)
}

/// The first kept step that is compensated: either later in the original run, or soon, if that run
/// is compensating its steps.
#[must_use]
pub fn taken_back<'k>(
    rows: &[Recorded],
    kept: &'k [Recorded],
    is_being_compensated: bool,
) -> Option<&'k str> {
    let keys = |rows: &[Recorded]| -> HashSet<String> { rows.iter().map(|row| row.key.clone()).collect() };
    let (all, kept_keys) = (keys(rows), keys(kept));
    let does_not_stand = |row: &&Recorded| {
        let compensation = format!("compensate[{}]", row.key);
        !kept_keys.contains(&compensation)
            && (all.contains(&compensation) || (is_being_compensated && row.compensation.is_some()))
    };
    kept.iter().find(does_not_stand).map(|row| row.key.as_str())
}

/// Removes the failures that ended the run, which no later step observed. The code claims these
/// steps again, and executes them again.
#[must_use]
pub fn without_last_failures(rows: Vec<Recorded>) -> Vec<Recorded> {
    let observed: HashSet<u64> = order_of(&rows).into_iter().map(|delivery| delivery.ordinal).collect();
    keep(rows, |row| row.result.is_ok() || observed.contains(&row.ordinal))
}

fn keep(mut rows: Vec<Recorded>, is_kept: impl Fn(&Recorded) -> bool) -> Vec<Recorded> {
    let order = order_of(&rows);
    rows.retain(is_kept);
    rows.sort_unstable_by_key(|row| (row.seen_len, row.ordinal));
    let mut stored = 0;
    for row in &mut rows {
        let seen = order.get(stored..row.seen_len as usize).unwrap_or_default();
        row.seen = stored_from(stored, seen);
        stored += seen.len();
    }
    rows
}

/// The run that a step may have started: its output is a run id.
#[must_use]
pub fn started(row: &Recorded) -> Option<Uuid> {
    let text = row.result.as_ref().ok()?;
    text.strip_prefix('"')?.strip_suffix('"')?.parse().ok()
}

/// A run that a step started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Child {
    /// The id of the child.
    pub run_id: Uuid,
    /// The run that the step belonged to when it started the child. For a copied step, this is the
    /// original run.
    pub parent_id: Uuid,
    /// The present slice of that run. The child was started in this slice or in an earlier one.
    pub slice: u32,
}

/// The kept steps that start and await children.
#[derive(Debug)]
pub struct Children<'r> {
    rows: &'r [Recorded],
    starts: HashMap<Uuid, Vec<usize>>,
    awaited: HashSet<i64>,
}

impl<'r> Children<'r> {
    /// Finds the starts and awaits in `rows`.
    #[must_use]
    pub fn among(rows: &'r [Recorded]) -> Self {
        let mut starts: HashMap<Uuid, Vec<usize>> = HashMap::new();
        for (place, row) in rows.iter().enumerate() {
            if let Some(run_id) = started(row) {
                starts.entry(run_id).or_default().push(place);
            }
        }
        let awaited = rows.iter().filter(|row| row.key.contains(".result")).map(|row| row.fingerprint);
        Self { rows, starts, awaited: awaited.collect() }
    }

    /// The step that started a child whose outcome no kept step knows. Only such a child can be
    /// replaced by another run.
    #[must_use]
    pub fn start_of(&self, child: Child) -> Option<usize> {
        if self.awaited.contains(&json::fingerprint(&child.run_id.to_string())) {
            return None;
        }
        let mut places = self.starts.get(&child.run_id)?.iter().copied();
        places.find(|place| is_start_of(&self.rows[*place], child))
    }
}

/// Whether the child's id derives from this step, in any slice. A run that copied the step does not
/// know the slice.
fn is_start_of(row: &Recorded, child: Child) -> bool {
    let in_slice = |slice| child_run_id(child.parent_id, &key_in_slice(slice, &row.key)) == child.run_id;
    (0..=child.slice).rev().any(in_slice)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;
    use crate::model::replay::Replay;
    use crate::model::run::failure::{Failure, FailureKind};

    fn row(key: &str, ordinal: u64, seen_len: u32, seen: Option<&[u64]>) -> Recorded {
        let result = Ok("null".to_owned());
        let seen = seen.map(<[u64]>::to_vec);
        Recorded { key: key.into(), ordinal, fingerprint: 7, result, seen_len, seen, compensation: None }
    }

    fn failed(row: Recorded) -> Recorded {
        Recorded { result: Err(Failure::new(FailureKind::Error, "no")), ..row }
    }

    fn keys(rows: &[Recorded]) -> Vec<&str> {
        rows.iter().map(|row| row.key.as_str()).collect()
    }

    #[test]
    fn fork_keeps_steps_claimed_before_its_step() {
        let rows = vec![row("a", 0, 0, None), row("b", 1, 1, None), row("c", 2, 2, None)];
        assert_eq!(keys(&before(rows.clone(), "c").unwrap_or_default()), ["a", "b"]);
        assert_eq!(before(rows, "d"), None);
    }

    /// A step with a compensation, two further steps, and a compensation by the engine, which has
    /// no deliveries.
    fn compensated() -> Vec<Recorded> {
        let done = Recorded { compensation: Some("{}".to_owned()), ..row("a", 0, 0, None) };
        let compensation = row("compensate[a]", Scope::of_compensation("a").base, 0, None);
        vec![done, row("b", 1, 1, None), row("c", 2, 2, None), compensation]
    }

    #[test]
    fn fork_drops_engine_compensation_and_reports_its_step() {
        let kept = before(compensated(), "c").unwrap_or_default();
        assert_eq!(keys(&kept), ["a", "b"]);
        assert_eq!(taken_back(&compensated(), &kept, false), Some("a"));
        let kept = before(compensated(), "a").unwrap_or_default();
        assert_eq!((keys(&kept), taken_back(&compensated(), &kept, false)), (vec![], None));
    }

    #[test]
    fn step_compensated_by_code_is_reported_unless_compensation_is_kept() {
        let mut rows = compensated();
        rows[3].seen_len = 2;
        rows.push(row("d", 3, 3, None));
        let kept = before(rows.clone(), "b").unwrap_or_default();
        assert_eq!(taken_back(&rows, &kept, false), Some("a"));
        let kept = before(rows.clone(), "d").unwrap_or_default();
        assert_eq!(keys(&kept), ["a", "b", "c", "compensate[a]"]);
        assert_eq!(taken_back(&rows, &kept, false), None);
    }

    #[test]
    fn kept_step_about_to_be_compensated_is_reported() {
        let mut rows = compensated();
        rows.pop();
        let kept = before(rows.clone(), "c").unwrap_or_default();
        assert_eq!(taken_back(&rows, &kept, false), None);
        assert_eq!(taken_back(&rows, &kept, true), Some("a"));
    }

    #[test]
    fn fork_at_immediate_value_drops_steps_possibly_depending_on_it() {
        let mut replay = Replay::default();
        let branch = replay.branch(&Scope::root(), "left");
        let patch = Scope::of_patch("mail").base;
        let rows = vec![
            row("a", 0, 0, None),
            row("b", 1, 1, None),
            row("patched[mail]", patch, 1, None),
            row("mail", 2, 1, None),
            row("left/random", branch.base, 2, None),
            row("c", 3, 2, None),
            row("now", 4, 3, None),
            row("d", 5, 3, None),
        ];
        let kept = |key| {
            before(rows.clone(), key).unwrap_or_default().into_iter().map(|row| row.key).collect::<Vec<_>>()
        };
        assert_eq!(kept("patched[mail]"), ["a"]);
        assert_eq!(kept("mail"), ["a", "b", "patched[mail]"]);
        assert_eq!(kept("left/random"), ["a", "b", "mail", "patched[mail]"]);
        assert_eq!(kept("c"), ["a", "b", "mail", "patched[mail]", "left/random"]);
        assert_eq!(kept("d"), ["a", "b", "mail", "patched[mail]", "c", "left/random", "now"]);
        let alone = [row("a", 0, 0, None), row("b", 1, 1, None), row("now", 2, 1, None)];
        let kept = before(alone.to_vec(), "now").unwrap_or_default();
        assert_eq!(keys(&kept), ["a", "b"], "no other branch can have seen it");
        // A job may have such a name, with a key.
        let called_alike = [row("patched[mail]", 0, 0, None), row("now[mail]", 1, 0, None)];
        assert!(!called_alike.iter().any(is_given_at_once));
    }

    #[test]
    fn fork_at_signal_keeps_only_steps_claimed_before_receiving_it() {
        let mut replay = Replay::default();
        let branch = replay.branch(&Scope::root(), "left");
        // The wait was built first, and `a` and `b` were received before its signal.
        let rows = vec![
            row("a", 1, 0, None),
            row("b", 2, 1, Some(&[1, 2])),
            row("c", 3, 2, Some(&[2, 3])),
            row("signal[x]", 0, 3, Some(&[0, 4])),
            row("left/d", branch.base, 3, None),
            row("e", 4, 3, None),
        ];
        assert_eq!(keys(&before(rows.clone(), "signal[x]").unwrap_or_default()), ["a", "b", "c"]);
        assert_eq!(
            keys(&before(rows.clone(), "e").unwrap_or_default()),
            ["a", "b", "c", "signal[x]", "left/d"]
        );
        assert_eq!(keys(&before(rows, "b").unwrap_or_default()), ["a"]);
    }

    #[test]
    fn delivery_order_of_dropped_row_moves_to_kept_row() {
        // `b` came first. `c` and `d` were claimed after both. Only the row of `c`, which failed,
        // stores the order.
        let rows = vec![
            row("a", 0, 0, None),
            row("b", 1, 0, None),
            failed(row("c", 2, 2, Some(&[1, 2, 0, 2]))),
            row("d", 3, 2, None),
            row("e", 4, 3, Some(&[3, 4])),
        ];
        let kept = without_last_failures(rows);
        assert_eq!(keys(&kept), ["a", "b", "d", "e"]);
        assert_eq!(kept[2].seen.as_deref(), Some(&[1, 2, 0, 2][..]));
        assert_eq!(kept[3].seen.as_deref(), Some(&[3, 4][..]), "each result is written once");
    }

    #[test]
    fn failure_observed_by_later_step_is_kept() {
        let rows = vec![failed(row("a", 0, 0, None)), row("mend", 1, 1, None), failed(row("b", 2, 2, None))];
        assert_eq!(keys(&without_last_failures(rows)), ["a", "mend"]);
    }

    #[test]
    fn child_is_replaced_only_while_its_outcome_is_unknown() {
        let parent_id = Uuid::from_u128(7);
        let run_id = child_run_id(parent_id, "work");
        let child = Child { run_id, parent_id, slice: 0 };
        let mut rows = vec![row("work", 0, 0, None), row("work.result", 1, 1, None)];
        rows[0].result = Ok(format!("\"{run_id}\""));
        rows[1].fingerprint = json::fingerprint(&run_id.to_string());
        assert_eq!(Children::among(&rows).start_of(child), None);
        rows[1].fingerprint = 7;
        assert_eq!(Children::among(&rows).start_of(child), Some(0), "the end of another child is known");
        rows.pop();
        assert_eq!(Children::among(&rows).start_of(child), Some(0));
        assert_eq!(Children::among(&rows).start_of(Child { parent_id: run_id, ..child }), None);
    }

    #[test]
    fn child_is_found_from_its_starting_slice_onwards() {
        let parent_id = Uuid::from_u128(7);
        let run_id = child_run_id(parent_id, "2:work");
        let rows = [Recorded { result: Ok(format!("\"{run_id}\"")), ..row("work", 0, 0, None) }];
        let found = |slice| Children::among(&rows).start_of(Child { run_id, parent_id, slice });
        assert_eq!([1, 2, 3].map(found), [None, Some(0), Some(0)]);
    }

    /// One action of the code of a run.
    #[derive(Clone, Copy, Debug)]
    enum Move {
        /// Claims a step in this scope.
        Claim(usize),
        /// Requests a value that is available at once, in this scope.
        Ask(usize),
        /// Asks whether a change of the code applies.
        Patched,
        /// Waits for a signal, in this scope.
        Wait(usize),
        Deliver(u64),
    }

    /// The actions of a run and its records. `claimed_at` is the action that claimed each record.
    #[derive(Debug, Default)]
    struct Course {
        moves: Vec<Move>,
        rows: Vec<Recorded>,
        claimed_at: Vec<usize>,
    }

    impl Course {
        /// The action that delivered the result of this row. A fork from the row keeps only rows
        /// that were claimed earlier.
        fn delivered_at(&self, place: usize) -> usize {
            let ordinal = self.rows[place].ordinal;
            let is_it = |done: &Move| matches!(done, Move::Deliver(delivered) if *delivered == ordinal);
            self.moves.iter().position(is_it).unwrap_or(self.moves.len())
        }
    }

    /// The workflow itself and two branches.
    fn scopes(replay: &mut Replay) -> [Scope; 3] {
        let branches = ["left", "right"].map(|name| replay.branch(&Scope::root(), name));
        let [left, right] = branches;
        [Scope::root(), left, right]
    }

    /// Generates a run from `choices`: its claims and deliveries, its records, and the steps that
    /// failed.
    fn course(choices: &[(u8, bool, bool)]) -> Course {
        let (mut replay, mut course, mut pending, mut waits) =
            (Replay::default(), Course::default(), Vec::new(), HashMap::<u64, (String, usize)>::new());
        let scopes = scopes(&mut replay);
        for (choice, fails, is_acknowledged) in choices {
            let (what, which) = (choice % 8, usize::from(choice / 8));
            if what % 2 == 1 && !pending.is_empty() {
                let ordinal = pending.swap_remove(which % pending.len());
                replay.deliver(ordinal);
                course.moves.push(Move::Deliver(ordinal));
                // A signal is recorded when the code receives it.
                if let Some((key, claimed_at)) = waits.remove(&ordinal) {
                    let seen_len = replay.seen_len();
                    course.rows.push(row(&key, ordinal, seen_len, replay.seen(seen_len).as_deref()));
                    course.claimed_at.push(claimed_at);
                }
                continue;
            }
            let scope = which % scopes.len();
            let (claim, fingerprint) = match what {
                0 => (replay.claim_in(&scopes[scope], "random", None, 7).map(Some), 7),
                2 => (replay.patched("mail").map(|(_, claim)| claim), 0),
                4 => (replay.claim_in(&scopes[scope], "signal", None, 7).map(Some), 7),
                _ => (replay.claim_in(&scopes[scope], "step", None, 7).map(Some), 7),
            };
            let claimed_at = course.moves.len();
            course.moves.push(match what {
                0 => Move::Ask(scope),
                2 => Move::Patched,
                4 => Move::Wait(scope),
                _ => Move::Claim(scope),
            });
            let Ok(claim) = claim else { unreachable!("nothing is recorded") };
            // A change is decided once.
            let Some(claim) = claim else { continue };
            if what == 4 {
                pending.push(claim.ordinal);
                waits.insert(claim.ordinal, (claim.key.as_str().to_owned(), claimed_at));
                continue;
            }
            let is_awaited = !matches!(what, 0 | 2);
            let seen = replay.seen(claim.seen_len);
            let row = row(claim.key.as_str(), claim.ordinal, claim.seen_len, seen.as_deref());
            let row = Recorded { fingerprint, ..row };
            course.rows.push(if *fails && is_awaited { failed(row) } else { row });
            course.claimed_at.push(claimed_at);
            if is_awaited {
                pending.push(claim.ordinal);
            }
            if *is_acknowledged {
                replay.acknowledge(claim.seen_len);
            }
        }
        course
    }

    /// Replays the actions over some of the rows, until all rows are met.
    fn replays(moves: &[Move], kept: Vec<Recorded>) -> Result<(), TestCaseError> {
        let ordinals: HashSet<u64> = kept.iter().map(|row| row.ordinal).collect();
        let order_len = kept.iter().map(|row| row.seen_len).max().unwrap_or(0) as usize;
        let n_kept = kept.len();
        let (mut replay, mut n_met, mut n_delivered, mut pending) =
            (Replay::new(kept), 0, 0, Vec::<u64>::new());
        let scopes = scopes(&mut replay);
        for step in moves {
            if n_met == n_kept {
                break;
            }
            match step {
                Move::Claim(scope) => {
                    let claim = replay.claim_in(&scopes[*scope], "step", None, 7);
                    let claim = claim.map_err(|divergence| TestCaseError::fail(divergence.to_string()))?;
                    prop_assert_eq!(claim.recorded, ordinals.contains(&claim.ordinal));
                    n_met += usize::from(claim.recorded);
                    pending.push(claim.ordinal);
                }
                Move::Wait(scope) => {
                    let claim = replay.claim_in(&scopes[*scope], "signal", None, 7);
                    let claim = claim.map_err(|divergence| TestCaseError::fail(divergence.to_string()))?;
                    prop_assert_eq!(claim.recorded, ordinals.contains(&claim.ordinal));
                    n_met += usize::from(claim.recorded);
                    pending.push(claim.ordinal);
                }
                Move::Ask(scope) => {
                    let claim = replay.claim_in(&scopes[*scope], "random", None, 7);
                    let claim = claim.map_err(|divergence| TestCaseError::fail(divergence.to_string()))?;
                    // With another value, the code would take another path.
                    prop_assert!(claim.recorded, "{} of {} kept rows are met before", n_met, n_kept);
                    n_met += 1;
                }
                Move::Patched => {
                    let decided = replay.patched("mail");
                    let (is_in_force, claim) =
                        decided.map_err(|divergence| TestCaseError::fail(divergence.to_string()))?;
                    prop_assert!(is_in_force, "as it was for what is kept");
                    n_met += usize::from(claim.is_some_and(|claim| claim.recorded));
                }
                Move::Deliver(ordinal) => {
                    prop_assert!(replay.may_deliver(*ordinal), "{} is not let through", ordinal);
                    if n_delivered < order_len {
                        let others = pending.iter().filter(|other| *other != ordinal);
                        prop_assert!(others.into_iter().all(|other| !replay.may_deliver(*other)));
                    }
                    replay.deliver(*ordinal);
                    pending.retain(|other| other != ordinal);
                    n_delivered += 1;
                }
            }
        }
        prop_assert_eq!(n_met, n_kept);
        prop_assert_eq!(replay.unmet(), None);
        Ok(())
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn replay_over_kept_steps_accepts_original_code(
            choices in proptest::collection::vec((any::<u8>(), proptest::bool::weighted(0.2), any::<bool>()), 1..40),
            at in any::<u8>(),
        ) {
            let course = course(&choices);
            let Course { moves, rows, claimed_at } = &course;
            replays(moves, without_last_failures(rows.clone()))?;
            let Some(at) = usize::from(at).checked_rem(rows.len()) else { return Ok(()) };
            let kept = before(rows.clone(), &rows[at].key).unwrap_or_default();
            let delivered_at = course.delivered_at(at);
            for (row, claimed_at) in rows.iter().zip(claimed_at) {
                let is_kept = kept.iter().any(|kept| kept.key == row.key);
                prop_assert!(!is_kept || *claimed_at < delivered_at, "`{}` has seen `{}`", row.key, rows[at].key);
            }
            replays(moves, kept)?;
        }
    }
}
