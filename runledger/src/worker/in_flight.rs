//! The runs in flight, which this process believes it has claimed.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use uuid::Uuid;

use crate::engine::wakeups::Wakeups;
use crate::store::attempt::checkpoint::Fence;

/// An order to an attempt from outside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum StopOrder {
    /// No order.
    #[default]
    GoOn,
    /// Stop and settle as cancelled.
    Cancel,
    /// Stop and write nothing: another attempt owns the run, or this worker is dead.
    Drop,
    /// Stop and release the run: the worker shuts down.
    Release,
    /// Stop and leave the run until a person resumes it.
    Pause,
}

/// The stop order for one run. One task receives it.
#[derive(Debug, Default)]
pub(crate) struct StopSignal {
    present: Mutex<Present>,
    /// When the run was ordered to cancel.
    cancelled: OnceLock<Instant>,
    given: Notify,
    /// Whether the attempt's body has ended and only its settlement remains.
    has_left_body: AtomicBool,
    /// Wakes the attempt's steps so that they poll again.
    pub(crate) wakeups: Arc<Wakeups>,
}

#[derive(Debug, Default)]
struct Present {
    order: StopOrder,
    /// Whether the run is compensating. Its outcome is decided, so it cannot be cancelled any more.
    is_compensating: bool,
}

impl StopSignal {
    /// `Drop` replaces any order, because the attempt must not write any more. Otherwise the first
    /// order stays.
    fn send(&self, order: StopOrder) {
        let mut present = self.present();
        if order == StopOrder::Cancel && present.is_compensating {
            return;
        }
        if present.order == StopOrder::GoOn || order == StopOrder::Drop {
            present.order = order;
            drop(present);
            if order == StopOrder::Cancel {
                // The order is given once.
                let _ = self.cancelled.set(Instant::now());
            }
            self.given.notify_one();
        }
    }

    /// Waits for an order to stop.
    pub(crate) async fn wait(&self) -> StopOrder {
        loop {
            let order = self.present().order;
            if order != StopOrder::GoOn {
                return order;
            }
            self.given.notified().await;
        }
    }

    /// Notes that the run is compensating.
    pub(crate) fn begin_compensation(&self) {
        let mut present = self.present();
        present.is_compensating = true;
        if present.order == StopOrder::Cancel {
            present.order = StopOrder::GoOn;
        }
    }

    /// Notes that the attempt's body has ended.
    pub(crate) fn leave_body(&self) {
        self.has_left_body.store(true, Ordering::Release);
    }

    fn present(&self) -> MutexGuard<'_, Present> {
        // Nothing panics while it holds the lock.
        self.present.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The runs in flight by id, and the tokens of claims that have no reply yet.
#[derive(Debug)]
pub(crate) struct InFlight {
    inner: Mutex<Inner>,
    /// The most runs that may be in flight.
    pub(crate) slots: usize,
    /// Notified when the last slot is taken.
    filled: Notify,
    /// Notified when a run ends.
    pub(crate) freed: Notify,
}

#[derive(Debug, Default)]
struct Inner {
    runs: HashMap<Uuid, Run>,
    claiming: HashSet<Uuid>,
}

#[derive(Debug)]
struct Run {
    token: Uuid,
    stop_signal: Arc<StopSignal>,
    since: Instant,
    /// Whether the run has survived its trial.
    is_cleared: bool,
}

impl Run {
    fn new(token: Uuid, stop_signal: Arc<StopSignal>) -> Self {
        Self { token, stop_signal, since: Instant::now(), is_cleared: false }
    }
}

impl InFlight {
    /// Creates a set with this many slots.
    pub(crate) fn new(slots: usize) -> Self {
        Self { inner: Mutex::default(), slots, filled: Notify::new(), freed: Notify::new() }
    }

    pub(crate) fn len(&self) -> usize {
        self.inner().runs.len()
    }

    /// How many slots are free.
    pub(crate) fn n_free(&self) -> usize {
        self.slots.saturating_sub(self.len())
    }

    /// Waits until no slot is free.
    pub(crate) async fn full(&self) {
        loop {
            let filled = self.filled.notified();
            if self.n_free() == 0 {
                return;
            }
            filled.await;
        }
    }

    /// Notes the token of a claim. Call it before sending the claim.
    pub(crate) fn claim_sent(&self, token: Uuid) {
        self.inner().claiming.insert(token);
    }

    /// Notes that the reply of a claim has arrived, or never will. Add the claimed runs before this
    /// call.
    pub(crate) fn claim_answered(&self, token: Uuid) {
        self.inner().claiming.remove(&token);
    }

    /// Adds a run. It stays in flight until the slot is dropped.
    pub(crate) fn add(self: &Arc<Self>, fence: Fence) -> Slot {
        let stop_signal = Arc::new(StopSignal::default());
        let before = self.inner().runs.insert(fence.run_id, Run::new(fence.token, Arc::clone(&stop_signal)));
        if let Some(before) = before {
            // The replaced attempt has lost its lease, perhaps in a failover. Orders by run id no
            // longer reach it.
            before.stop_signal.send(StopOrder::Drop);
        }
        if self.n_free() == 0 {
            self.filled.notify_waiters();
        }
        Slot { in_flight: Arc::clone(self), fence, stop_signal }
    }

    /// Removes a run if this fence still owns it.
    fn remove(&self, fence: Fence) {
        let mut inner = self.inner();
        if inner.runs.get(&fence.run_id).is_some_and(|run| run.token == fence.token) {
            inner.runs.remove(&fence.run_id);
        }
        drop(inner);
        self.freed.notify_one();
    }

    /// The fences of the runs in flight.
    pub(crate) fn fences(&self) -> Vec<Fence> {
        self.inner().runs.iter().map(|(run_id, run)| Fence { run_id: *run_id, token: run.token }).collect()
    }

    /// Whether this process executes an attempt, or may be about to.
    pub(crate) fn knows(&self, fence: Fence) -> bool {
        let inner = self.inner();
        inner.claiming.contains(&fence.token)
            || inner.runs.get(&fence.run_id).is_some_and(|run| run.token == fence.token)
    }

    /// Whether every other run is older than `company` or has survived a trial.
    pub(crate) fn is_alone(&self, fence: Fence, company: Duration) -> bool {
        let inner = self.inner();
        let mut others = inner.runs.iter().filter(|(run_id, _)| **run_id != fence.run_id);
        others.all(|(_, run)| run.is_cleared || run.since.elapsed() >= company)
    }

    /// Records that a run has survived its trial.
    pub(crate) fn clear_of_suspicion(&self, fence: Fence) {
        if let Some(run) = self.inner().runs.get_mut(&fence.run_id).filter(|run| run.token == fence.token) {
            run.is_cleared = true;
        }
    }

    /// The runs whose bodies have ignored a cancel order for longer than `grace`. Excludes runs
    /// that wait for their commit: they have no body any more.
    pub(crate) fn overdue_cancels(&self, grace: Duration) -> Vec<Fence> {
        let is_unheeded = |run: &Run| {
            run.stop_signal.present().order == StopOrder::Cancel
                && !run.stop_signal.has_left_body.load(Ordering::Acquire)
                && run.stop_signal.cancelled.get().is_some_and(|since| since.elapsed() >= grace)
        };
        let inner = self.inner();
        let unheeded = inner.runs.iter().filter(|(_, run)| is_unheeded(run));
        unheeded.map(|(run_id, run)| Fence { run_id: *run_id, token: run.token }).collect()
    }

    /// Whether a run is in flight.
    pub(crate) fn has(&self, run_id: Uuid) -> bool {
        self.inner().runs.contains_key(&run_id)
    }

    /// Gives an order to one run. Orders to stop are final.
    pub(crate) fn stop(&self, run_id: Uuid, order: StopOrder) {
        if let Some(run) = self.inner().runs.get(&run_id) {
            run.stop_signal.send(order);
        }
    }

    /// Wakes one run, because something that it may wait for has arrived.
    pub(crate) fn wake(&self, run_id: Uuid) {
        if let Some(run) = self.inner().runs.get(&run_id) {
            run.stop_signal.wakeups.notify();
        }
    }

    /// Stops an attempt that has lost its lease. Does not stop a later attempt of the run.
    pub(crate) fn drop_attempt(&self, fence: Fence) {
        if let Some(run) = self.inner().runs.get(&fence.run_id).filter(|run| run.token == fence.token) {
            run.stop_signal.send(StopOrder::Drop);
        }
    }

    /// Gives an order to all runs.
    pub(crate) fn stop_all(&self, order: StopOrder) {
        for run in self.inner().runs.values() {
            run.stop_signal.send(order);
        }
    }

    /// Removes all runs: this worker is dead, and its tasks are gone.
    pub(crate) fn clear(&self) {
        // A task that still exists must not continue.
        self.stop_all(StopOrder::Drop);
        *self.inner() = Inner::default();
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        // Nothing panics while it holds the lock.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A run in flight and its slot. Dropping it frees both, however the attempt ends, also in a panic
/// of the engine. The next reconciliation then finds the remaining lease.
#[derive(Debug)]
pub(crate) struct Slot {
    in_flight: Arc<InFlight>,
    /// The attempt's right to write.
    pub(crate) fence: Fence,
    /// The orders for this run.
    pub(crate) stop_signal: Arc<StopSignal>,
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.in_flight.remove(self.fence);
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn fence(run_id: Uuid) -> Fence {
        Fence { run_id, token: Uuid::now_v7() }
    }

    /// The order to stop, if one was given.
    fn told(slot: &Slot) -> Option<StopOrder> {
        match pin!(slot.stop_signal.wait()).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(order) => Some(order),
            Poll::Pending => None,
        }
    }

    #[test]
    fn newer_attempt_of_run_stops_only_displaced_one() {
        let (in_flight, run_id) = (Arc::new(InFlight::new(2)), Uuid::now_v7());
        let displaced = in_flight.add(fence(run_id));
        let present = in_flight.add(fence(run_id));
        assert_eq!(told(&displaced), Some(StopOrder::Drop));
        in_flight.drop_attempt(displaced.fence);
        drop(displaced);
        assert_eq!(told(&present), None);
        assert!(in_flight.knows(present.fence), "the end of one attempt is not that of the other");
        in_flight.drop_attempt(present.fence);
        assert_eq!(told(&present), Some(StopOrder::Drop));
    }

    #[test]
    fn cancel_does_not_stop_running_compensation_but_release_does() {
        let in_flight = Arc::new(InFlight::new(1));
        let compensates = in_flight.add(fence(Uuid::now_v7()));
        compensates.stop_signal.begin_compensation();
        in_flight.stop(compensates.fence.run_id, StopOrder::Cancel);
        assert_eq!(told(&compensates), None);
        in_flight.stop(compensates.fence.run_id, StopOrder::Release);
        assert_eq!(told(&compensates), Some(StopOrder::Release), "a shutdown still stops it");
    }
}
