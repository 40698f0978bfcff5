//! The claimer: the task of a process that claims runs, in batches, from a cursor per lane.
//!
//! A claim starts after the last run that was claimed in each lane, so it never reads the dead
//! entries before it. Claims stay fast while an old snapshot holds back vacuum.
//!
//! Cursors miss late commits with an earlier instant, retries, and new lanes. A *scan* finds those:
//! it reads each lane from its start. A fast scan follows every empty claim. Slow scans are rare
//! and run beside the claims ([`Scanner`](super::backlog_scan::Scanner)).

use std::sync::Arc;
use std::time::Duration;

use sqlx::PgConnection;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;
use uuid::Uuid;

use super::claim_cursors::{ClaimState, KnownAs, after};
use super::permits::lowest_of_full;
use super::trial::is_suspect;
use crate::connection::outage::{Recovery, warn_outage};
use crate::connection::session::Session;
use crate::connection::task;
use crate::definition::registry::Registry;
use crate::model::timestamp::Timestamp;
use crate::store::attempt::checkpoint::Fence;
use crate::store::worker::claim::{Claimed, Lane, Position, Reading, claim, lanes};
use crate::store::worker::set_aside::TURN;
use crate::store::worker::{self, wakes};
use crate::worker::execute::executor::{Executor, unknown_job};
use crate::worker::in_flight::{Slot, StopOrder};
use crate::worker::process_workers::ProcessWorkers;
use crate::worker::timings::Timings;

/// After its last run, a worker that gets no notifications claims again after this pause. The pause
/// doubles up to [`SLEEP_AFTER`]. Then the worker records that it sleeps, and waits for a wake-up.
///
/// At one run per millisecond no worker sleeps, so no enqueue notifies. At one run every 10 ms each
/// enqueue notifies, and its run starts when the notification arrives.
pub(crate) const FIRST_PAUSE: Duration = Duration::from_millis(1);
const SLEEP_AFTER: Duration = Duration::from_millis(4);

/// The first pause of a sleeping worker before it polls. Each further pause is four times as long,
/// up to the poll interval.
///
/// A transaction that began before the worker recorded its sleep does not notify, and may commit
/// after the last scan. Polling limits the delay of its runs to the length of the transaction.
/// While scans are slow, the next scan finds them.
pub(crate) const FIRST_IDLE_POLL: Duration = Duration::from_millis(16);

/// A woken worker records that it is awake after working for this long, or when it has no free
/// slot. Each change of that record leaves a dead row. Under an old snapshot these rows slow every
/// claim and enqueue; the extra notifications cost less.
const AWAKE_AFTER: Duration = Duration::from_millis(100);

/// How often a worker with busy lanes scans for other lanes.
const LOOK_EVERY: Duration = Duration::from_millis(60);

/// The pause after a failed claim.
pub(crate) const AFTER_ERROR: Duration = Duration::from_millis(250);

/// While a backlog remains, a claim waits in steps of 1 ms until an eighth of the slots is free. A
/// claim of one run costs nearly as much as a claim of twenty.
const GATHER: Duration = Duration::from_millis(1);
const GATHERED: usize = 8;

/// The most runs that one claim takes.
pub(crate) const MAX_BATCH: usize = 200;

/// The most wait timers that one statement wakes.
const TIMERS: i64 = 1000;

pub(crate) struct Claimer {
    pub(crate) session: Session,
    pub(crate) worker_id: i64,
    /// By the database's clock.
    pub(crate) registered_at: Timestamp,
    pub(crate) registry: Arc<Registry>,
    pub(crate) queues: Vec<String>,
    pub(crate) timings: Timings,
    pub(crate) executor: Arc<Executor>,
    pub(crate) process: Arc<ProcessWorkers>,
    pub(crate) wake: Arc<Notify>,
    /// Signals maintenance that the reply to a claim was lost.
    pub(crate) doubt: Arc<Notify>,
    pub(crate) stop: watch::Receiver<bool>,
}

impl Claimer {
    /// Claims and starts runs until the worker stops. Returns the tasks that still run.
    pub(crate) async fn run(mut self, due: &mut mpsc::UnboundedReceiver<Duration>) -> JoinSet<()> {
        let mut tasks = JoinSet::new();
        let mut state = self.state();
        while !*self.stop.borrow() {
            while let Some(ended) = tasks.try_join_next() {
                report(ended);
            }
            let free = self.executor.in_flight.n_free();
            if free == 0 {
                // An enqueue must not notify this worker instead of one with a free slot.
                self.announce_awake(&mut state).await;
                tokio::select! {
                    () = self.executor.in_flight.freed.notified() => {}
                    () = task::raised(&mut self.stop) => {}
                }
                continue;
            }
            if std::mem::take(&mut state.was_full)
                && free < (self.executor.in_flight.slots / GATHERED).min(MAX_BATCH)
            {
                tokio::time::sleep(GATHER).await;
                continue;
            }
            let may_claim = tokio::select! {
                may_claim = self.process.may_claim() => may_claim,
                () = task::raised(&mut self.stop) => continue,
            };
            let taken = self.take(&mut state, free).await;
            if taken.is_ok()
                && let Some(Recovery { n_failures, lasted }) = state.outage.succeeded()
            {
                tracing::info!(n_failures, ?lasted, "claims succeed again");
            }
            match taken {
                Ok((token, claimed)) if !claimed.is_empty() => {
                    state.pause = FIRST_PAUSE;
                    if claimed.iter().any(is_suspect) {
                        drop(may_claim);
                        Box::pin(self.start_with_suspects(&mut state, &mut tasks, token, claimed)).await;
                    } else {
                        self.start(&mut tasks, token, claimed);
                        drop(may_claim);
                    }
                    self.note_work(&mut state).await;
                    if !state.was_full && state.is_told() {
                        self.wait(&mut state, due, SLEEP_AFTER).await;
                    }
                }
                Ok(_) => {
                    drop(may_claim);
                    self.rest(&mut state, due).await;
                }
                Err(error) => {
                    drop(may_claim);
                    warn_outage!(&state.outage, %error, "a claim failed; what it may have claimed is given back");
                    state.connection = None;
                    self.doubt.notify_one();
                    tokio::time::sleep(AFTER_ERROR).await;
                }
            }
        }
        tasks
    }

    fn state(&self) -> ClaimState {
        let served = self
            .registry
            .definitions()
            .filter(|definition| self.queues.iter().any(|queue| queue == definition.queue));
        let own = served.map(|definition| Lane {
            queue: definition.queue.to_owned(),
            job: definition.stored_name().into_owned(),
            priority: definition.priority,
        });
        ClaimState::new(own.collect(), self.registered_at)
    }

    /// Claims up to `n_free` runs. Alternates between runs that need a permit and all other runs.
    async fn take(&self, state: &mut ClaimState, n_free: usize) -> Result<(Uuid, Vec<Claimed>), sqlx::Error> {
        if self.executor.freed.take() {
            state.permits.owe_of_freed();
        }
        let are_first = state.permits.are_first && state.permits.are_due();
        if are_first {
            // If this claim fails, try the others next: it may fail every time.
            state.permits.are_first = false;
            let first = self.claim_with_permit(state, n_free).await?;
            if !first.1.is_empty() {
                return Ok(first);
            }
        }
        state.permits.are_first = true;
        let limit = state.batch.of(n_free);
        let others = self.take_without_permit(state, limit).await;
        state.batch.apply(&others);
        let others = others?;
        if others.1.is_empty() && !are_first && state.permits.are_due() {
            return self.claim_with_permit(state, n_free).await;
        }
        state.was_full = others.1.len() == limit;
        Ok(others)
    }

    /// Claims runs that need no permit, from the cursors. If the cursors find nothing and the time
    /// share allows a scan, claims what the scan finds.
    async fn take_without_permit(
        &self,
        state: &mut ClaimState,
        limit: usize,
    ) -> Result<(Uuid, Vec<Claimed>), sqlx::Error> {
        if let Some(seen) = state.scanner.try_finished() {
            state.apply_scan(seen);
        }
        if state.asleep && state.unprompted && state.scanner.may_begin() && !state.scanner.is_slow() {
            // An idle worker's poll: one statement, unless it finds a run.
            return if self.look(state).await? {
                self.claim(state, limit).await
            } else {
                Ok((Uuid::nil(), Vec::new()))
            };
        }
        if !state.asleep && state.scanner.may_begin() && state.scanner.is_older_than(LOOK_EVERY) {
            // Scan before the claim, also while lanes are busy. Otherwise an urgent lane that the
            // worker has never seen would wait until the backlog ends.
            self.look(state).await?;
        }
        let first = self.claim(state, limit).await?;
        if !first.1.is_empty() || !state.scanner.may_begin() {
            return Ok(first);
        }
        if self.look(state).await? { self.claim(state, limit).await } else { Ok(first) }
    }

    async fn claim(&self, state: &mut ClaimState, limit: usize) -> Result<(Uuid, Vec<Claimed>), sqlx::Error> {
        let floor = state.permits.floor.take();
        let served = state.positions.iter().filter(|(lane, _)| {
            self.registry.is_enabled(&lane.job) && floor.is_none_or(|floor| lane.priority >= floor)
        });
        let mut lanes: Vec<(Lane, Position)> = served.map(|(lane, at)| (lane.clone(), *at)).collect();
        // The highest priority first. Among equals, the lane that has waited longest.
        lanes.sort_by_key(|(lane, at)| (std::cmp::Reverse(lane.priority), *at));
        let (token, reading) = (Uuid::now_v7(), state.reading);
        let claimed = self
            .claimed(state, token, async |connection| {
                claim(connection, self.worker_id, token, limit, reading, &lanes).await
            })
            .await;
        state.reading = Reading::after(&claimed);
        let claimed = claimed?;
        state.backlog = lowest_of_full(&claimed, limit);
        for run in &claimed {
            let at = Position { ready_at: run.ready_at, run_id: run.run_id };
            let position = state.positions.entry(run.lane.clone()).or_insert(at);
            *position = (*position).max(at);
        }
        // A claim below its limit has taken every due run of every lane.
        if let Some(run) = claimed.first()
            && claimed.len() < limit
            && floor.is_none()
        {
            state.mark_empty(run.claimed_at);
        }
        Ok((token, claimed))
    }

    /// Runs a claim under this token. `InFlight` lists the token until the claimed runs are added.
    pub(crate) async fn claimed(
        &self,
        state: &mut ClaimState,
        token: Uuid,
        claim: impl AsyncFnOnce(&mut PgConnection) -> Result<Vec<Claimed>, sqlx::Error>,
    ) -> Result<Vec<Claimed>, sqlx::Error> {
        self.executor.in_flight.claim_sent(token);
        let claimed = match state.connection(&self.session).await {
            Ok(connection) => self.session.answered_claim(claim(connection)).await,
            Err(error) => Err(error),
        };
        if claimed.as_ref().map_or(true, Vec::is_empty) {
            self.executor.in_flight.claim_answered(token);
        }
        claimed
    }

    pub(crate) fn enabled_jobs(&self) -> Vec<String> {
        self.registry.names().filter(|job| self.registry.is_enabled(job)).map(str::to_owned).collect()
    }

    /// Scans every lane inline, or starts a background scan. Returns whether an inline scan found a
    /// due run.
    async fn look(&self, state: &mut ClaimState) -> Result<bool, sqlx::Error> {
        let jobs = self.enabled_jobs();
        if state.scanner.is_slow() {
            state.scanner.begin(&self.session, &self.queues, &jobs);
            return Ok(false);
        }
        let began = Instant::now();
        let connection = state.connection(&self.session).await?;
        let look = self.session.with_timeout(lanes(connection, &self.queues, &jobs)).await;
        state.scanner.note_inline(began, look.is_err());
        // The scan reports every later due run. Settlements after it report theirs through `due`.
        state.next_due = None;
        Ok(state.apply_scan((began, look?)))
    }

    pub(crate) fn start(&self, tasks: &mut JoinSet<()>, token: Uuid, claimed: Vec<Claimed>) {
        for run in claimed {
            let slot = self.slot(&run, token);
            self.start_one(tasks, run, slot);
        }
        self.executor.in_flight.claim_answered(token);
    }

    pub(crate) fn slot(&self, run: &Claimed, token: Uuid) -> Slot {
        let slot = self.executor.in_flight.add(Fence { run_id: run.run_id, token });
        if run.compensating.is_some() {
            slot.stop_signal.begin_compensation();
        }
        if run.pause_requested {
            self.executor.in_flight.stop(run.run_id, StopOrder::Pause);
        }
        slot
    }

    pub(crate) fn start_one(&self, tasks: &mut JoinSet<()>, run: Claimed, slot: Slot) {
        match self.registry.get(&run.lane.job) {
            Some(definition) => {
                // Box the future here. Adding it to the set would otherwise copy it several times.
                tasks.spawn(Box::pin(Arc::clone(&self.executor).execute(run, definition, slot)));
            }
            // A claim names only jobs of the registry, so the row in `ready` and the run name
            // different jobs.
            None => {
                let failure = unknown_job(&run.lane.job);
                tasks.spawn(Box::pin(Arc::clone(&self.executor).block(run, failure, slot)));
            }
        }
    }

    /// Waits after an empty claim: claims again soon, and after a while sleeps until a wake-up, the
    /// next due instant or a poll.
    async fn rest(&mut self, state: &mut ClaimState, due: &mut mpsc::UnboundedReceiver<Duration>) {
        if state.asleep || state.is_told() {
            state.asleep = true;
            self.wait(state, due, state.nap).await;
        } else if state.pause < SLEEP_AFTER {
            let pause = state.pause;
            state.pause *= 2;
            self.wait(state, due, pause).await;
        } else {
            self.announce(state, KnownAs::Asleep).await;
            state.asleep = state.is_told();
            // An enqueue that committed before the sleep record did not notify: scan once more.
            state.scanner.request();
            (state.pause, state.nap) = (FIRST_PAUSE, FIRST_IDLE_POLL);
        }
    }

    /// Waits for a wake-up, the next due instant, the next scan, or the end of `pause`.
    async fn wait(
        &mut self,
        state: &mut ClaimState,
        due: &mut mpsc::UnboundedReceiver<Duration>,
        pause: Duration,
    ) {
        let until = [state.next_due, state.scanner.requested_at(), state.permits.due_at()]
            .into_iter()
            .flatten()
            .fold(Instant::now() + pause, Instant::min);
        tokio::select! {
            () = tokio::time::sleep_until(until) => {
                state.unprompted = true;
                if state.asleep {
                    state.nap = (state.nap * 4).min(self.timings.poll);
                }
            }
            () = self.wake.notified() => {
                state.scanner.request();
                (state.unprompted, state.pause) = (false, FIRST_PAUSE);
            }
            seen = state.scanner.next_finished() => {
                if let Some(seen) = seen {
                    state.apply_scan(seen);
                }
            }
            Some(delay) = due.recv() => state.schedule_wake(after(delay)),
            () = task::raised(&mut self.stop) => {}
        }
        while let Ok(delay) = due.try_recv() {
            state.schedule_wake(after(delay));
        }
        if state.next_due.is_some_and(|due| due <= Instant::now()) {
            state.next_due = None;
            state.scanner.request();
            (state.pause, state.nap) = (FIRST_PAUSE, FIRST_IDLE_POLL);
            self.wake_timers(state).await;
        }
    }

    /// Notes that the worker claimed runs. If work continues, records the worker as awake, so that
    /// enqueues stop notifying.
    async fn note_work(&self, state: &mut ClaimState) {
        if std::mem::take(&mut state.asleep) {
            state.woken_at = Some(Instant::now());
        }
        let is_wide_awake = state.woken_at.is_some_and(|woken_at| woken_at.elapsed() >= AWAKE_AFTER);
        if is_wide_awake {
            self.announce_awake(state).await;
        }
    }

    /// Records that this worker is awake, unless the database already says so.
    async fn announce_awake(&self, state: &mut ClaimState) {
        if state.known_as != KnownAs::Awake {
            self.announce(state, KnownAs::Awake).await;
        }
    }

    async fn announce(&self, state: &mut ClaimState, known_as: KnownAs) {
        let is_asleep = known_as == KnownAs::Asleep;
        let said = match state.connection(&self.session).await {
            Ok(connection) => {
                self.session.with_timeout(worker::sleeping(connection, self.worker_id, is_asleep)).await
            }
            Err(error) => Err(error),
        };
        state.known_as = if said.is_ok() { known_as } else { KnownAs::Unknown };
        if said.is_err() {
            state.connection = None;
        }
    }

    /// Wakes runs whose wait may have reached its limit.
    async fn wake_timers(&self, state: &mut ClaimState) {
        let mut aside = std::mem::take(&mut state.timers_aside);
        if let Ok(connection) = state.connection(&self.session).await {
            let wake = wakes::wake_due(connection, &mut aside, TIMERS, TURN);
            if let Err(error) = Box::pin(self.session.with_timeout(wake)).await {
                warn_outage!(&state.timers_outage, %error, "timers wait for the database");
                state.connection = None;
            }
        }
        state.timers_aside = aside;
    }
}

/// Stops the tasks of a worker that shuts down: lets them end until the deadline, then releases the
/// remaining runs.
pub(crate) async fn drain(executor: &Executor, mut tasks: JoinSet<()>, deadline: Duration, grace: Duration) {
    let finish = async |tasks: &mut JoinSet<()>| {
        while let Some(ended) = tasks.join_next().await {
            report(ended);
        }
    };
    if tokio::time::timeout(deadline, finish(&mut tasks)).await.is_ok() {
        return;
    }
    tracing::info!(
        n_runs = executor.in_flight.len(),
        "runs that have not ended in time go back to their queues"
    );
    executor.in_flight.stop_all(StopOrder::Release);
    if tokio::time::timeout(grace, finish(&mut tasks)).await.is_err() {
        tracing::warn!(
            n_runs = executor.in_flight.len(),
            "runs that do not yield are left to the reaper of another worker"
        );
        tasks.abort_all();
    }
}

/// Reports a panic of the engine; panics of bodies are caught earlier. The next reconciliation
/// finds the run.
fn report(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        tracing::error!(%error, "the engine panicked while it executed a run; the run goes back to its queue: please report this");
    }
}
