//! Writes how attempts end. If the database refuses an outcome, the next one of its [`Settlements`]
//! is written.

use std::fmt::Display;
use std::time::Duration;

use tokio::time::Instant;
use uuid::Uuid;

use super::executor::{Executor, Run};
use crate::connection::db_timeout::{STATEMENT_LIMIT, with_timeout};
use crate::definition::call::is_workflow;
use crate::engine::attempt::Attempt;
use crate::engine::group_commit::WriteResult;
use crate::engine::step::unit_random;
use crate::model::payload::Sealer;
use crate::model::run::failure::Failure;
use crate::model::run::refusal::Settlements;
use crate::model::run::settle::{Due, Outcome, RetryPolicy, Settlement, Verdict, settle};
use crate::store::attempt::checkpoint::Fence;
use crate::store::attempt::settle::{FAILED_ABOVE, Settled};
use crate::store::operator::cancel;
use crate::store::worker::claim::Claimed;
use crate::worker::in_flight::Slot;
use crate::worker::report::observers::What;

impl Executor {
    pub(super) async fn settle_unstarted(&self, claimed: Claimed, slot: Slot, outcome: Outcome) {
        let first = settle(outcome, claimed.counters, &RetryPolicy::NOT_ASKED, 0.0);
        let mut settlements = Settlements::new(first, claimed.counters);
        while let Some(settlement) = settlements.take_next() {
            let settled = settled(slot.fence, settlement, &claimed, self.db.sealer());
            let WriteResult::Refused(refusal) = self.commit_queue.write(settled).await else { break };
            settlements.refused(&refusal);
            warn_refused(&settlements, slot.fence.run_id, &self.db.sealer().loggable(&refusal));
        }
        self.hint_at_permit();
    }

    /// Blocks the run if the database refuses its wait or its continuation: an attempt would end
    /// there again, and keep a permit until maintenance finds the lease.
    pub(super) async fn report_or_block(
        &self,
        attempt: &Attempt,
        run: &Run,
        policy: &RetryPolicy,
        left: Result<What, Failure>,
    ) {
        match left {
            Ok(what) => run.ended(what),
            Err(failure) => Box::pin(self.settle(attempt, run, policy, Outcome::Diverged(failure))).await,
        }
    }

    pub(super) async fn settle(&self, attempt: &Attempt, run: &Run, policy: &RetryPolicy, outcome: Outcome) {
        let claimed = &run.claimed;
        let is_cancel = matches!(outcome, Outcome::Cancelled(_));
        if let Outcome::Failed(failure, _) | Outcome::Diverged(failure) = &outcome {
            let (job, number) = (attempt.definition.name, attempt.counters.attempt);
            let failure = self.db.sealer().loggable(failure);
            tracing::warn!(job, run_id = %attempt.fence.run_id, attempt = number, %failure, "an attempt failed");
        }
        let first = settle(outcome, claimed.counters, policy, unit_random());
        let mut settlements = Settlements::new(first, claimed.counters);
        while let Some(settlement) = settlements.take_next() {
            let is_other = settlements.has_been_refused();
            let written = Box::pin(self.write_settlement(attempt, run, settlement, is_other)).await;
            let Err(refusal) = written else { break };
            settlements.refused(&refusal);
            warn_refused(&settlements, attempt.fence.run_id, &self.db.sealer().loggable(&refusal));
        }
        if is_cancel {
            self.cancel_below(attempt.fence.run_id, None).await;
        }
    }

    /// Writes a settlement, then reports it. Returns the failure if the database refuses it.
    /// `is_other` says that it replaces a refused one.
    async fn write_settlement(
        &self,
        attempt: &Attempt,
        run: &Run,
        settlement: Settlement,
        is_other: bool,
    ) -> Result<(), Failure> {
        let due = match &settlement.verdict {
            Verdict::Requeue { due: Due::In(delay), .. } => Some(*delay),
            Verdict::Requeue { due: Due::At(instant), .. } => {
                Some(instant.since(attempt.clock.stored(attempt.clock.now())))
            }
            // The run may have been resumed in between.
            Verdict::Pause => Some(Duration::ZERO),
            // The run may be queued for compensation.
            Verdict::Fail(_) | Verdict::Cancel(_) if is_workflow(attempt.definition) => Some(Duration::ZERO),
            _ => None,
        };
        let is_heard = run.watch.is_some() || self.on_failure.is_some();
        let decided = is_heard.then(|| What::of(&settlement.verdict));
        let decided_at = Instant::now();
        let fence = attempt.fence;
        let may_undo = is_workflow(attempt.definition);
        // Only workflows start other runs.
        let fails = may_undo && matches!(settlement.verdict, Verdict::Fail(_));
        let settled = settled(fence, settlement, &run.claimed, self.db.sealer()).of_saga(may_undo);
        let settled = if is_other { settled.after_refusal() } else { settled };
        match self.commit_queue.write(settled).await {
            WriteResult::Yes => {
                if let Some(delay) = due {
                    // Send after the commit: a scan of the claimer before it would miss the run. In
                    // a shutdown the claimer may be gone, and needs no wake-up.
                    let _ = self.due.send(delay.saturating_sub(decided_at.elapsed()));
                }
                if fails {
                    self.cancel_below(fence.run_id, Some(FAILED_ABOVE)).await;
                }
                if let Some(decided) = decided {
                    Box::pin(self.tell_committed(run, decided, may_undo)).await;
                }
            }
            WriteResult::LeaseLost | WriteResult::Gone => Box::pin(self.tell_lost(run, decided)).await,
            WriteResult::Refused(refusal) => return Err(refusal),
        }
        Ok(())
    }

    /// Cancels the children of a run that was cancelled or has failed.
    ///
    /// A cancel request has already cancelled the children that existed then. The run may have
    /// started others since, and can start no more now. The children of a failed run are not
    /// cancelled yet. If this does not finish, maintenance carries out the request that the run has
    /// left.
    async fn cancel_below(&self, run_id: Uuid, reason: Option<&str>) {
        let cancel = async { cancel::cancel_below(&mut *self.db.acquire().await?, &[run_id], reason).await };
        match Box::pin(with_timeout(STATEMENT_LIMIT, cancel)).await {
            Ok(to_wake) => self.commit_queue.wakes.owe(to_wake),
            Err(error) => {
                tracing::warn!(%error, %run_id, "what is below a run that was cancelled or has failed is not cancelled yet");
            }
        }
    }
}

/// Logs that the database refused a settlement, and what is done next.
pub(crate) fn warn_refused(settlements: &Settlements, run_id: Uuid, failure: &impl Display) {
    if settlements.is_exhausted() {
        tracing::error!(%run_id, %failure, "the database refuses to store how an attempt ended; maintenance tries again");
    } else if settlements.rest_is_next() {
        tracing::error!(%run_id, %failure, "the database refuses to store how an attempt ended; the run is to return to its queue for 30 s");
    } else {
        tracing::warn!(%run_id, %failure, "the database refuses to store how an attempt ended; less of it is tried");
    }
}

fn settled(fence: Fence, settlement: Settlement, claimed: &Claimed, sealer: &Sealer) -> Settled {
    Settled::new(fence, settlement, sealer).below(claimed.above)
}
