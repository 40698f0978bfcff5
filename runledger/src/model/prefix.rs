//! Which recorded steps of a run another one keeps that goes on from there.
//!
//! A replay over the kept rows accepts what the code did when it left them. The order of deliveries is written anew among them: a row that is left out
//! may have carried the part of it that others rest on.

use std::collections::HashSet;

use uuid::Uuid;

use super::deliveries::{order_of, stored_from};
use super::json;
use super::replay::Recorded;
use super::request::{child_run_id, key_in_slice};
use super::scope::is_from;

/// The steps that were claimed before the one with this key, and those of other branches that the code could claim without having seen its result. None
/// where it is not recorded.
#[must_use]
pub fn before(rows: Vec<Recorded>, key: &str) -> Option<Vec<Recorded>> {
    let (place, seen_len) = rows.iter().find(|row| row.key == key).map(|row| (row.ordinal, row.seen_len))?;
    // What was delivered before one of these was claimed is among them: it was claimed before, after fewer deliveries.
    let is_kept = |row: &Recorded| {
        row.seen_len < seen_len || (row.seen_len == seen_len && !is_from(row.ordinal, place))
    };
    Some(keep(rows, is_kept))
}

/// All but the failures that no step claimed later has observed: those that ended the run. The code asks for them again, and they are tried again.
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

/// The run that a step may have started: its output is the id of one.
#[must_use]
pub fn started(row: &Recorded) -> Option<Uuid> {
    let text = row.result.as_ref().ok()?;
    text.strip_prefix('"')?.strip_suffix('"')?.parse().ok()
}

/// A run that a step has started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Child {
    /// Its id.
    pub run_id: Uuid,
    /// The run that the step belonged to then: a step that was taken over from another run is still that one's.
    pub parent_id: Uuid,
    /// The slice of that run's work that is the present one: the child was started in it, or in one before.
    pub slice: u32,
}

/// The kept step that started a child whose end no kept step knows: only there may another run take the child's place.
#[must_use]
pub fn start_of(rows: &[Recorded], child: Child) -> Option<usize> {
    let fingerprint = json::fingerprint(&child.run_id.to_string());
    let is_awaited = |row: &Recorded| row.fingerprint == fingerprint && row.key.contains(".result");
    if rows.iter().any(is_awaited) {
        return None;
    }
    rows.iter().position(|row| started(row) == Some(child.run_id) && is_start_of(row, child))
}

/// Whether the id of the child follows from this step, in whichever slice that was: a run that took the step over does not know it.
fn is_start_of(row: &Recorded, child: Child) -> bool {
    let in_slice = |slice| child_run_id(child.parent_id, &key_in_slice(slice, &row.key)) == child.run_id;
    (0..=child.slice).rev().any(in_slice)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::model::failure::{Failure, FailureKind};
    use crate::model::replay::{Replay, Scope};

    fn row(key: &str, ordinal: u64, seen_len: u32, seen: Option<&[u64]>) -> Recorded {
        let result = Ok("null".to_owned());
        let seen = seen.map(<[u64]>::to_vec);
        Recorded { key: key.into(), ordinal, fingerprint: 7, result, seen_len, seen, undo: None }
    }

    fn failed(row: Recorded) -> Recorded {
        Recorded { result: Err(Failure::new(FailureKind::Error, "no")), ..row }
    }

    fn keys(rows: &[Recorded]) -> Vec<&str> {
        rows.iter().map(|row| row.key.as_str()).collect()
    }

    #[test]
    fn a_fork_keeps_what_was_claimed_before_its_step() {
        let rows = vec![row("a", 0, 0, None), row("b", 1, 1, None), row("c", 2, 2, None)];
        assert_eq!(keys(&before(rows.clone(), "c").unwrap_or_default()), ["a", "b"]);
        assert_eq!(before(rows, "d"), None);
    }

    #[test]
    fn the_order_that_a_left_out_row_carried_goes_to_one_that_is_kept() {
        // `b` came first; `c` and `d` were claimed after both, and only the row of `c`, which failed, has the order.
        let rows = vec![
            row("a", 0, 0, None),
            row("b", 1, 0, None),
            failed(row("c", 2, 2, Some(&[1, 2, 0, 2]))),
            row("d", 3, 2, None),
        ];
        let kept = without_last_failures(rows);
        assert_eq!(keys(&kept), ["a", "b", "d"]);
        assert_eq!(kept[2].seen.as_deref(), Some(&[1, 2, 0, 2][..]));
    }

    #[test]
    fn a_failure_that_a_later_step_has_observed_is_kept() {
        let rows = vec![failed(row("a", 0, 0, None)), row("mend", 1, 1, None), failed(row("b", 2, 2, None))];
        assert_eq!(keys(&without_last_failures(rows)), ["a", "mend"]);
    }

    #[test]
    fn a_child_is_replaced_only_where_its_end_is_not_known() {
        let parent_id = Uuid::from_u128(7);
        let run_id = child_run_id(parent_id, "work");
        let child = Child { run_id, parent_id, slice: 0 };
        let mut rows = vec![row("work", 0, 0, None), row("work.result", 1, 1, None)];
        rows[0].result = Ok(format!("\"{run_id}\""));
        rows[1].fingerprint = json::fingerprint(&run_id.to_string());
        assert_eq!(start_of(&rows, child), None);
        rows.pop();
        assert_eq!(start_of(&rows, child), Some(0));
        assert_eq!(start_of(&rows, Child { parent_id: run_id, ..child }), None);
    }

    #[test]
    fn a_child_is_known_by_the_slice_that_started_it_or_a_later_one() {
        let parent_id = Uuid::from_u128(7);
        let run_id = child_run_id(parent_id, "2:work");
        let rows = [Recorded { result: Ok(format!("\"{run_id}\"")), ..row("work", 0, 0, None) }];
        let found = |slice| start_of(&rows, Child { run_id, parent_id, slice });
        assert_eq!([1, 2, 3].map(found), [None, Some(0), Some(0)]);
    }

    /// What the code of a run did.
    #[derive(Clone, Copy, Debug)]
    enum Move {
        /// In this scope.
        Claim(usize),
        Deliver(u64),
    }

    /// The workflow itself, and two branches of it.
    fn scopes(replay: &mut Replay) -> [Scope; 3] {
        let branches = ["left", "right"].map(|name| replay.branch(&Scope::root(), name));
        let [left, right] = branches;
        [Scope::root(), left, right]
    }

    /// A run that claims and is given results in an order drawn by `choices`, the records that it left, and which of its steps failed.
    fn course(choices: &[(u8, bool, bool)]) -> (Vec<Move>, Vec<Recorded>) {
        let (mut replay, mut moves, mut pending, mut rows) =
            (Replay::default(), Vec::new(), Vec::new(), Vec::new());
        let scopes = scopes(&mut replay);
        for (choice, fails, is_acknowledged) in choices {
            if pending.is_empty() || choice % 2 == 0 {
                let scope = usize::from(choice / 2) % scopes.len();
                let Ok(claim) = replay.claim_in(&scopes[scope], "step", None, 7) else {
                    unreachable!("nothing is recorded")
                };
                pending.push(claim.ordinal);
                moves.push(Move::Claim(scope));
                let seen = replay.seen(claim.seen_len);
                let row = row(claim.key.as_str(), claim.ordinal, claim.seen_len, seen.as_deref());
                rows.push(if *fails { failed(row) } else { row });
                if *is_acknowledged {
                    replay.acknowledge(claim.seen_len);
                }
            } else {
                let ordinal = pending.swap_remove(usize::from(choice / 2) % pending.len());
                replay.deliver(ordinal);
                moves.push(Move::Deliver(ordinal));
            }
        }
        (moves, rows)
    }

    /// Replays what the code did over some of its rows, until it goes its own way.
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
        fn a_replay_over_what_is_kept_accepts_what_the_code_did(
            choices in proptest::collection::vec((any::<u8>(), proptest::bool::weighted(0.2), any::<bool>()), 1..40),
            at in any::<u8>(),
        ) {
            let (moves, rows) = course(&choices);
            replays(&moves, without_last_failures(rows.clone()))?;
            let key = rows[usize::from(at) % rows.len()].key.clone();
            replays(&moves, before(rows, &key).unwrap_or_default())?;
        }
    }
}
