//! Maintenance: what a worker does for the fleet beside running runs. It answers to heartbeats, finds dead workers, gives their runs back, and keeps
//! the nets under everything that a lost message could leave behind.
//!
//! What it remembers from one heartbeat to the next, and what that proves, is in [`super::memory`].
//!
//! Every worker does it; there is no leader. Each statement is a comparison and a write in one, so doing it twice is harmless.

#![expect(clippy::large_futures, reason = "one of each in a worker")]

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::{PgConnection, Postgres};
use tokio::sync::{Mutex, Notify, mpsc, watch};
use tokio::time::Instant;
use uuid::Uuid;

use super::failure_detector::{CLOCK_JUMP, Change, FailureDetector, until_next_net};
use crate::connection::outage::{Recovery, warn_outage};
use crate::connection::session::Session;
use crate::connection::task;
use crate::definition::registry::Registry;
use crate::engine::step::unit_random;
use crate::engine::wakes::Wakes;
use crate::model::payload::Sealer;
use crate::model::settle::{Outcome, RetryPolicy, settle};
use crate::store::cancel::{self, CarriedOut, Requests};
use crate::store::error::spares_others;
use crate::store::failover::ServerEpoch;
use crate::store::places::has_repaired;
use crate::store::set_aside::SetAside;
use crate::store::settle::Settled;
use crate::store::worker::{self, HeartbeatReply, Lease, Orphan};
use crate::store::{config, deadline, pause, settle as settlement, tuning, wait};
use crate::worker::in_flight::{InFlight, StopOrder};
use crate::worker::timings::Timings;

/// How many rows one statement of a net takes at most.
const BATCH: i64 = 200;

/// The same of deadlines: each costs a transaction.
const OVERDUE: i64 = 50;

/// How long maintenance cancels or pauses runs at once. In this time it answers no heartbeat and buries no worker.
const TURN: Duration = Duration::from_millis(500);

/// How long a silent worker is left out that could not be examined.
const LEFT_OUT: Duration = Duration::from_secs(5);

/// How long after the burial of a worker the nets are cast at the latest. The worker may have settled a run and died before it woke
/// the parent. `stranded.sql` finds such a parent once the parent has waited for so long.
const AFTER_BURIAL: Duration = Duration::from_secs(5);

/// How a worker's life under one number ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WorkerExit {
    /// It goes on.
    Alive,
    /// Somebody asked it to drain.
    Drain,
    /// It was declared dead.
    Dead,
    /// A promoted server was met in the place of the one that it began on.
    Moved,
    /// A task of it has panicked.
    Broken,
}

impl WorkerExit {
    /// Whether nothing of this life may be written any more.
    pub(crate) fn is_lost(self) -> bool {
        match self {
            Self::Dead | Self::Moved => true,
            Self::Alive | Self::Drain | Self::Broken => false,
        }
    }
}

/// The maintenance of one worker.
pub(crate) struct Maintenance {
    pub(crate) session: Session,
    pub(crate) worker_id: i64,
    pub(crate) timings: Timings,
    pub(crate) registry: Arc<Registry>,
    /// Begun before the first session of this life.
    pub(crate) era: Arc<ServerEpoch>,
    pub(crate) in_flight: Arc<InFlight>,
    /// How long a run may take to heed its cancel.
    pub(crate) cancel_grace: Duration,
    /// Wakes the claimer.
    pub(crate) wake: Arc<Notify>,
    /// Told when the reply to a claim was lost.
    pub(crate) doubt: Arc<Notify>,
    pub(crate) wakes: Wakes,
    pub(crate) fate: watch::Sender<WorkerExit>,
    pub(crate) stop: watch::Receiver<bool>,
    /// Whether the start of this worker has buried others.
    pub(crate) has_buried: bool,
    /// How long it is before the first nets are cast.
    pub(crate) idle: Duration,
    pub(crate) cancel_requests: Mutex<Requests>,
    pub(crate) failing: Mutex<Failing>,
}

/// The runs that each kind of maintenance sets aside. A run for which one kind fails delays no other kind.
#[derive(Debug, Default)]
pub(crate) struct Failing {
    orphans: SetAside,
    unknown: SetAside,
    stranded: SetAside,
    timers: SetAside,
    deadlines: SetAside,
    pauses: SetAside,
    unheeded: SetAside,
    /// Cancelled runs with a locked lease that a warning has named.
    locked: HashSet<Uuid>,
}

/// What an examination of a silent worker finds.
enum Finding {
    /// It is dead, and buried now.
    Buried,
    /// It becomes suspect after this time, should it stay silent.
    SuspectIn(Duration),
    /// It lives, or nothing proves that it does not.
    Nothing,
}

impl Maintenance {
    /// Works until told to stop.
    pub(crate) async fn run(self, mut replies: mpsc::Receiver<HeartbeatReply>) {
        let mut stop = self.stop.clone();
        let mut detector = FailureDetector::default();
        let mut next_net = Instant::now() + self.idle;
        if self.has_buried {
            detector.nets.plan(Instant::now() + AFTER_BURIAL);
        }
        loop {
            let suspicion = detector.suspicion.as_ref().map(|(at, _)| *at);
            let nets = detector.nets.next().map_or(next_net, |due| due.min(next_net));
            tokio::select! {
                // Chores are done while there is nothing else to do.
                biased;
                () = task::raised(&mut stop) => return,
                reply = replies.recv() => {
                    let Some(reply) = reply else { return };
                    self.answer(reply, &mut detector).await;
                }
                () = self.doubt.notified() => {
                    self.with(&mut detector, "reconcile", Self::reconcile).await;
                }
                () = tokio::time::sleep_until(nets) => {
                    detector.nets.cast(Instant::now());
                    let took = self.with(&mut detector, "nets", Self::run_safety_sweeps).await;
                    detector.chores.cancels = true;
                    next_net = Instant::now() + until_next_net(took, self.timings.lease);
                }
                () = tokio::time::sleep_until(suspicion.unwrap_or(nets)), if suspicion.is_some() => {
                    let silent = detector.suspicion.take().map_or_else(Vec::new, |(_, silent)| silent);
                    self.mark_dead(&silent, &mut detector).await;
                }
                () = std::future::ready(()), if detector.chores.any() => self.do_chores(&mut detector).await,
            }
        }
    }

    async fn answer(&self, reply: HeartbeatReply, detector: &mut FailureDetector) {
        if !reply.alive {
            tracing::error!(
                "this worker was declared dead (it was silent for longer than its lease, or lost the session that holds its lock), or a failover lost \
                 its row; it takes a new number"
            );
            self.in_flight.stop_all(StopOrder::Drop);
            let _ = self.fate.send(WorkerExit::Dead);
            return;
        }
        if self.era.is_over() {
            // Some of its sessions may still lead to the old server, which goes on acknowledging, and what it has in hand may rest on records that the
            // promoted one has not.
            tracing::warn!(
                "a promoted server has taken the place of the one that this worker began on; what it has in hand goes on from the record of that one"
            );
            self.in_flight.stop_all(StopOrder::Drop);
            self.fate.send_if_modified(|fate| {
                let is_alive = *fate == WorkerExit::Alive;
                if is_alive {
                    *fate = WorkerExit::Moved;
                }
                is_alive
            });
            return;
        }
        if reply.draining {
            self.fate
                .send_if_modified(|fate| std::mem::replace(fate, WorkerExit::Drain) == WorkerExit::Alive);
        }
        detector.chores.cancels |= reply.cancels_left;
        detector.chores.timers |= reply.timers_due;
        detector.chores.deadlines |= reply.deadlines_due;
        let Change { jumped_back, is_new_server } = detector.remember(&reply, &self.timings);
        if jumped_back {
            self.with(detector, "clock", Self::clamp_future_heartbeats).await;
        }
        if is_new_server {
            self.with(detector, "reconcile", Self::reconcile).await;
        }
        // A dead worker is more urgent than what follows.
        if !reply.silent.is_empty() {
            self.mark_dead(&reply.silent, detector).await;
        }
        let is_said_anew = detector.tunings.as_ref() != Some(&reply.tunings);
        if is_said_anew && self.with(detector, "tunings", Self::read_tunings).await.is_some() {
            detector.tunings = Some(reply.tunings);
            // A job may be claimed again.
            self.wake.notify_one();
        }
        let is_configured_anew = detector.configs.as_ref() != Some(&reply.configs);
        if is_configured_anew && self.with(detector, "configurations", Self::read_configs).await.is_some() {
            detector.configs = Some(reply.configs);
        }
        if reply.pauses_left {
            self.with(detector, "pauses", Self::carry_out_pauses).await;
        }
        if !self.in_flight.overdue_cancels(self.cancel_grace).is_empty() {
            self.with(detector, "cancels that are not heeded", Self::end_by_force).await;
            // Runs below them may go on.
            detector.chores.cancels = true;
        }
    }

    /// Does a part of each chore that is left.
    async fn do_chores(&self, detector: &mut FailureDetector) {
        if detector.chores.timers {
            detector.chores.timers = self.with(detector, "timers", Self::wake_due).await == Some(false);
        }
        if detector.chores.deadlines {
            detector.chores.deadlines =
                self.with(detector, "deadlines", Self::end_overdue).await == Some(false);
            // Runs below the cancelled ones may go on.
            detector.chores.cancels = true;
        }
        if detector.chores.cancels {
            detector.chores.cancels = self.with(detector, "cancels", Self::carry_out).await == Some(false);
        }
    }

    /// Ends runs as cancelled whose bodies block their threads, and so are not dropped: nothing that these write afterwards counts.
    async fn end_by_force(&self, connection: &mut PgConnection) -> Result<(), sqlx::Error> {
        let unheeded = self.in_flight.overdue_cancels(self.cancel_grace);
        let leases = worker::held(connection, self.worker_id).await?;
        let Failing { unheeded: aside, locked, .. } = &mut *self.failing.lock().await;
        locked.retain(|run_id| unheeded.iter().any(|fence| fence.run_id == *run_id));
        let left_out = aside.runs();
        for fence in unheeded {
            // A run without a lease has ended already, or another worker has it: only the attempt is left.
            if let Some(lease) = leases.iter().find(|lease| lease.fence() == fence) {
                if left_out.contains(&fence.run_id) {
                    continue;
                }
                if worker::without_locked(connection, &[*lease]).await?.is_empty() {
                    if locked.insert(fence.run_id) {
                        tracing::warn!(run_id = %fence.run_id, "a cancelled run cannot be ended yet: another transaction locks its lease; maintenance tries again");
                    }
                    continue;
                }
                // If this try is given up, the next one leaves the run out.
                aside.add(fence.run_id, Duration::ZERO);
                if !self.settle_by_force(connection, lease).await? {
                    continue;
                }
                tracing::warn!(
                    run_id = %fence.run_id, grace = ?self.cancel_grace,
                    "a cancelled run has not come to an await: it is ended without its body, which keeps its slot and its thread until it yields; \
                     move what blocks to `tokio::task::spawn_blocking`"
                );
            }
            self.in_flight.drop_attempt(fence);
        }
        Ok(())
    }

    /// Settles a run as cancelled while its body goes on. False if the database refuses this for now.
    async fn settle_by_force(
        &self,
        connection: &mut PgConnection,
        lease: &Lease,
    ) -> Result<bool, sqlx::Error> {
        let above = wait::above(connection, lease.run_id).await?;
        let outcome = Outcome::Cancelled(cancel::failure(None));
        let settlement = settle(outcome, lease.counters, &RetryPolicy::NOT_ASKED, 0.0);
        // The engine's own words are never sealed.
        let item = Settled::new(lease.fence(), settlement, &Sealer::default());
        let item = item.below(above).of_saga(true);
        match settlement::settle(connection, &[&item]).await {
            Ok(batch) => {
                self.wakes.owe(batch.owed);
                Ok(true)
            }
            Err(error) if spares_others(&error) => {
                tracing::warn!(%error, run_id = %lease.run_id, "a cancelled run cannot be ended yet; maintenance tries again");
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Buries those silent workers that are dead, and gives their runs back. Looks again when the others become suspect.
    async fn mark_dead(&self, silent: &[i64], detector: &mut FailureDetector) {
        let mut n_buried = 0;
        detector.suspicion = None;
        let now = Instant::now();
        detector.left_out.retain(|_, until| now < *until);
        for suspect in silent {
            if detector.left_out.contains_key(suspect) {
                continue;
            }
            match self.examine(*suspect, detector).await {
                Ok(Finding::Buried) => n_buried += 1,
                Ok(Finding::SuspectIn(delay)) => detector.suspect(*suspect, Instant::now() + delay),
                Ok(Finding::Nothing) => {}
                Err(error) => {
                    if spares_others(&error) {
                        detector.left_out.insert(*suspect, Instant::now() + LEFT_OUT);
                    }
                    warn_outage!(detector.outages.entry("examination").or_default(), %error, suspect, "a silent worker could not be examined");
                }
            }
        }
        if n_buried > 0 {
            self.with(detector, "orphans", Self::recover_orphans).await;
            // Some of the orphans may have been asked to be cancelled.
            detector.chores.cancels = true;
            detector.nets.plan(Instant::now() + AFTER_BURIAL);
        }
    }

    /// Whether a silent worker is dead. It is where its lock is free, was taken in this incarnation of the server, and it is suspect; or where
    /// its lease is over, and our own idea of time can be trusted.
    async fn examine(&self, suspect: i64, detector: &mut FailureDetector) -> Result<Finding, sqlx::Error> {
        let mut connection = self.take_connection(detector).await?;
        let finding = self.session.with_timeout(self.examine_on(&mut connection, suspect, detector)).await?;
        self.keep(detector, connection);
        Ok(finding)
    }

    async fn examine_on(
        &self,
        connection: &mut PgConnection,
        suspect: i64,
        detector: &FailureDetector,
    ) -> Result<Finding, sqlx::Error> {
        let Some(silence) = worker::silence(connection, suspect).await? else {
            return Ok(Finding::Nothing);
        };
        let lease = self.timings.lease.as_secs_f64();
        if detector.is_dead(&silence, &self.timings) {
            let buried = worker::bury_if_silent(connection, suspect, lease, "its lease was over").await?;
            if buried {
                tracing::warn!(
                    worker_id = suspect,
                    silence = silence.seconds,
                    "a worker is dead: its lease is over"
                );
            }
            return Ok(if buried { Finding::Buried } else { Finding::Nothing });
        }
        let suspect_after = self.timings.suspect.as_secs_f64();
        if silence.seconds < suspect_after {
            return Ok(Finding::SuspectIn(Duration::from_secs_f64(suspect_after - silence.seconds)));
        }
        if !silence.lock_is_evidence {
            return Ok(Finding::Nothing);
        }
        let buried =
            worker::bury_if_unlocked(connection, suspect, suspect_after, "its session lock was free").await?;
        if buried {
            tracing::warn!(
                worker_id = suspect,
                silence = silence.seconds,
                "a worker is dead: its session lock is free"
            );
        }
        Ok(if buried { Finding::Buried } else { Finding::Nothing })
    }

    /// Gives back the runs of dead workers.
    async fn recover_orphans(&self, connection: &mut PgConnection) -> Result<(), sqlx::Error> {
        let n_adopted =
            adopt_orphans(connection, &mut self.failing.lock().await.orphans, Some(&self.wakes)).await?;
        if n_adopted > 0 {
            self.wake.notify_one();
        }
        Ok(())
    }

    /// Compares what the database believes this worker holds with what it does hold. A lost reply to a claim, or a failover, makes them differ.
    async fn reconcile(&self, connection: &mut PgConnection) -> Result<(), sqlx::Error> {
        let before = self.in_flight.fences();
        let leases = worker::held(connection, self.worker_id).await?;
        for fence in before {
            if !leases.iter().any(|lease| lease.fence() == fence) {
                self.in_flight.drop_attempt(fence);
            }
        }
        let mut unknown = leases;
        let aside = &mut self.failing.lock().await.unknown;
        let set_aside = aside.runs();
        unknown.retain(|lease| !set_aside.contains(&lease.run_id));
        unknown.retain(|lease| !self.in_flight.knows(lease.fence()));
        let unknown = worker::without_locked(connection, &unknown).await?;
        if !unknown.is_empty() {
            tracing::info!(
                n_runs = unknown.len(),
                "runs whose claim was not acknowledged go back to their queues"
            );
            let runs: Vec<Uuid> = unknown.iter().map(|lease| lease.run_id).collect();
            let unknown: Arc<[Lease]> = unknown.into();
            let release = async move |connection: &mut PgConnection, runs: &[Uuid]| {
                let leases = unknown.iter().filter(|lease| runs.contains(&lease.run_id)).copied().collect();
                release(connection, leases).await?;
                Ok(Vec::new())
            };
            aside.spare(connection, &runs, release).await?;
            self.wake.notify_one();
        }
        Ok(())
    }

    /// Lets the silence of workers count whose heartbeats lie in the future since the clock has jumped back.
    async fn clamp_future_heartbeats(&self, connection: &mut PgConnection) -> Result<(), sqlx::Error> {
        worker::clamp_future_heartbeats(connection, CLOCK_JUMP.as_secs_f64()).await
    }

    /// Cancels runs that left their workers before these heard of the request. False where others are left.
    async fn carry_out(&self, connection: &mut PgConnection) -> Result<bool, sqlx::Error> {
        let mut requests = self.cancel_requests.lock().await;
        let CarriedOut { is_done, to_wake } = requests.carry_out(connection, BATCH, TURN).await?;
        self.wakes.owe(to_wake);
        Ok(is_done)
    }

    /// Pauses runs that left their workers before these heard of the request.
    async fn carry_out_pauses(&self, connection: &mut PgConnection) -> Result<(), sqlx::Error> {
        pause::carry_out(connection, &mut self.failing.lock().await.pauses, BATCH, TURN).await
    }

    /// Ends runs whose deadline is over. False where others may be left.
    async fn end_overdue(&self, connection: &mut PgConnection) -> Result<bool, sqlx::Error> {
        let mut failing = self.failing.lock().await;
        let CarriedOut { is_done, to_wake } =
            deadline::carry_out(connection, &mut failing.deadlines, OVERDUE, TURN).await?;
        self.wakes.owe(to_wake);
        Ok(is_done)
    }

    /// Queues runs whose wait is over. False where others may be left.
    async fn wake_due(&self, connection: &mut PgConnection) -> Result<bool, sqlx::Error> {
        let n_due = wait::wake_due(connection, &mut self.failing.lock().await.timers, BATCH).await?;
        if n_due > 0 {
            self.wake.notify_one();
        }
        Ok(n_due == 0)
    }

    /// The nets: each finds what should not be there, and usually finds nothing. Returns how long they took.
    async fn run_safety_sweeps(&self, connection: &mut PgConnection) -> Result<Duration, sqlx::Error> {
        let began = Instant::now();
        // Whoever jumped back with the clock before this process came is found here, and all others when they jump.
        self.clamp_future_heartbeats(connection).await?;
        self.recover_orphans(connection).await?;
        wait::wake_stranded(connection, &mut self.failing.lock().await.stranded, BATCH).await?;
        self.reconcile(connection).await?;
        Ok(began.elapsed())
    }

    /// What the work gives. None where it failed, which is logged.
    async fn with<T, F>(&self, detector: &mut FailureDetector, what: &'static str, work: F) -> Option<T>
    where
        F: AsyncFn(&Self, &mut PgConnection) -> Result<T, sqlx::Error>,
    {
        let was_kept = detector.connection.is_some();
        let mut done = self.on_connection(detector, &work).await;
        if was_kept && done.is_err() {
            // The connection had died while nobody used it; what was asked for must not wait for the next occasion.
            done = self.on_connection(detector, &work).await;
        }
        let outage = detector.outages.entry(what).or_default();
        match done {
            Ok(done) => {
                if let Some(Recovery { n_failures, lasted }) = outage.succeeded() {
                    tracing::info!(what, n_failures, ?lasted, "maintenance reaches the database again");
                }
                Some(done)
            }
            Err(error) => {
                warn_outage!(&outage, %error, what, "maintenance fails; it tries again");
                None
            }
        }
    }

    async fn read_tunings(&self, connection: &mut PgConnection) -> Result<(), sqlx::Error> {
        self.registry.set_overrides(tuning::all(connection).await?);
        Ok(())
    }

    async fn read_configs(&self, connection: &mut PgConnection) -> Result<(), sqlx::Error> {
        self.registry.configure(config::all(connection).await?.into_iter().collect());
        Ok(())
    }

    async fn on_connection<T, F>(&self, detector: &mut FailureDetector, work: &F) -> Result<T, sqlx::Error>
    where
        F: AsyncFn(&Self, &mut PgConnection) -> Result<T, sqlx::Error>,
    {
        let mut connection = self.take_connection(detector).await?;
        let done = match self.session.with_timeout(work(self, &mut connection)).await {
            Err(error) if self.session.with_timeout(has_repaired(&mut connection, &error, &[])).await? => {
                self.session.with_timeout(work(self, &mut connection)).await?
            }
            done => done?,
        };
        self.keep(detector, connection);
        Ok(done)
    }

    async fn take_connection(
        &self,
        detector: &mut FailureDetector,
    ) -> Result<PoolConnection<Postgres>, sqlx::Error> {
        match detector.connection.take() {
            Some(connection) => Ok(connection),
            None => self.session.open().await,
        }
    }

    /// Keeps a connection where the pool has room: bodies that hold all the others must not keep the runs of a dead worker from the living.
    fn keep(&self, detector: &mut FailureDetector, connection: PoolConnection<Postgres>) {
        if self.session.has_room() {
            detector.connection = Some(connection);
        }
    }
}

/// Gives runs back to their queues.
pub(crate) async fn release(connection: &mut PgConnection, leases: Vec<Lease>) -> Result<(), sqlx::Error> {
    let released = |lease: Lease| {
        let settlement = settle(Outcome::Released, lease.counters, &RetryPolicy::NOT_ASKED, 0.0);
        Settled::new(lease.fence(), settlement, &Sealer::default())
    };
    let settled: Vec<Settled> = leases.into_iter().map(released).collect();
    settlement::settle(connection, &settled.iter().collect::<Vec<_>>()).await.map(drop)
}

/// Settles runs of dead workers as crashed or cancelled, until there are none. It does not cancel the runs below them: the
/// next pulse reports their requests. Without `wakes`, the next net finds the parents that could not be woken.
pub(crate) async fn adopt_orphans(
    connection: &mut PgConnection,
    aside: &mut SetAside,
    wakes: Option<&Wakes>,
) -> Result<usize, sqlx::Error> {
    let (mut n_adopted, mut left_out) = (0, aside.runs());
    loop {
        let orphaned = worker::orphaned(connection, BATCH, &left_out).await?;
        if orphaned.is_empty() {
            return Ok(n_adopted);
        }
        let settle = async |connection: &mut PgConnection, runs: &[Uuid]| {
            settlement::settle_orphans(connection, runs, crashed).await
        };
        let owed = aside.spare(connection, &orphaned, settle).await?.done;
        if let Some(wakes) = wakes {
            wakes.owe(owed);
        }
        n_adopted += orphaned.len();
        left_out.extend(orphaned);
    }
}

fn crashed(orphan: &Orphan) -> Settled {
    let outcome = if orphan.cancel_requested {
        Outcome::Cancelled(cancel::failure(None))
    } else {
        Outcome::Crashed { progressed: orphan.progressed, blame: orphan.blame }
    };
    let fence = orphan.lease.fence();
    let settlement = settle(outcome, orphan.lease.counters, &RetryPolicy::NOT_ASKED, unit_random());
    // A crash is told in the engine's own words, which are never sealed.
    Settled::new(fence, settlement, &Sealer::default()).below(orphan.above).of_saga(true)
}
