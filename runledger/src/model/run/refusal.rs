//! The settlements to try after the database has refused the first one.
//!
//! A trigger or constraint may refuse one state, or only the text of a failure. So each settlement
//! asks for less than the one before. A run that did not end is never failed by a refusal: it is
//! blocked, and an operator can resume it. If even that is refused, it returns to its queue, so
//! that it keeps no permit of its resource. A run that only returns to its queue has no other
//! settlement: maintenance returns it later.

use std::collections::VecDeque;
use std::time::Duration;

use super::failure::{Failure, FailureKind};
use super::settle::{Cause, Counters, Due, Outcome, RetryPolicy, Settlement, Verdict, settle};

/// An audit table may accept no longer text.
const SHORT: &str = "not stored; see the worker's log";

/// The pause before the next attempt of a run that can neither end nor be blocked.
const PAUSE: Duration = Duration::from_secs(30);

fn short() -> Failure {
    Failure::new(FailureKind::Error, SHORT)
}

/// Why a run is blocked if its outcome, its wait or its continuation cannot be stored.
pub fn explained(what: &str, refusal: &Failure) -> Failure {
    let message = format!(
        "the {what} cannot be stored: {}; see whether a trigger or a constraint refuses it, then resume or cancel the run",
        refusal.message
    );
    Failure { message, ..refusal.clone() }
}

/// The same settlement, with the shortest text that says what happened.
fn in_short(settlement: Settlement) -> Settlement {
    let verdict = match settlement.verdict {
        Verdict::Fail(_) => Verdict::Fail(short()),
        Verdict::Cancel(_) => Verdict::Cancel(short()),
        Verdict::Block(_) => Verdict::Block(short()),
        Verdict::Requeue { due, cause, .. } => Verdict::Requeue { due, cause, failure: None },
        verdict @ (Verdict::Complete(_) | Verdict::Pause) => verdict,
    };
    Settlement { verdict, ..settlement }
}

/// The settlements of one attempt. The next one is written if the database refuses the one before.
pub struct Settlements {
    next: VecDeque<Settlement>,
    first: Option<First>,
}

/// What later settlements keep of the first.
struct First {
    kept: Option<Kept>,
    is_released: bool,
    is_crash: bool,
    own_failure: Option<String>,
    counters: Counters,
    claimed: Counters,
}

/// A verdict without its failure.
#[derive(Clone, Copy)]
enum Kept {
    Fail,
    Cancel,
    Retry(Due, Cause),
}

impl Kept {
    fn with(self, failure: Failure) -> Verdict {
        match self {
            Self::Fail => Verdict::Fail(failure),
            Self::Cancel => Verdict::Cancel(failure),
            Self::Retry(due, cause) => Verdict::Requeue { due, cause, failure: Some(failure) },
        }
    }
}

impl Settlements {
    /// `claimed` has the counters of the attempt.
    pub fn new(first: Settlement, claimed: Counters) -> Self {
        let kept = match &first.verdict {
            Verdict::Complete(_) | Verdict::Fail(_) => Some(Kept::Fail),
            Verdict::Cancel(_) => Some(Kept::Cancel),
            Verdict::Requeue { due, cause, failure: Some(_) } => Some(Kept::Retry(*due, *cause)),
            Verdict::Requeue { .. } | Verdict::Block(_) | Verdict::Pause => None,
        };
        let is_released = matches!(first.verdict, Verdict::Requeue { cause: Cause::Released, .. });
        let own_failure = first.verdict.failure().map(ToString::to_string);
        let counters = first.counters;
        let next = VecDeque::from([first]);
        Self {
            next,
            first: Some(First { kept, is_released, is_crash: false, own_failure, counters, claimed }),
        }
    }

    /// The settlements of a crashed attempt, which keep the state. A run whose return is refused
    /// is not blocked: its queue may be closed for now. A run that is to be blocked does not
    /// return: it would crash another worker.
    pub fn of_crash(first: Settlement, claimed: Counters) -> Self {
        let mut settlements = Self::new(first, claimed);
        settlements.first = settlements.first.map(|first| First { is_crash: true, ..first });
        settlements
    }

    /// Returns the next settlement to write, if there is one.
    pub fn take_next(&mut self) -> Option<Settlement> {
        self.next.pop_front()
    }

    /// Drops all settlements but the last.
    pub fn skip_to_last(&mut self) {
        self.next.drain(..self.next.len().saturating_sub(1));
    }

    /// Whether the next settlement replaces a refused one.
    pub fn has_been_refused(&self) -> bool {
        self.first.is_none()
    }

    /// Whether the next settlement returns the run to its queue because nothing else is left.
    pub fn rest_is_next(&self) -> bool {
        self.has_been_refused() && matches!(self.next.front(), Some(next) if is_rest(next))
    }

    /// Takes note that the database refused the last settlement.
    pub fn refused(&mut self, refusal: &Failure) {
        if let Some(first) = self.first.take() {
            self.next.extend(first.after(refusal));
        }
    }

    /// Whether no settlement is left.
    pub fn is_exhausted(&self) -> bool {
        self.next.is_empty()
    }
}

impl First {
    /// Returns the settlements to try in turn.
    ///
    /// 1. The same state, with the refusal as the failure and the run's own failure as its cause.
    /// 2. The same state, with the refusal alone.
    /// 3. The same state, with a short text. A retry is not listed among the attempts.
    /// 4. The run is blocked, and shows the refusal and its own failure.
    /// 5. The run is blocked, with a short text.
    /// 6. The run returns to its queue after a pause.
    fn after(self, refusal: &Failure) -> Vec<Settlement> {
        if self.is_released {
            return Vec::new();
        }
        let own_failure = self.own_failure;
        let with_own = |failure: &Failure| {
            let mut failure = failure.clone();
            failure.causes.extend(own_failure.clone());
            failure
        };
        let kept = |failure| {
            let verdict = self.kept?.with(failure);
            Some(Settlement { verdict, counters: self.counters })
        };
        let blocked = |failure| {
            let block = settle(Outcome::Diverged(failure), self.claimed, &RetryPolicy::NOT_ASKED, 0.0);
            if self.is_crash { Settlement { counters: self.counters, ..block } } else { block }
        };
        let explained = explained("end of this attempt", refusal);
        let in_full = own_failure.as_ref().and_then(|_| kept(with_own(refusal)));
        let blocks = [blocked(with_own(&explained)), blocked(short())];
        let may_block = !self.is_crash || self.kept.is_none();
        let rest = Settlement {
            verdict: Verdict::Requeue { due: Due::In(PAUSE), cause: Cause::Released, failure: None },
            counters: settle(Outcome::Released, self.claimed, &RetryPolicy::NOT_ASKED, 0.0).counters,
        };
        in_full
            .into_iter()
            .chain(kept(refusal.clone()))
            .chain(kept(short()).map(in_short))
            .chain(blocks.into_iter().filter(|_| may_block))
            .chain((!self.is_crash).then_some(rest))
            .collect()
    }
}

fn is_rest(settlement: &Settlement) -> bool {
    matches!(settlement.verdict, Verdict::Requeue { due: Due::In(PAUSE), cause: Cause::Released, .. })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::payload::Stored;

    const CLAIMED: Counters = Counters { attempt: 2, crashes: 1 };

    fn after(verdict: Verdict) -> Vec<Settlement> {
        let counters = Counters { attempt: 2, crashes: 0 };
        let refusal = Failure::new(FailureKind::Error, "value too long");
        let mut settlements = Settlements::new(Settlement { verdict, counters }, CLAIMED);
        assert!(settlements.take_next().is_some());
        settlements.refused(&refusal);
        let mut others = Vec::new();
        while let Some(next) = settlements.take_next() {
            settlements.refused(&refusal);
            others.push(next);
        }
        others
    }

    fn own() -> Failure {
        Failure::new(FailureKind::Error, "declined")
    }

    fn is_block(settlement: &Settlement) -> bool {
        matches!(settlement.verdict, Verdict::Block(_))
    }

    #[test]
    fn refused_failure_is_shortened_then_run_is_blocked_then_requeued() {
        let [first, second, third, fourth, fifth, sixth] = after(Verdict::Fail(own())).try_into().unwrap();
        for (settlement, causes) in [(first, vec!["declined".to_owned()]), (second, Vec::new())] {
            let Verdict::Fail(failure) = settlement.verdict else { panic!("{settlement:?}") };
            assert_eq!((failure.message.as_str(), failure.causes), ("value too long", causes));
        }
        assert_eq!(third.verdict, Verdict::Fail(short()));
        let Verdict::Block(failure) = fourth.verdict else { panic!("{fourth:?}") };
        assert!(failure.message.contains("value too long") && failure.causes == ["declined"], "{failure:?}");
        assert_eq!(fifth.verdict, Verdict::Block(short()));
        assert!(is_rest(&sixth) && sixth.counters.attempt == 1, "{sixth:?}");
    }

    #[test]
    fn run_with_refused_output_fails() {
        let all = after(Verdict::Complete(Stored::read("1".into())));
        assert_eq!(all.len(), 5);
        assert!(all[..2].iter().all(|one| matches!(one.verdict, Verdict::Fail(_))));
    }

    #[test]
    fn attempt_with_refused_failure_still_retries_by_policy() {
        let due = Due::In(Duration::from_secs(7));
        let all = after(Verdict::Requeue { due, cause: Cause::Retried, failure: Some(own()) });
        let texts: Vec<Option<&str>> = all[..3]
            .iter()
            .map(|one| {
                let Verdict::Requeue { due: kept, failure, .. } = &one.verdict else { panic!("{all:?}") };
                assert_eq!((*kept, one.counters.attempt), (due, 2));
                failure.as_ref().map(|failure| failure.message.as_str())
            })
            .collect();
        assert_eq!(texts, [Some("value too long"), Some("value too long"), None]);
        assert!(all[3..5].iter().all(is_block) && is_rest(&all[5]));
    }

    #[test]
    fn refused_cancel_is_repeated_before_run_is_blocked() {
        let all = after(Verdict::Cancel(own()));
        assert!(all[..3].iter().all(|one| matches!(one.verdict, Verdict::Cancel(_))));
        assert!(all[3..5].iter().all(is_block) && is_rest(&all[5]));
    }

    #[test]
    fn unfinished_run_with_refused_settlement_is_blocked_without_consuming_attempt() {
        let slept = Verdict::Requeue { due: Due::In(Duration::ZERO), cause: Cause::Slept, failure: None };
        for verdict in [slept, Verdict::Block(own()), Verdict::Pause] {
            let all = after(verdict);
            assert_eq!(all.len(), 3);
            assert!(all.iter().all(|one| one.counters.attempt == 1), "{all:?}");
            assert!(all[..2].iter().all(is_block) && is_rest(&all[2]), "{all:?}");
        }
    }

    #[test]
    fn refused_crash_settlement_keeps_state_and_crash_count() {
        let counters = Counters { attempt: 2, crashes: 2 };
        let due = Due::In(Duration::ZERO);
        let returned = Verdict::Requeue { due, cause: Cause::Crashed, failure: Some(own()) };
        for (verdict, n_others) in [(returned, 3), (Verdict::Block(own()), 2)] {
            let is_blocked = matches!(verdict, Verdict::Block(_));
            let mut settlements = Settlements::of_crash(Settlement { verdict, counters }, CLAIMED);
            settlements.take_next().unwrap();
            for _ in 0..n_others {
                settlements.refused(&own());
                assert!(!settlements.rest_is_next());
                let next = settlements.take_next().unwrap();
                assert_eq!((is_block(&next), next.counters), (is_blocked, counters));
            }
            settlements.refused(&own());
            assert!(settlements.is_exhausted());
        }
    }

    #[test]
    fn settlements_can_skip_to_last_one() {
        let first = Settlement { verdict: Verdict::Cancel(own()), counters: CLAIMED };
        let mut settlements = Settlements::new(first, CLAIMED);
        settlements.take_next().unwrap();
        settlements.refused(&own());
        settlements.skip_to_last();
        assert!(settlements.rest_is_next() && is_rest(&settlements.take_next().unwrap()));
        settlements.refused(&own());
        assert!(settlements.is_exhausted());
    }

    #[test]
    fn refused_release_has_no_further_settlement() {
        let verdict =
            Verdict::Requeue { due: Due::In(Duration::ZERO), cause: Cause::Released, failure: None };
        let mut settlements = Settlements::new(Settlement { verdict, counters: CLAIMED }, CLAIMED);
        settlements.take_next().unwrap();
        settlements.refused(&own());
        assert!(settlements.is_exhausted());
    }
}
