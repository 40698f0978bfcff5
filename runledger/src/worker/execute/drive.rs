//! Polls a workflow's body, and decides when the run leaves its worker.
//!
//! A waiting run can be suspended: it then uses no slot, no connection and no memory. The next
//! claim replays it, which costs some statements and reads its history. Therefore a waiting run
//! stays resident for a short time, while no other run needs its slot.

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
use crate::engine::attempt::clock::Clock;
use crate::engine::attempt::stop::{PollVerdict, StopReason, Wait};
use crate::engine::step::bounded;
use crate::engine::step::saga::compensate_all;
use crate::engine::step::unpolled::check::{
    UNPOLLED_AFTER, UNPOLLED_TRANSACTION_LIMIT, UnpolledSteps, unpolled_for_too_long,
};
use crate::model::run::settle::Outcome;
use crate::store::attempt::wait::Waits;
use crate::worker::in_flight::InFlight;

/// A shorter sleep stays resident even if other runs need the slot: a suspension, a claim and a
/// replay take as long.
const RESIDENT: Duration = Duration::from_millis(300);

/// A run that waits for more things is not resident: each wake-up makes every wait poll the
/// database.
const MOST_LOOKS: usize = 8;

/// How long recorded results may wait for their turn while nothing works, before the run counts as
/// diverged. A workflow may await something of its own in between, and is then only slow.
pub(crate) const STALLED: Duration = Duration::from_secs(5);

/// Polls a workflow until it ends, is suspended, or must stop.
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
            // Registers the timer that wakes this task for another check.
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

/// Polls the compensation of a run until it ends, is suspended, or must stop. A run whose next try
/// is an hour away then uses no slot.
pub(crate) async fn drive_compensations(
    executor: &Executor,
    attempt: &Arc<Attempt>,
) -> Result<(), AttemptEnd> {
    let mut compensation = Box::pin(compensate_all(attempt));
    let mut residency_grace = Grace::default();
    std::future::poll_fn(|cx| {
        attempt.polled_by(cx.waker());
        if compensation.as_mut().poll(cx).is_ready() {
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

/// Returns how a waiting run leaves its worker, or `None` while it stays resident.
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

/// A limit on how long a state may last. It starts again whenever the state `M` changes.
struct Grace<M>(Option<(M, Limit)>);

/// Ready when the limit is reached.
type Limit = Pin<Box<dyn Future<Output = ()> + Send>>;

impl<M> Default for Grace<M> {
    fn default() -> Self {
        Self(None)
    }
}

impl<M: PartialEq> Grace<M> {
    /// Whether this state has reached its limit.
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

/// Whether a waiting run stays resident.
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

/// Ends when a waiting run should leave its worker.
async fn idle_residency(in_flight: Arc<InFlight>, limit: Duration) {
    tokio::select! {
        () = tokio::time::sleep(limit) => {}
        () = in_flight.full() => {}
    }
}

/// Returns how a waiting run leaves its worker.
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
        // The first complete group wakes the run, so every end of a child must wake it.
        _ => all.any.extend(groups.iter().flat_map(|group| group.iter())),
    }
    match all.wake_at {
        Some(wake_at) if all.any.is_empty() && all.all.is_empty() && all.signals.is_empty() => {
            AttemptEnd::Outcome(Outcome::Asleep(wake_at))
        }
        _ => AttemptEnd::Suspended(all),
    }
}
