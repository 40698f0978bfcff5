//! The claimer: the one task of a process that takes runs, in batches, from remembered positions.
//!
//! A claim starts in each lane behind the last run that was claimed there, so it never meets the dead entries before it; that keeps it fast while an
//! old snapshot holds vacuum back. What positions miss (commits that arrive late with an earlier instant, retries, lanes never seen) is found by the
//! *look*, from the very start of each lane. Cheap, it follows every empty claim; expensive, it is rare, and goes on beside the claims ([`Looks`]).

use std::sync::Arc;
use std::time::Duration;

use sqlx::PgConnection;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;
use uuid::Uuid;

use super::permits::lowest_of_full;
use super::positions::{KnownAs, Memory, after};
use super::trial::is_suspect;
use crate::connection::outage::{Recovery, warn_outage};
use crate::connection::session::Session;
use crate::connection::task;
use crate::definition::registry::Registry;
use crate::model::timestamp::Timestamp;
use crate::store::checkpoint::Fence;
use crate::store::claim::{Claimed, Lane, Position, Reading, claim, lanes};
use crate::store::{wait, worker};
use crate::worker::execute::executor::{Executor, unknown_job};
use crate::worker::held::{Hold, Order};
use crate::worker::process_workers::ProcessWorkers;
use crate::worker::timings::Timings;

/// After its last run a worker that is not told of what comes claims again after this pause, which doubles until [`DROWSY`]; then it says that it sleeps, and waits to be woken. At a
/// run a millisecond no worker sleeps and nobody notifies; at one every ten each is announced, and starts as soon as the announcement is here.
pub(crate) const FIRST_PAUSE: Duration = Duration::from_millis(1);
const DROWSY: Duration = Duration::from_millis(4);

/// A transaction that began before the worker said that it sleeps does not announce its runs, and may commit after the last look: so a worker that has
/// fallen asleep looks again after this pause, four times as long each time up to the poll. What is missed so is late by the length of its transaction;
/// while looks are slow, until the next one.
pub(crate) const FIRST_NAP: Duration = Duration::from_millis(16);

/// A woken worker records that it is awake after so much time with work, or as soon as it has no free slot. Each change of that record leaves a dead row, which slows
/// every claim and enqueue as long as an old snapshot keeps it; the notifications meanwhile cost less.
const WIDE_AWAKE: Duration = Duration::from_millis(100);

/// How often a worker among busy lanes looks for others.
const LOOK_EVERY: Duration = Duration::from_millis(60);

/// The pause after a claim that failed.
pub(crate) const AFTER_ERROR: Duration = Duration::from_millis(250);

/// Where more is queued than the last claim took, slots gather for so long until an eighth of them is free: a claim costs nearly the same for one run
/// as for twenty.
const GATHER: Duration = Duration::from_millis(1);
const GATHERED: usize = 8;

/// The most runs one claim takes.
pub(crate) const MAX_BATCH: usize = 200;

/// How many timers of waits wake one statement at most.
const TIMERS: i64 = 1000;

/// The claimer of one worker.
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
    /// Tells maintenance that the reply to a claim was lost.
    pub(crate) doubt: Arc<Notify>,
    pub(crate) stop: watch::Receiver<bool>,
}

impl Claimer {
    /// Claims and starts runs until told to stop; gives the tasks that still run.
    pub(crate) async fn run(mut self, due: &mut mpsc::UnboundedReceiver<Duration>) -> JoinSet<()> {
        let mut tasks = JoinSet::new();
        let mut memory = self.memory();
        while !*self.stop.borrow() {
            while let Some(ended) = tasks.try_join_next() {
                report(ended);
            }
            let free = self.executor.held.n_free();
            if free == 0 {
                // It must not be told of a run in the place of one that could take it.
                self.awaken(&mut memory).await;
                tokio::select! {
                    () = self.executor.held.freed.notified() => {}
                    () = task::raised(&mut self.stop) => {}
                }
                continue;
            }
            if std::mem::take(&mut memory.was_full)
                && free < (self.executor.held.slots / GATHERED).min(MAX_BATCH)
            {
                tokio::time::sleep(GATHER).await;
                continue;
            }
            let may_claim = tokio::select! {
                may_claim = self.process.may_claim() => may_claim,
                () = task::raised(&mut self.stop) => continue,
            };
            let limit = free.min(memory.most);
            let taken = self.take(&mut memory, limit).await;
            if taken.is_ok() {
                memory.most = (memory.most * 2).min(MAX_BATCH);
                if let Some(Recovery { n_failures, lasted }) = memory.outage.succeeded() {
                    tracing::info!(n_failures, ?lasted, "claims succeed again");
                }
            }
            match taken {
                Ok((token, claimed)) if !claimed.is_empty() => {
                    memory.pause = FIRST_PAUSE;
                    memory.was_full = claimed.len() == limit;
                    if claimed.iter().any(is_suspect) {
                        drop(may_claim);
                        Box::pin(self.start_with_suspects(&mut memory, &mut tasks, token, claimed)).await;
                    } else {
                        self.start(&mut tasks, token, claimed);
                        drop(may_claim);
                    }
                    self.rouse(&mut memory).await;
                    if !memory.was_full && memory.is_told() {
                        self.wait(&mut memory, due, DROWSY).await;
                    }
                }
                Ok(_) => {
                    drop(may_claim);
                    self.rest(&mut memory, due).await;
                }
                Err(error) => {
                    drop(may_claim);
                    warn_outage!(&memory.outage, %error, "a claim failed; what it may have claimed is given back");
                    memory.connection = None;
                    memory.most = 1;
                    self.doubt.notify_one();
                    tokio::time::sleep(AFTER_ERROR).await;
                }
            }
        }
        tasks
    }

    fn memory(&self) -> Memory {
        let served = self
            .registry
            .definitions()
            .filter(|definition| self.queues.iter().any(|queue| queue == definition.queue));
        let own = served.map(|definition| Lane {
            queue: definition.queue.to_owned(),
            job: definition.stored_name().into_owned(),
            priority: definition.priority,
        });
        Memory::new(own.collect(), self.registered_at)
    }

    /// Claims up to `limit` runs: those that need a permit and the others by turns, where there are both.
    async fn take(&self, memory: &mut Memory, limit: usize) -> Result<(Uuid, Vec<Claimed>), sqlx::Error> {
        if self.executor.freed.take() {
            memory.permits.owe_of_freed();
        }
        let are_first = memory.permits.are_first && memory.permits.are_due();
        if are_first {
            // If this fails, the others are next: it may fail for ever.
            memory.permits.are_first = false;
            let first = self.claim_with_permit(memory, limit).await?;
            if !first.1.is_empty() {
                return Ok(first);
            }
        }
        memory.permits.are_first = true;
        let others = self.take_without_permit(memory, limit).await?;
        if others.1.is_empty() && !are_first && memory.permits.are_due() {
            return self.claim_with_permit(memory, limit).await;
        }
        Ok(others)
    }

    /// Claims runs that need no permit: from the positions, and where they give nothing and a look is affordable, from what it finds.
    async fn take_without_permit(
        &self,
        memory: &mut Memory,
        limit: usize,
    ) -> Result<(Uuid, Vec<Claimed>), sqlx::Error> {
        if let Some(seen) = memory.looks.try_ended() {
            memory.see(seen);
        }
        if memory.asleep && memory.unprompted && memory.looks.may_begin() && !memory.looks.are_slow() {
            // An idle worker's poll: one statement, unless it finds something.
            return if self.look(memory).await? {
                self.claim(memory, limit).await
            } else {
                Ok((Uuid::nil(), Vec::new()))
            };
        }
        if !memory.asleep && memory.looks.may_begin() && memory.looks.are_older_than(LOOK_EVERY) {
            // Among busy lanes too, and before the first claim: an urgent lane that was never seen must not wait for the backlog to end.
            self.look(memory).await?;
        }
        let first = self.claim(memory, limit).await?;
        if !first.1.is_empty() || !memory.looks.may_begin() {
            return Ok(first);
        }
        if self.look(memory).await? { self.claim(memory, limit).await } else { Ok(first) }
    }

    async fn claim(&self, memory: &mut Memory, limit: usize) -> Result<(Uuid, Vec<Claimed>), sqlx::Error> {
        let floor = memory.permits.floor.take();
        let served = memory.positions.iter().filter(|(lane, _)| {
            self.registry.is_enabled(&lane.job) && floor.is_none_or(|floor| lane.priority >= floor)
        });
        let mut lanes: Vec<(Lane, Position)> = served.map(|(lane, at)| (lane.clone(), *at)).collect();
        // The highest priority first; among equals the lane that has waited longest.
        lanes.sort_by_key(|(lane, at)| (std::cmp::Reverse(lane.priority), *at));
        let (token, reading) = (Uuid::now_v7(), memory.reading);
        let claimed = self
            .claimed(memory, token, async |connection| {
                claim(connection, self.worker_id, token, limit, reading, &lanes).await
            })
            .await;
        memory.reading = Reading::after(&claimed);
        let claimed = claimed?;
        memory.backlog = lowest_of_full(&claimed, limit);
        for run in &claimed {
            let at = Position { ready_at: run.ready_at, run_id: run.run_id };
            let position = memory.positions.entry(run.lane.clone()).or_insert(at);
            *position = (*position).max(at);
        }
        // It has taken whatever was due in any lane.
        if let Some(run) = claimed.first()
            && claimed.len() < limit
            && floor.is_none()
        {
            memory.empty(run.claimed_at);
        }
        Ok((token, claimed))
    }

    /// What a claim gives under this token, which is known as being claimed with until the runs are in hand.
    pub(crate) async fn claimed(
        &self,
        memory: &mut Memory,
        token: Uuid,
        claim: impl AsyncFnOnce(&mut PgConnection) -> Result<Vec<Claimed>, sqlx::Error>,
    ) -> Result<Vec<Claimed>, sqlx::Error> {
        self.executor.held.claiming(token);
        let claimed = match memory.connection(&self.session).await {
            Ok(connection) => self.session.answered_claim(claim(connection)).await,
            Err(error) => Err(error),
        };
        if claimed.as_ref().map_or(true, Vec::is_empty) {
            self.executor.held.claimed(token);
        }
        claimed
    }

    pub(crate) fn enabled_jobs(&self) -> Vec<String> {
        self.registry.names().filter(|job| self.registry.is_enabled(job)).map(str::to_owned).collect()
    }

    /// Looks at every lane from its start, or begins to. True where it has found something that is due.
    async fn look(&self, memory: &mut Memory) -> Result<bool, sqlx::Error> {
        let jobs = self.enabled_jobs();
        if memory.looks.are_slow() {
            memory.looks.begin(&self.session, &self.queues, &jobs);
            return Ok(false);
        }
        let began = Instant::now();
        let connection = memory.connection(&self.session).await?;
        let look = self.session.answered(lanes(connection, &self.queues, &jobs)).await;
        memory.looks.done(began, look.is_err());
        // It sees every run that is due later; of what is settled meanwhile we are told after it.
        memory.next_due = None;
        Ok(memory.see((began, look?)))
    }

    pub(crate) fn start(&self, tasks: &mut JoinSet<()>, token: Uuid, claimed: Vec<Claimed>) {
        for run in claimed {
            let hold = self.hold(&run, token);
            self.start_one(tasks, run, hold);
        }
        self.executor.held.claimed(token);
    }

    pub(crate) fn hold(&self, run: &Claimed, token: Uuid) -> Hold {
        let hold = self.executor.held.add(Fence { run_id: run.run_id, token });
        if run.undoing.is_some() {
            hold.orders.begin_undo();
        }
        if run.pause_requested {
            self.executor.held.order(run.run_id, Order::Pause);
        }
        hold
    }

    pub(crate) fn start_one(&self, tasks: &mut JoinSet<()>, run: Claimed, hold: Hold) {
        match self.registry.get(&run.lane.job) {
            Some(definition) => {
                // Box the future now; adding it to the set would otherwise copy it several times.
                tasks.spawn(Box::pin(Arc::clone(&self.executor).execute(run, definition, hold)));
            }
            // A claim names only jobs of the registry, so the row in `ready` and the run have different jobs.
            None => {
                let failure = unknown_job(&run.lane.job);
                tasks.spawn(Box::pin(Arc::clone(&self.executor).block(run, failure, hold)));
            }
        }
    }

    /// Nothing to do: look again soon, and after a while sleep until woken, until the next known instant, or for a poll.
    async fn rest(&mut self, memory: &mut Memory, due: &mut mpsc::UnboundedReceiver<Duration>) {
        if memory.asleep || memory.is_told() {
            memory.asleep = true;
            self.wait(memory, due, memory.nap).await;
        } else if memory.pause < DROWSY {
            let pause = memory.pause;
            memory.pause *= 2;
            self.wait(memory, due, pause).await;
        } else {
            self.announce(memory, KnownAs::Asleep).await;
            memory.asleep = memory.is_told();
            // An enqueue that committed before the flag did not notify: look once more.
            memory.looks.owe();
            (memory.pause, memory.nap) = (FIRST_PAUSE, FIRST_NAP);
        }
    }

    /// Waits until woken, until the next known instant or look, or for this pause.
    async fn wait(
        &mut self,
        memory: &mut Memory,
        due: &mut mpsc::UnboundedReceiver<Duration>,
        pause: Duration,
    ) {
        let until = [memory.next_due, memory.looks.owed_at(), memory.permits.due_at()]
            .into_iter()
            .flatten()
            .fold(Instant::now() + pause, Instant::min);
        tokio::select! {
            () = tokio::time::sleep_until(until) => {
                memory.unprompted = true;
                if memory.asleep {
                    memory.nap = (memory.nap * 4).min(self.timings.poll);
                }
            }
            () = self.wake.notified() => {
                memory.looks.owe();
                (memory.unprompted, memory.pause) = (false, FIRST_PAUSE);
            }
            seen = memory.looks.ended() => {
                if let Some(seen) = seen {
                    memory.see(seen);
                }
            }
            Some(delay) = due.recv() => memory.expect(after(delay)),
            () = task::raised(&mut self.stop) => {}
        }
        while let Ok(delay) = due.try_recv() {
            memory.expect(after(delay));
        }
        if memory.next_due.is_some_and(|due| due <= Instant::now()) {
            memory.next_due = None;
            memory.looks.owe();
            (memory.pause, memory.nap) = (FIRST_PAUSE, FIRST_NAP);
            self.wake_timers(memory).await;
        }
    }

    /// Runs came: once they go on coming, whoever enqueues need not notify any more.
    async fn rouse(&self, memory: &mut Memory) {
        if std::mem::take(&mut memory.asleep) {
            memory.woken_at = Some(Instant::now());
        }
        let is_wide_awake = memory.woken_at.is_some_and(|woken_at| woken_at.elapsed() >= WIDE_AWAKE);
        if is_wide_awake {
            self.awaken(memory).await;
        }
    }

    /// Says that this worker is awake, where it is known as asleep.
    async fn awaken(&self, memory: &mut Memory) {
        if memory.known_as != KnownAs::Awake {
            self.announce(memory, KnownAs::Awake).await;
        }
    }

    async fn announce(&self, memory: &mut Memory, state: KnownAs) {
        let is_asleep = state == KnownAs::Asleep;
        let said = match memory.connection(&self.session).await {
            Ok(connection) => {
                self.session.answered(worker::sleeping(connection, self.worker_id, is_asleep)).await
            }
            Err(error) => Err(error),
        };
        memory.known_as = if said.is_ok() { state } else { KnownAs::Unknown };
        if said.is_err() {
            memory.connection = None;
        }
    }

    /// A wait of one of our runs may have come to its limit.
    async fn wake_timers(&self, memory: &mut Memory) {
        let mut aside = std::mem::take(&mut memory.timers_aside);
        if let Ok(connection) = memory.connection(&self.session).await
            && let Err(error) =
                Box::pin(self.session.answered(wait::wake_due(connection, &mut aside, TIMERS))).await
        {
            warn_outage!(&memory.timers_outage, %error, "timers wait for the database");
            memory.connection = None;
        }
        memory.timers_aside = aside;
    }
}

/// Stops the tasks of a worker that is shutting down: lets them end by themselves until the deadline, then has the rest hand their runs back.
pub(crate) async fn drain(executor: &Executor, mut tasks: JoinSet<()>, deadline: Duration, grace: Duration) {
    let finish = async |tasks: &mut JoinSet<()>| {
        while let Some(ended) = tasks.join_next().await {
            report(ended);
        }
    };
    if tokio::time::timeout(deadline, finish(&mut tasks)).await.is_ok() {
        return;
    }
    tracing::info!(n_runs = executor.held.len(), "runs that have not ended in time go back to their queues");
    executor.held.order_all(Order::Release);
    if tokio::time::timeout(grace, finish(&mut tasks)).await.is_err() {
        tracing::warn!(
            n_runs = executor.held.len(),
            "runs that do not yield are left to the reaper of another worker"
        );
        tasks.abort_all();
    }
}

/// Panics of bodies are caught before; this one is ours, and its run is found by the next reconciliation.
fn report(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        tracing::error!(%error, "the engine panicked while it executed a run; the run goes back to its queue: please report this");
    }
}
