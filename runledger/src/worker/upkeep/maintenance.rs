//! Maintenance: the work of a worker for the whole fleet. It answers heartbeat replies, marks
//! workers dead, recovers their runs, and runs safety sweeps for everything that a lost message may
//! leave.
//!
//! [`super::failure_detector`] keeps the state between heartbeats and decides what silence proves.
//!
//! Every worker does maintenance; there is no leader. Each statement compares and writes at once,
//! so repeating it is harmless.

#![expect(clippy::large_futures, reason = "one of each in a worker")]

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::{PgConnection, Postgres};
use tokio::sync::{Mutex, Notify, mpsc, watch};
use tokio::time::Instant;
use uuid::Uuid;

use super::failure_detector::{AFTER_BURIAL, CLOCK_JUMP, Change, FailureDetector, until_next_net};
use super::orphans::{Adopted, adopt_orphans, release};
use crate::connection::db_timeout::has_timed_out;
use crate::connection::outage::{Recovery, warn_outage};
use crate::connection::session::Session;
use crate::connection::task;
use crate::definition::registry::Registry;
use crate::engine::wakes::Wakes;
use crate::model::payload::Sealer;
use crate::model::run::settle::{Outcome, RetryPolicy, settle};
use crate::store::attempt::settle as settlement;
use crate::store::attempt::settle::Settled;
use crate::store::attempt::wait;
use crate::store::error::spares_others;
use crate::store::operator::cancel;
use crate::store::operator::{config, overrides};
use crate::store::places::has_repaired;
use crate::store::session::failover::ServerEpoch;
use crate::store::worker::cancel_requests::{CarriedOut, Requests};
use crate::store::worker::set_aside::{SetAside, TURN};
use crate::store::worker::{self, HeartbeatReply, Lease, deadlines, pauses, wakes};
use crate::worker::in_flight::{InFlight, StopOrder};
use crate::worker::timings::Timings;

/// The most rows that one statement of a safety sweep takes.
pub(crate) const BATCH: i64 = 200;

/// How long maintenance skips a silent worker that it could not examine.
const LEFT_OUT: Duration = Duration::from_secs(5);

/// Why a registration ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WorkerExit {
    /// It has not ended.
    Alive,
    /// An operator requested a drain.
    Drain,
    /// The worker was declared dead.
    Dead,
    /// A promoted server replaced the one on which the registration began.
    Moved,
    /// A task of the worker panicked.
    Broken,
}

impl WorkerExit {
    /// Whether this registration must not write any more.
    pub(crate) fn is_lost(self) -> bool {
        match self {
            Self::Dead | Self::Moved => true,
            Self::Alive | Self::Drain | Self::Broken => false,
        }
    }
}

pub(crate) struct Maintenance {
    pub(crate) session: Session,
    pub(crate) worker_id: i64,
    pub(crate) timings: Timings,
    pub(crate) registry: Arc<Registry>,
    /// Begun before the first session of this registration.
    pub(crate) era: Arc<ServerEpoch>,
    pub(crate) in_flight: Arc<InFlight>,
    /// How long a cancelled body may take to stop.
    pub(crate) cancel_grace: Duration,
    /// Wakes the claimer.
    pub(crate) wake: Arc<Notify>,
    /// Notified when the reply to a claim was lost.
    pub(crate) doubt: Arc<Notify>,
    pub(crate) wakes: Wakes,
    pub(crate) fate: watch::Sender<WorkerExit>,
    pub(crate) stop: watch::Receiver<bool>,
    /// Whether the start of this worker marked others dead.
    pub(crate) has_buried: bool,
    /// The pause before the first safety sweeps.
    pub(crate) idle: Duration,
    pub(crate) cancel_requests: Mutex<Requests>,
    pub(crate) failing: Mutex<Failing>,
}

/// The runs that each kind of maintenance sets aside. A run that fails one kind delays no other
/// kind.
#[derive(Debug, Default)]
pub(crate) struct Failing {
    orphans: SetAside,
    unknown: SetAside,
    stranded: SetAside,
    timers: SetAside,
    deadlines: SetAside,
    pauses: SetAside,
    unheeded: SetAside,
    /// Cancelled runs with a locked lease that a warning has already named.
    locked: HashSet<Uuid>,
}

/// The result of examining a silent worker.
enum Finding {
    /// It was dead and is now marked dead.
    Buried,
    /// It becomes suspect after this time, unless it sends a heartbeat.
    SuspectIn(Duration),
    /// It is alive, or nothing proves that it is dead.
    Nothing,
}

impl Maintenance {
    /// Works until the worker stops.
    pub(crate) async fn run(self, mut replies: mpsc::Receiver<HeartbeatReply>) {
        let mut stop = self.stop.clone();
        let mut detector = FailureDetector::default();
        let mut next_net = Instant::now() + self.idle;
        if self.has_buried {
            detector.expect_leftovers();
        }
        loop {
            let suspicion = detector.suspicion.as_ref().map(|(at, _)| *at);
            let nets = detector.nets.next().map_or(next_net, |due| due.min(next_net));
            tokio::select! {
                // Chores come last, when nothing else is ready.
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
                    let swept = self.with(&mut detector, "nets", Self::run_safety_sweeps).await;
                    let took = swept.map(|(took, _)| took);
                    detector.chores.orphans = true;
                    detector.chores.cancels = true;
                    detector.chores.stranded |= swept.is_some_and(|(_, are_woken)| !are_woken);
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
            // Some sessions may still lead to the old server, which still acknowledges. The runs in
            // flight may depend on records that the promoted server lacks.
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
        detector.chores.pauses |= reply.pauses_left;
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
        // A dead worker is more urgent than the rest.
        if !reply.silent.is_empty() {
            self.mark_dead(&reply.silent, detector).await;
        }
        let is_said_anew = detector.overrides.as_ref() != Some(&reply.overrides);
        if is_said_anew && self.with(detector, "overrides", Self::read_overrides).await.is_some() {
            detector.overrides = Some(reply.overrides);
            // An override may allow claims of a job again.
            self.wake.notify_one();
        }
        let is_configured_anew = detector.configs.as_ref() != Some(&reply.configs);
        if is_configured_anew && self.with(detector, "configurations", Self::read_configs).await.is_some() {
            detector.configs = Some(reply.configs);
        }
        if !self.in_flight.overdue_cancels(self.cancel_grace).is_empty() {
            self.with(detector, "cancels that are not heeded", Self::end_by_force).await;
            // Children of these runs may still be running.
            detector.chores.cancels = true;
        }
    }

    /// Does a part of each pending chore.
    async fn do_chores(&self, detector: &mut FailureDetector) {
        if detector.chores.pauses {
            detector.chores.pauses =
                self.with(detector, "pauses", Self::carry_out_pauses).await == Some(false);
        }
        if detector.chores.orphans {
            let is_done = self.with(detector, "orphans", Self::recover_orphans).await;
            detector.chores.orphans = is_done == Some(false);
            if is_done.is_none() {
                detector.nets.plan(Instant::now() + AFTER_BURIAL);
            }
        }
        if detector.chores.timers {
            detector.chores.timers = self.with(detector, "timers", Self::wake_due).await == Some(false);
        }
        if detector.chores.deadlines {
            detector.chores.deadlines =
                self.with(detector, "deadlines", Self::end_overdue).await == Some(false);
            // Children of the cancelled runs may still be running.
            detector.chores.cancels = true;
        }
        if detector.chores.cancels {
            detector.chores.cancels = self.with(detector, "cancels", Self::carry_out).await == Some(false);
        }
        if detector.chores.stranded {
            detector.chores.stranded =
                self.with(detector, "lost wake-ups", Self::wake_stranded).await == Some(false);
        }
    }

    /// Ends cancelled runs whose bodies block their threads and so cannot be dropped. Later writes
    /// of these bodies have no effect.
    async fn end_by_force(&self, connection: &mut PgConnection) -> Result<(), sqlx::Error> {
        let unheeded = self.in_flight.overdue_cancels(self.cancel_grace);
        let leases = worker::held(connection, self.worker_id).await?;
        let Failing { unheeded: aside, locked, .. } = &mut *self.failing.lock().await;
        locked.retain(|run_id| unheeded.iter().any(|fence| fence.run_id == *run_id));
        let left_out = aside.runs();
        for fence in unheeded {
            // A run without a lease has ended, or another worker has it. Only the attempt remains.
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
                // If this try times out, the next one skips the run.
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

    /// Settles a run as cancelled while its body still runs. Returns false if the database refuses
    /// this for now.
    async fn settle_by_force(
        &self,
        connection: &mut PgConnection,
        lease: &Lease,
    ) -> Result<bool, sqlx::Error> {
        let above = wait::above(connection, lease.run_id).await?;
        let outcome = Outcome::Cancelled(cancel::failure(None));
        let settlement = settle(outcome, lease.counters, &RetryPolicy::NOT_ASKED, 0.0);
        // The engine's own texts are never encrypted.
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

    /// Marks dead workers among the silent ones, and recovers their runs. Examines the others again
    /// when they become suspect.
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
            detector.expect_leftovers();
        }
    }

    /// Marks a silent worker dead if there is evidence.
    ///
    /// A free lock is evidence if the worker is suspect and took the lock in this incarnation of
    /// the server. An expired lease is evidence if this worker can trust its own clock.
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

    /// Recovers runs of dead workers. Returns false if some may remain.
    async fn recover_orphans(&self, connection: &mut PgConnection) -> Result<bool, sqlx::Error> {
        let Adopted { n_runs, is_done } =
            adopt_orphans(connection, &mut self.failing.lock().await.orphans, Some(&self.wakes)).await?;
        if n_runs > 0 {
            self.wake.notify_one();
        }
        Ok(is_done)
    }

    /// Compares this worker's leases in the database with its runs in flight. They differ after a
    /// lost reply to a claim, or after a failover.
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

    /// Makes the silence of workers count again after the clock has jumped back, which left their
    /// heartbeats in the future.
    async fn clamp_future_heartbeats(&self, connection: &mut PgConnection) -> Result<(), sqlx::Error> {
        worker::clamp_future_heartbeats(connection, CLOCK_JUMP.as_secs_f64()).await
    }

    /// Cancels runs that left their workers before the request arrived. Returns false if some
    /// remain.
    async fn carry_out(&self, connection: &mut PgConnection) -> Result<bool, sqlx::Error> {
        let mut requests = self.cancel_requests.lock().await;
        let CarriedOut { is_done, to_wake } = requests.carry_out(connection, BATCH, TURN).await?;
        self.wakes.owe(to_wake);
        Ok(is_done)
    }

    /// Pauses runs that left their workers before the request arrived. Returns false if some
    /// remain.
    async fn carry_out_pauses(&self, connection: &mut PgConnection) -> Result<bool, sqlx::Error> {
        pauses::carry_out(connection, &mut self.failing.lock().await.pauses, BATCH, TURN).await
    }

    /// Ends runs whose deadline has passed. Returns false if some may remain.
    async fn end_overdue(&self, connection: &mut PgConnection) -> Result<bool, sqlx::Error> {
        let mut failing = self.failing.lock().await;
        let mut to_wake = Vec::new();
        let is_done =
            deadlines::carry_out(connection, &mut failing.deadlines, BATCH, TURN, &mut to_wake).await;
        self.wakes.owe(to_wake);
        is_done
    }

    /// Queues runs whose wait has ended. Returns false if some may remain.
    async fn wake_due(&self, connection: &mut PgConnection) -> Result<bool, sqlx::Error> {
        let n_due = wakes::wake_due(connection, &mut self.failing.lock().await.timers, BATCH, TURN).await?;
        if n_due > 0 {
            self.wake.notify_one();
        }
        Ok(n_due == 0)
    }

    /// Queues runs whose wake-up was lost. Returns false if some may remain.
    async fn wake_stranded(&self, connection: &mut PgConnection) -> Result<bool, sqlx::Error> {
        wakes::wake_stranded(connection, &mut self.failing.lock().await.stranded, BATCH, TURN).await
    }

    /// Runs the safety sweeps. Each looks for a state that should not exist, and usually finds
    /// nothing. Returns their duration, and whether the wake-ups are complete.
    async fn run_safety_sweeps(
        &self,
        connection: &mut PgConnection,
    ) -> Result<(Duration, bool), sqlx::Error> {
        let began = Instant::now();
        // The clock may have jumped back before this process started. Later jumps have their own
        // check.
        self.clamp_future_heartbeats(connection).await?;
        self.reconcile(connection).await?;
        let are_woken = self.wake_stranded(connection).await?;
        Ok((began.elapsed(), are_woken))
    }

    /// Runs work on the maintenance connection. Logs a failure and returns `None`.
    async fn with<T, F>(&self, detector: &mut FailureDetector, what: &'static str, work: F) -> Option<T>
    where
        F: AsyncFn(&Self, &mut PgConnection) -> Result<T, sqlx::Error>,
    {
        let was_kept = detector.connection.is_some();
        let mut done = self.on_connection(detector, &work).await;
        if was_kept && done.as_ref().is_err_and(|error| !has_timed_out(error)) {
            // The idle connection had died. Retry at once, because the next occasion may be far
            // away.
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

    async fn read_overrides(&self, connection: &mut PgConnection) -> Result<(), sqlx::Error> {
        self.registry.set_overrides(overrides::all(connection).await?);
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

    /// Keeps the connection if the pool is large enough. Then the recovery of a dead worker's runs
    /// does not wait for bodies that hold all other connections.
    fn keep(&self, detector: &mut FailureDetector, connection: PoolConnection<Postgres>) {
        if self.session.has_room() {
            detector.connection = Some(connection);
        }
    }
}
