//! The claimer: the one task of a process that takes runs, in batches, from remembered positions.
//!
//! A claim starts in each lane behind the last run that was claimed there, so it never meets the dead entries before it; that keeps it fast while an
//! old snapshot holds vacuum back. What positions miss (commits that arrive late with an earlier instant, retries, lanes never seen) is found by the
//! *look*, from the very start of each lane. A look may cost a twentieth of the time: cheap, it follows every empty claim; expensive, it is rare.

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
use super::neighbours::Neighbour;
use super::serve::Session;
use super::task;
use super::timings::Timings;
use crate::api::registry::Registry;
use crate::model::timestamp::Timestamp;
use crate::store::checkpoint::Fence;
use crate::store::claim::{Claimed, Lane, Position, claim, lanes};
use crate::store::{wait, worker};

/// A look may take a twentieth of the time: claims wait for it.
const LOOK_SHARE: u32 = 20;

/// A look that was asked for waits no longer than this: one slow look must not hold up every run that is announced after it.
const LONGEST_DEBT: Duration = Duration::from_millis(500);

/// After its last run a worker claims again after this pause, which doubles until [`DROWSY`]; then it says that it sleeps, and waits to be woken. At a
/// run a millisecond no worker sleeps and nobody notifies; at one every ten each is announced, and starts as soon as the announcement is here.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const DROWSY: Duration = Duration::from_millis(4);

/// A transaction that began before the worker said that it sleeps does not announce its runs, and may commit after the last look: so a worker that has
/// fallen asleep looks again after this pause, four times as long each time up to the poll. What is missed so is late by the length of its transaction.
const FIRST_NAP: Duration = Duration::from_millis(16);

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
    /// How enqueues of this process reach it.
    pub(crate) neighbour: Arc<Neighbour>,
    /// Tells maintenance that the reply to a claim was lost.
    pub(crate) doubt: Arc<Notify>,
    pub(crate) stop: watch::Receiver<bool>,
}

/// What the claimer remembers.
struct Memory {
    connection: Option<PoolConnection<Postgres>>,
    positions: BTreeMap<Lane, Position>,
    last_look: Option<(Instant, Duration)>,
    /// Something came that the positions may miss: a look follows as soon as it is affordable, however long the worker would sleep.
    owes_look: bool,
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
                positions.insert(lane, Position::before(Timestamp::DISTANT_PAST));
            }
        }
        Memory {
            connection: None,
            positions,
            last_look: None,
            owes_look: false,
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
        if memory.asleep && memory.unprompted {
            // An idle worker's poll: one statement, unless it finds something.
            return if self.look(memory).await? {
                self.claim(memory, limit).await
            } else {
                Ok((Uuid::nil(), Vec::new()))
            };
        }
        if !memory.asleep
            && memory.may_look()
            && memory.last_look.is_none_or(|(at, _)| at.elapsed() > LOOK_EVERY)
        {
            // Among busy lanes too, and before the first claim: an urgent lane that was never seen must not wait for the backlog to end.
            self.look(memory).await?;
        }
        let first = self.claim(memory, limit).await?;
        if !first.1.is_empty() || !memory.may_look() {
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
        if claimed.is_empty() {
            self.executor.held.claimed(token);
        }
        Ok((token, claimed))
    }

    /// Looks at every lane from its start. True where it found something that is due and that the positions had passed.
    async fn look(&self, memory: &mut Memory) -> Result<bool, sqlx::Error> {
        let began = Instant::now();
        let jobs: Vec<String> = self.registry.names().map(str::to_owned).collect();
        let connection = memory.connection(&self.session).await?;
        let occupied = self.session.answered(lanes(connection, &self.queues, &jobs)).await?;
        memory.last_look = Some((began, began.elapsed()));
        memory.owes_look = false;
        memory.next_due = None;
        let mut found = false;
        if memory.positions.len() > MAX_LANES {
            memory.positions.retain(|lane, _| occupied.iter().any(|occupied| occupied.lane == *lane));
        }
        for lane in occupied {
            let start = Position::before(lane.first_at);
            let position = memory.positions.entry(lane.lane).or_insert(start);
            if lane.first_at <= lane.now {
                // Nothing before it lives: the next claim need not meet what is dead there, a million rows under an old snapshot.
                *position = start;
                found = true;
            } else {
                // Runs of now come before it.
                *position = (*position).min(start);
                memory.expect(lane.first_at.since(lane.now));
            }
        }
        Ok(found)
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
        // At a run a millisecond and more, one claim takes what one pause brings.
        let may_be_told = memory.asleep || memory.pause > FIRST_PAUSE;
        if memory.pause < DROWSY {
            memory.pause *= 2;
        } else if !memory.asleep {
            memory.asleep = self.sleeping(memory, true).await;
            // An enqueue that committed before the flag did not notify: look once more.
            memory.owes_look = true;
            (memory.pause, memory.nap) = (FIRST_PAUSE, FIRST_NAP);
            return;
        }
        let now = Instant::now();
        let look = memory.owes_look.then(|| memory.look_at(now));
        let until = [memory.next_due, look].into_iter().flatten().fold(now + pause, Instant::min);
        self.neighbour.rests(may_be_told);
        tokio::select! {
            () = tokio::time::sleep_until(until) => {
                memory.unprompted = true;
                if memory.asleep {
                    memory.nap = (memory.nap * 4).min(self.timings.poll);
                }
            }
            () = self.wake.notified() => {
                (memory.owes_look, memory.unprompted) = (true, false);
                memory.pause = FIRST_PAUSE;
            }
            Some(delay) = due.recv() => memory.expect(delay),
            () = task::raised(&mut self.stop) => {}
        }
        self.neighbour.rests(false);
        while let Ok(delay) = due.try_recv() {
            memory.expect(delay);
        }
        if memory.next_due.is_some_and(|due| due <= Instant::now()) {
            memory.next_due = None;
            memory.last_look = None;
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
    /// Whether a look is affordable.
    fn may_look(&self) -> bool {
        let now = Instant::now();
        self.look_at(now) <= now
    }

    /// From when a look is affordable.
    fn look_at(&self, now: Instant) -> Instant {
        let longest = if self.owes_look { LONGEST_DEBT } else { Duration::MAX };
        self.last_look.map_or(now, |(at, cost)| at + (cost * LOOK_SHARE).min(longest))
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
