//! Finds the steps that the code does not poll.

use std::time::Duration;

use tokio::time::Instant;

use super::{AtWork, AtWorkStep, locked};
use crate::engine::attempt::stop::StopReason;
use crate::model::run::failure::{Failure, FailureKind};

/// How long a ready step may be unpolled before it counts as such. Combinators of many futures poll
/// some of them later.
pub(crate) const UNPOLLED_AFTER: Duration = Duration::from_secs(1);

/// How long a ready step with a transaction may be unpolled. Longer than a machine is busy, but
/// short for other sessions that wait for its locks.
pub(crate) const UNPOLLED_TRANSACTION_LIMIT: Duration = Duration::from_secs(10);

/// The steps that the code does not poll.
#[derive(Clone, Debug, Default)]
pub(crate) struct UnpolledSteps {
    /// How many steps there are, if every working step is unpolled for [`UNPOLLED_AFTER`].
    pub(crate) count: Option<usize>,
    /// If all working steps are unpolled: when the last of them became so.
    pub(crate) last: Option<Instant>,
    /// The first unpolled step with a transaction: since when, and its key.
    pub(crate) transaction: Option<(Instant, String)>,
}

impl AtWork {
    /// The unpolled steps after a poll of the code that began at this instant.
    pub(crate) fn unpolled(&self, polled_from: Instant) -> UnpolledSteps {
        let woken = std::mem::take(&mut locked(&self.passes).woken);
        let mut later = Vec::new();
        for ordinal in woken {
            if self.steps.get(&ordinal).is_some_and(|step| step.look(polled_from) == Look::Again) {
                later.push(ordinal);
            }
        }
        let mut passes = locked(&self.passes);
        passes.woken.append(&mut later);
        let are_all = !self.steps.is_empty() && passes.n_passed == self.steps.len();
        let transactions: Vec<u64> = passes.transactions.iter().copied().collect();
        drop(passes);
        let transactions = transactions.iter().filter_map(|ordinal| self.steps.get(ordinal));
        let transaction = transactions
            .filter_map(|step| Some((step.passed_at()?, step)))
            .min_by_key(|(since, _)| *since)
            .map(|(since, step)| (since, step.key.clone()));
        let last = if are_all { self.steps.values().filter_map(|step| step.passed_at()).max() } else { None };
        let count = last.filter(|last| last.elapsed() >= UNPOLLED_AFTER).map(|_| self.steps.len());
        UnpolledSteps { count, last, transaction }
    }
}

/// The result of checking a woken step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Look {
    /// The code has polled it, or it is unpolled.
    Done,
    /// It was woken during the poll. The next check decides.
    Again,
}

impl AtWorkStep {
    /// Checks whether a poll of the code that began at this instant skipped the step.
    fn look(&self, polled_from: Instant) -> Look {
        #[cfg(test)]
        tests::N_LOOKS.set(tests::N_LOOKS.get() + 1);
        let mut look = Look::Done;
        self.change(|pass| match pass.ready_since {
            Some(since) if since < polled_from => {
                pass.passed_at.get_or_insert_with(Instant::now);
            }
            Some(_) => look = Look::Again,
            None => {}
        });
        look
    }

    /// When a poll of the code first skipped the step. `None` if it is not unpolled.
    fn passed_at(&self) -> Option<Instant> {
        #[cfg(test)]
        tests::N_LOOKS.set(tests::N_LOOKS.get() + 1);
        locked(&self.pass).passed_at
    }
}

/// The reason to stop an attempt whose code does not poll a step with a transaction for too long.
pub(crate) fn unpolled_for_too_long(key: &str) -> StopReason {
    let message = format!(
        "step `{key}` holds a transaction that could go on, and the workflow's code has not polled it for {UNPOLLED_TRANSACTION_LIMIT:?}: it awaits something else, as \
         a loop over a stream does that awaits steps for an item; it was rolled back. Await the step before or together with what comes next (`join!`), drop it, or \
         make a transactional `#[job]` of its body and run that with `wf.run`, which goes on by itself"
    );
    StopReason::Unpolled(Failure::new(FailureKind::Setup, message))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::{Arc, Weak};
    use std::task::{Wake, Waker};

    use super::*;

    thread_local! {
        /// How many steps were checked in this thread.
        pub(super) static N_LOOKS: Cell<usize> = const { Cell::new(0) };
    }

    const MANY: u64 = 10_000;

    fn begin(at_work: &mut AtWork, ordinal: u64) -> Arc<AtWorkStep> {
        at_work.begin(Weak::new(), ordinal, &format!("step[{ordinal}]"))
    }

    /// Polls the code. Advances the clock first, so that steps woken earlier count as woken before
    /// it.
    async fn a_poll(at_work: &AtWork, polled: &[&Arc<AtWorkStep>]) -> UnpolledSteps {
        tokio::time::advance(Duration::from_millis(1)).await;
        let polled_from = Instant::now();
        for step in polled {
            step.polled_by(Waker::noop());
        }
        at_work.unpolled(polled_from)
    }

    #[tokio::test(start_paused = true)]
    async fn fan_out_steps_are_checked_only_when_woken() {
        let mut at_work = AtWork::default();
        let steps: Vec<_> = (0..MANY).map(|ordinal| begin(&mut at_work, ordinal)).collect();
        for step in &steps {
            Arc::clone(step).wake();
            assert_eq!(a_poll(&at_work, &[step]).await.last, None);
            at_work.end(step.ordinal);
        }
        assert!(N_LOOKS.get() <= steps.len(), "{} looks", N_LOOKS.get());
    }

    #[tokio::test(start_paused = true)]
    async fn unpolled_steps_are_checked_once_while_another_is_polled() {
        let mut at_work = AtWork::default();
        let beside = begin(&mut at_work, MANY);
        for ordinal in 0..MANY {
            begin(&mut at_work, ordinal).wake();
        }
        for _ in 0..MANY {
            Arc::clone(&beside).wake();
            assert_eq!(a_poll(&at_work, &[&beside]).await.last, None);
        }
        let n_wakes = usize::try_from(2 * MANY).unwrap();
        assert!(N_LOOKS.get() <= n_wakes, "{} looks", N_LOOKS.get());
    }

    #[tokio::test(start_paused = true)]
    async fn steps_count_as_unpolled_one_second_after_poll_skips_all() {
        let mut at_work = AtWork::default();
        let [one, two] = [0, 1].map(|ordinal| begin(&mut at_work, ordinal));
        Arc::clone(&one).wake();
        assert_eq!(a_poll(&at_work, &[]).await.last, None, "the other waits for something");
        tokio::time::advance(UNPOLLED_AFTER).await;
        let polled_from = Instant::now();
        Arc::clone(&two).wake();
        assert_eq!(at_work.unpolled(polled_from).last, None, "it was woken during the poll");
        let kept = a_poll(&at_work, &[]).await;
        assert_eq!((kept.count, kept.last), (None, Some(Instant::now())), "both are, one not for long");
        tokio::time::advance(UNPOLLED_AFTER).await;
        assert_eq!(a_poll(&at_work, &[]).await.count, Some(2));
        assert_eq!(a_poll(&at_work, &[&one]).await.count, None, "it was polled");
        at_work.end(0);
        let kept = a_poll(&at_work, &[]).await;
        assert_eq!(kept.count, Some(1), "the other has been passed by all the while");
        at_work.end(1);
        assert_eq!(a_poll(&at_work, &[]).await.last, None);
    }

    #[tokio::test(start_paused = true)]
    async fn first_skipped_step_with_transaction_is_reported() {
        let mut at_work = AtWork::default();
        let [one, two, three] = [0, 1, 2].map(|ordinal| begin(&mut at_work, ordinal));
        for step in [&one, &two] {
            step.change(|pass| pass.holds_transaction = true);
        }
        for step in [&three, &two] {
            Arc::clone(step).wake();
        }
        let since = a_poll(&at_work, &[]).await.transaction.unwrap();
        assert_eq!(since, (Instant::now(), "step[1]".to_owned()));
        Arc::clone(&one).wake();
        assert_eq!(a_poll(&at_work, &[]).await.transaction, Some(since));
        assert_eq!(a_poll(&at_work, &[&two]).await.transaction.unwrap().1, "step[0]");
        at_work.end(0);
        assert_eq!(a_poll(&at_work, &[]).await.transaction, None);
    }
}
