//! How a workflow's body is polled, and when the run leaves its worker.
//!
//! A run that only waits need not stay: parked, it holds no slot, no connection and no memory, and whoever claims it later replays it. That costs some
//! statements and the reading of its record, so a run lingers for a short while where it takes the slot of nobody.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::Instant;
use uuid::Uuid;

use super::executor::{AttemptEnd, Executor, end_of, outcome};
use crate::connection::code_context::CodeContext;
use crate::definition::RunFuture;
use crate::engine::attempt::Attempt;
use crate::engine::clock::Clock;
use crate::engine::saga::undo_all;
use crate::engine::step::bounded;
use crate::engine::stop::{PollVerdict, StopReason, Wait};
use crate::engine::unpolled::{
    UNPOLLED_AFTER, UNPOLLED_TRANSACTION_LIMIT, UnpolledSteps, unpolled_for_too_long,
};
use crate::model::settle::Outcome;
use crate::store::wait::Waits;
use crate::worker::in_flight::InFlight;

/// A sleep shorter than this is not worth leaving the worker for, even where others want the slot: parking, claiming and replaying take as long.
const RESIDENT: Duration = Duration::from_millis(300);

/// A run that waits for more things than these does not linger: whenever one of them has come, each looks by itself.
const MOST_LOOKS: usize = 8;

/// How long recorded results may wait for their turn while nothing works, before the run counts as diverged. A workflow that awaits something of
/// its own in between is not stalled, only slow.
pub(crate) const STALLED: Duration = Duration::from_secs(5);

/// Polls a workflow until it ends, waits without working, or cannot go on.
pub(crate) async fn drive(
    executor: &Executor,
    attempt: &Arc<Attempt>,
    body: RunFuture,
    timeout: Option<Duration>,
) -> AttemptEnd {
    let mut body = Box::pin(bounded(CodeContext::BetweenSteps, body, timeout));
    let (mut residency_grace, mut stalled) = (Grace::default(), Grace::default());
    let (mut passing, mut keeping) = (Grace::default(), Grace::default());
    std::future::poll_fn(|cx| {
        attempt.polled_by(cx.waker());
        let polled_from = Instant::now();
        let polled = body.as_mut().poll(cx);
        if let Some(stop) = attempt.stop_reason() {
            return Poll::Ready(end_of(stop));
        }
        if let Poll::Ready(finished) = polled {
            let unmet = attempt.unmet();
            return Poll::Ready(unmet.map_or_else(
                || AttemptEnd::Outcome(outcome(attempt, finished)),
                |unmet| end_of(StopReason::Diverged(unmet)),
            ));
        }
        let kept = attempt.kept(polled_from);
        if let Some((since, key)) = &kept.transaction
            && keeping.is_over(*since, cx, || tokio::time::sleep_until(*since + UNPOLLED_TRANSACTION_LIMIT))
        {
            return Poll::Ready(end_of(unpolled_for_too_long(key)));
        }
        if let Some(last) = kept.last {
            // Woken then, it looks again.
            let _ = passing.is_over(last, cx, || tokio::time::sleep_until(last + UNPOLLED_AFTER));
        }
        match attempt.rest(&kept) {
            PollVerdict::Stopped(stop) => Poll::Ready(end_of(stop)),
            PollVerdict::Working => Poll::Pending,
            PollVerdict::Waiting(moves, waits) => {
                let left = leaves(executor, attempt, (moves, &waits), &mut residency_grace, cx);
                left.map_or(Poll::Pending, Poll::Ready)
            }
            PollVerdict::Stalled(moves) => {
                let over = stalled.is_over(moves, cx, || tokio::time::sleep(STALLED));
                if over {
                    Poll::Ready(end_of(StopReason::Diverged(attempt.stalled())))
                } else {
                    Poll::Pending
                }
            }
        }
    })
    .await
}

/// Polls what takes back the steps of a run until it ends, waits for the next try of one, or cannot go on: a run that is to be tried in an hour has no slot.
pub(crate) async fn drive_undo(executor: &Executor, attempt: &Arc<Attempt>) -> Result<(), AttemptEnd> {
    let mut undo = Box::pin(undo_all(attempt));
    let mut residency_grace = Grace::default();
    std::future::poll_fn(|cx| {
        attempt.polled_by(cx.waker());
        if undo.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Ok(()));
        }
        match attempt.rest(&UnpolledSteps::default()) {
            PollVerdict::Stopped(stop) => Poll::Ready(Err(end_of(stop))),
            PollVerdict::Working | PollVerdict::Stalled(_) => Poll::Pending,
            PollVerdict::Waiting(moves, waits) => {
                let left = leaves(executor, attempt, (moves, &waits), &mut residency_grace, cx);
                left.map_or(Poll::Pending, |end| Poll::Ready(Err(end)))
            }
        }
    })
    .await
}

/// How a run that only waits leaves its worker, where it does now.
fn leaves(
    executor: &Executor,
    attempt: &Attempt,
    (moves, waits): (u64, &[Wait]),
    residency_grace: &mut Grace<u64>,
    cx: &mut Context<'_>,
) -> Option<AttemptEnd> {
    let over = match residency(waits, &attempt.clock, executor.idle_residency) {
        Residency::UntilItComes => false,
        Residency::WhileThereIsRoom => {
            let (in_flight, limit) = (&executor.in_flight, executor.idle_residency);
            residency_grace.is_over(moves, cx, || idle_residency(Arc::clone(in_flight), limit))
        }
        Residency::No => true,
    };
    over.then(|| parked(waits, &attempt.clock))
}

/// Grace with something that does not move. It begins anew whenever that has moved: `M` tells one state from the next.
struct Grace<M>(Option<(M, Limit)>);

/// Ready when patience is over.
type Limit = Pin<Box<dyn Future<Output = ()> + Send>>;

impl<M> Default for Grace<M> {
    fn default() -> Self {
        Self(None)
    }
}

impl<M: PartialEq> Grace<M> {
    /// Whether it is over, in this state.
    fn is_over<F>(&mut self, moves: M, cx: &mut Context<'_>, limit: impl FnOnce() -> F) -> bool
    where
        F: Future<Output = ()> + Send + 'static,
    {
        match &mut self.0 {
            Some((since, limit)) if *since == moves => limit.as_mut().poll(cx).is_ready(),
            patience => {
                let (_, limit) = patience.insert((moves, Box::pin(limit())));
                limit.as_mut().poll(cx).is_ready()
            }
        }
    }
}

/// Whether a run that only waits stays with its worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Residency {
    No,
    WhileThereIsRoom,
    UntilItComes,
}

fn residency(waits: &[Wait], clock: &Clock, idle_residency: Duration) -> Residency {
    if clock.is_skipped() {
        return Residency::No;
    }
    let now = clock.now();
    let sleeps = waits.iter().filter_map(|wait| match wait {
        Wait::Until(until) => Some(until.since(now)),
        Wait::Child(_) | Wait::LastOf(_) | Wait::Signal(_) => None,
    });
    let (n_sleeps, shortest) = (sleeps.clone().count(), sleeps.min());
    match shortest {
        Some(shortest) if shortest < RESIDENT => Residency::UntilItComes,
        Some(shortest) if n_sleeps == waits.len() && shortest >= idle_residency => Residency::No,
        _ if waits.len() > MOST_LOOKS || idle_residency.is_zero() => Residency::No,
        _ => Residency::WhileThereIsRoom,
    }
}

/// Ends when a run that only waits should leave its worker.
async fn idle_residency(in_flight: Arc<InFlight>, limit: Duration) {
    tokio::select! {
        () = tokio::time::sleep(limit) => {}
        () = in_flight.full() => {}
    }
}

/// How a run that only waits leaves its worker.
fn parked(waits: &[Wait], clock: &Clock) -> AttemptEnd {
    let mut all = Waits::default();
    let mut groups: Vec<&Arc<[Uuid]>> = Vec::new();
    for wait in waits {
        match wait {
            Wait::Child(child) => all.any.push(*child),
            Wait::LastOf(group) if !groups.iter().any(|known| Arc::ptr_eq(known, group)) => {
                groups.push(group);
            }
            Wait::LastOf(_) => {}
            Wait::Signal(name) => all.signals.push(name.clone()),
            Wait::Until(until) => {
                all.wake_at = Some(all.wake_at.map_or(*until, |earlier| earlier.min(*until)));
            }
        }
    }
    all.wake_at = all.wake_at.map(|wake_at| clock.stored(wake_at));
    match groups[..] {
        [group] => all.all = group.to_vec(),
        // The first to be complete wakes the run, so every end of a child is an occasion.
        _ => all.any.extend(groups.iter().flat_map(|group| group.iter())),
    }
    match all.wake_at {
        Some(wake_at) if all.any.is_empty() && all.all.is_empty() && all.signals.is_empty() => {
            AttemptEnd::Outcome(Outcome::Asleep(wake_at))
        }
        _ => AttemptEnd::Suspended(all),
    }
}
