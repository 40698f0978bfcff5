//! The claimer: the one task of a process that takes runs, in batches, from remembered positions.
//!
//! A claim starts in each lane behind the last run that was claimed there, so it never meets the dead entries before it; that keeps it fast while an
//! old snapshot holds vacuum back. What positions miss (commits that arrive late with an earlier instant, retries, lanes never seen) is found by the
//! *look*, from the very start of each lane. Cheap, it follows every empty claim; expensive, it is rare, and goes on beside the claims ([`Looks`]).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use sqlx::Postgres;
use sqlx::pool::PoolConnection;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;
use uuid::Uuid;

use super::executor::{Executor, unknown_job};
use super::held::Order;
use super::looks::Looks;
use super::serve::Session;
use super::task;
use super::timings::Timings;
use crate::api::registry::Registry;
use crate::model::timestamp::Timestamp;
use crate::store::checkpoint::Fence;
use crate::store::claim::{Claimed, Lane, Look, Position, claim, lanes};
use crate::store::{wait, worker};

/// After its last run a worker claims again after this pause, which doubles until [`DROWSY`]; then it says that it sleeps, and waits to be woken. At a
/// run a millisecond no worker sleeps and nobody notifies; at one every ten each is announced, and starts as soon as the announcement is here.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const DROWSY: Duration = Duration::from_millis(4);

/// A transaction that began before the worker said that it sleeps does not announce its runs, and may commit after the last look: so a worker that has
/// fallen asleep looks again after this pause, four times as long each time up to the poll. What is missed so is late by the length of its transaction.
const FIRST_NAP: Duration = Duration::from_millis(16);

/// The position of a lane that is found empty lies so long before: a run whose transaction takes longer to commit is found by the next look.
const STILL_COMMITTING: Duration = Duration::from_secs(1);

/// How often a worker among busy lanes looks for others.
const LOOK_EVERY: Duration = Duration::from_millis(60);

/// The furthest instant that a claimer remembers.
const FAR: Duration = Duration::from_secs(24 * 60 * 60);

/// The pause after a claim that failed.
const AFTER_ERROR: Duration = Duration::from_millis(250);

/// Where more is queued than the last claim took, slots gather for so long until an eighth of them is free: a claim costs nearly the same for one run
/// as for twenty.
const GATHER: Duration = Duration::from_millis(1);
const GATHERED: usize = 8;

/// The most runs one claim takes.
const MAX_BATCH: usize = 200;

/// Lanes that are remembered; beyond it the empty ones are forgotten and found again by a look.
const MAX_LANES: usize = 256;

/// How many timers of waits wake one statement at most.
const TIMERS: i64 = 1000;

/// The claimer of one worker.
pub(crate) struct Claimer {
    pub(crate) session: Session,
    pub(crate) worker_id: i64,
    pub(crate) registry: Arc<Registry>,
    pub(crate) queues: Vec<String>,
    pub(crate) concurrency: usize,
    pub(crate) timings: Timings,
    pub(crate) executor: Arc<Executor>,
    pub(crate) wake: Arc<Notify>,
    /// Tells maintenance that the reply to a claim was lost.
    pub(crate) doubt: Arc<Notify>,
    pub(crate) stop: watch::Receiver<bool>,
}

/// What the claimer remembers.
struct Memory {
    connection: Option<PoolConnection<Postgres>>,
    positions: BTreeMap<Lane, Position>,
    looks: Looks,
    /// The positions when the look began that goes on beside the claims.
    positions_then: BTreeMap<Lane, Position>,
    /// When the next run that is known to be queued is due.
    next_due: Option<Instant>,
    pause: Duration,
    /// The last claim took as many runs as it might.
    was_full: bool,
    asleep: bool,
    /// The pause of a sleeping worker until it looks by itself.
    nap: Duration,
    /// The last pause ended by itself: nothing says that there is work.
    unprompted: bool,
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
            let free = self.concurrency.saturating_sub(self.executor.held.len());
            if free == 0 {
                tokio::select! {
                    () = self.executor.held.freed.notified() => {}
                    () = task::raised(&mut self.stop) => {}
                }
                continue;
            }
            if std::mem::take(&mut memory.was_full) && free < (self.concurrency / GATHERED).min(MAX_BATCH) {
                tokio::time::sleep(GATHER).await;
                continue;
            }
            let limit = free.min(MAX_BATCH);
            match self.take(&mut memory, limit).await {
                Ok((token, claimed)) if !claimed.is_empty() => {
                    memory.pause = FIRST_PAUSE;
                    memory.was_full = claimed.len() == limit;
                    self.start(&mut tasks, token, claimed);
                    self.rouse(&mut memory).await;
                }
                Ok(_) => self.rest(&mut memory, due).await,
                Err(error) => {
                    tracing::warn!(%error, "a claim failed; what it may have claimed is given back");
                    memory.connection = None;
                    self.doubt.notify_one();
                    tokio::time::sleep(AFTER_ERROR).await;
                }
            }
        }
        tasks
    }

    fn memory(&self) -> Memory {
        let mut positions = BTreeMap::new();
        for definition in self.registry.definitions() {
            if self.queues.iter().any(|queue| queue == definition.queue) {
                let (queue, job) = (definition.queue.to_owned(), definition.name.to_owned());
                let lane = Lane { queue, job, priority: definition.priority };
                positions.insert(lane, Position::START);
            }
        }
        Memory {
            connection: None,
            positions,
            looks: Looks::default(),
            positions_then: BTreeMap::new(),
            next_due: None,
            pause: FIRST_PAUSE,
            was_full: false,
            asleep: false,
            nap: FIRST_NAP,
            unprompted: false,
        }
    }

    /// Claims up to `limit` runs: from the positions, and where they give nothing and a look is affordable, from what it finds.
    async fn take(&self, memory: &mut Memory, limit: usize) -> Result<(Uuid, Vec<Claimed>), sqlx::Error> {
        if let Some(look) = memory.looks.try_ended() {
            memory.see_late(look);
        }
        if memory.asleep && memory.unprompted && !memory.looks.are_slow() {
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
        let mut lanes: Vec<(Lane, Position)> =
            memory.positions.iter().map(|(lane, at)| (lane.clone(), *at)).collect();
        // The highest priority first; among equals the lane that has waited longest.
        lanes.sort_by_key(|(lane, at)| (std::cmp::Reverse(lane.priority), *at));
        let token = Uuid::now_v7();
        self.executor.held.claiming(token);
        let connection = memory.connection(&self.session).await;
        let claimed = match connection {
            Ok(connection) => {
                self.session.answered(claim(connection, self.worker_id, token, limit, &lanes)).await
            }
            Err(error) => Err(error),
        };
        if claimed.is_err() {
            self.executor.held.claimed(token);
        }
        let claimed = claimed?;
        for run in &claimed {
            let at = Position { ready_at: run.ready_at, run_id: run.run_id };
            let position = memory.positions.entry(run.lane.clone()).or_insert(at);
            *position = (*position).max(at);
        }
        match claimed.first() {
            None => self.executor.held.claimed(token),
            // It has taken whatever was due in any lane.
            Some(run) if claimed.len() < limit => memory.empty(run.claimed_at),
            Some(_) => {}
        }
        Ok((token, claimed))
    }

    /// Looks at every lane from its start, or begins to. True where it has found something that is due.
    async fn look(&self, memory: &mut Memory) -> Result<bool, sqlx::Error> {
        let jobs: Vec<String> = self.registry.names().map(str::to_owned).collect();
        if memory.looks.are_slow() {
            memory.positions_then.clone_from(&memory.positions);
            memory.looks.begin(&self.session, &self.queues, &jobs);
            return Ok(false);
        }
        let began = Instant::now();
        let connection = memory.connection(&self.session).await?;
        let look = self.session.answered(lanes(connection, &self.queues, &jobs)).await?;
        memory.looks.done(began);
        let then = memory.positions.clone();
        Ok(memory.see(look, &then))
    }

    fn start(&self, tasks: &mut JoinSet<()>, token: Uuid, claimed: Vec<Claimed>) {
        for run in claimed {
            let fence = Fence { run_id: run.run_id, token };
            let hold = self.executor.held.add(fence);
            match self.registry.get(&run.lane.job) {
                Some(definition) => {
                    // In a box from the start: on the way into the set it would be copied some times.
                    tasks.spawn(Box::pin(Arc::clone(&self.executor).execute(run, definition, hold)));
                }
                None => {
                    // A claim names only jobs of the registry, so this is a defect of ours: lose nothing.
                    tracing::error!(failure = %unknown_job(&run.lane.job), run_id = %fence.run_id);
                    drop(hold);
                    self.doubt.notify_one();
                }
            }
        }
        self.executor.held.claimed(token);
    }

    /// Nothing to do: look again soon, and after a while sleep until woken, until the next known instant, or for a poll.
    async fn rest(&mut self, memory: &mut Memory, due: &mut mpsc::UnboundedReceiver<Duration>) {
        let pause = if memory.asleep { memory.nap } else { memory.pause };
        if memory.pause < DROWSY {
            memory.pause *= 2;
        } else if !memory.asleep {
            memory.asleep = self.sleeping(memory, true).await;
            // An enqueue that committed before the flag did not notify: look once more.
            memory.looks.owe();
            (memory.pause, memory.nap) = (FIRST_PAUSE, FIRST_NAP);
            return;
        }
        let until = [memory.next_due, memory.looks.owed_at()]
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
            Some(look) = memory.looks.ended() => memory.see_late(look),
            Some(delay) = due.recv() => memory.expect(delay),
            () = task::raised(&mut self.stop) => {}
        }
        while let Ok(delay) = due.try_recv() {
            memory.expect(delay);
        }
        if memory.next_due.is_some_and(|due| due <= Instant::now()) {
            memory.next_due = None;
            memory.looks.afford();
            self.wake_timers(memory).await;
        }
    }

    /// Runs came: whoever enqueues need not notify any more.
    async fn rouse(&self, memory: &mut Memory) {
        if memory.asleep && self.sleeping(memory, false).await {
            memory.asleep = false;
        }
    }

    async fn sleeping(&self, memory: &mut Memory, sleeping: bool) -> bool {
        let said = match memory.connection(&self.session).await {
            Ok(connection) => {
                self.session.answered(worker::sleeping(connection, self.worker_id, sleeping)).await
            }
            Err(error) => Err(error),
        };
        if said.is_err() {
            memory.connection = None;
        }
        said.is_ok()
    }

    /// A wait of one of our runs may have come to its limit.
    async fn wake_timers(&self, memory: &mut Memory) {
        if let Ok(connection) = memory.connection(&self.session).await
            && let Err(error) = self.session.answered(wait::wake_due(connection, TIMERS)).await
        {
            tracing::warn!(%error, "timers wait for the database");
            memory.connection = None;
        }
    }
}

impl Memory {
    /// Takes over what a look saw that began at the positions `then`. True where something is due.
    fn see(&mut self, Look { now, firsts }: Look, then: &BTreeMap<Lane, Position>) -> bool {
        if self.positions.len() > MAX_LANES {
            self.positions.retain(|lane, _| firsts.contains_key(lane));
        }
        for lane in firsts.keys() {
            if !self.positions.contains_key(lane) {
                self.positions.insert(lane.clone(), Position::START);
            }
        }
        // What lies before the first living run of a lane is dead, a million rows under an old snapshot, and claims need not meet it.
        let dead_before = dead_before(now);
        for (lane, position) in &mut self.positions {
            *position = match firsts.get(lane) {
                None => (*position).max(dead_before),
                Some(first) if first.due_at > now => (*position).max(dead_before).min(first.before),
                Some(first) if then.get(lane).is_some_and(|then| *then > first.before) => first.before,
                // What stood behind the position has been claimed since, or is claimed next.
                Some(first) => (*position).max(first.before),
            };
        }
        let (due, later): (Vec<Timestamp>, Vec<Timestamp>) =
            firsts.values().map(|first| first.due_at).partition(|due_at| *due_at <= now);
        self.next_due = None;
        if let Some(next) = later.into_iter().min() {
            self.expect(next.since(now));
        }
        !due.is_empty()
    }

    /// The same of the look that went on beside the claims.
    fn see_late(&mut self, look: Look) {
        let then = std::mem::take(&mut self.positions_then);
        self.see(look, &then);
    }

    /// Takes over that at this instant nothing was due.
    fn empty(&mut self, now: Timestamp) {
        for position in self.positions.values_mut() {
            *position = (*position).max(dead_before(now));
        }
    }

    /// Notes that a run is due after `delay`.
    fn expect(&mut self, delay: Duration) {
        // A delay beyond all reason must not overflow; a look finds the run long before.
        let at = Instant::now() + delay.min(FAR);
        self.next_due = Some(self.next_due.map_or(at, |known| known.min(at)));
    }

    async fn connection(&mut self, session: &Session) -> Result<&mut PoolConnection<Postgres>, sqlx::Error> {
        match &mut self.connection {
            Some(connection) => Ok(connection),
            none => Ok(none.insert(session.open().await?)),
        }
    }
}

/// The place before which nothing lives in a lane that is empty at this instant.
fn dead_before(now: Timestamp) -> Position {
    Position::at(now.minus(STILL_COMMITTING))
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
