//! The claimer: the one task of a process that takes runs, in batches, from remembered positions.
//!
//! A claim starts in each lane behind the last run that was claimed there, so it never meets the dead entries before it; that keeps it fast while an
//! old snapshot holds vacuum back. What positions miss (commits that arrive late with an earlier instant, retries, lanes never seen) is found by the
//! *look*, from the very start of each lane. Cheap, it follows every empty claim; expensive, it is rare, and goes on beside the claims ([`Looks`]).

use std::collections::{BTreeMap, BTreeSet};
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
use super::looks::{Looks, Seen};
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
/// fallen asleep looks again after this pause, four times as long each time up to the poll. What is missed so is late by the length of its transaction;
/// while looks are slow, until the next one.
const FIRST_NAP: Duration = Duration::from_millis(16);

/// A worker that was woken has had work for so long, or has no free slot left, when it says that it is awake: until then it goes to sleep again without a word. Each time it says either
/// leaves a dead row that every claim and every enqueue passes as long as an old snapshot keeps it; being told of some runs more costs less.
const WIDE_AWAKE: Duration = Duration::from_millis(100);

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

/// Lanes that are remembered beside the worker's own; beyond it the empty ones are forgotten and found again by a look.
const MAX_LANES: usize = 256;

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
    pub(crate) wake: Arc<Notify>,
    /// Tells maintenance that the reply to a claim was lost.
    pub(crate) doubt: Arc<Notify>,
    pub(crate) stop: watch::Receiver<bool>,
}

/// What the database has of a worker, where enqueues look whether to announce their runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KnownAs {
    Awake,
    Asleep,
    /// The reply to what it last said was lost.
    Unknown,
}

/// What the claimer remembers.
struct Memory {
    connection: Option<PoolConnection<Postgres>>,
    positions: BTreeMap<Lane, Position>,
    /// The lanes of the jobs that this worker knows, at their own priorities.
    own: BTreeSet<Lane>,
    looks: Looks,
    /// When the next run that is known to be queued is due.
    next_due: Option<Instant>,
    pause: Duration,
    /// The last claim took as many runs as it might.
    was_full: bool,
    asleep: bool,
    known_as: KnownAs,
    /// Since when it has had work, after it was asleep.
    woken_at: Option<Instant>,
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

    /// Claims up to `limit` runs: from the positions, and where they give nothing and a look is affordable, from what it finds.
    async fn take(&self, memory: &mut Memory, limit: usize) -> Result<(Uuid, Vec<Claimed>), sqlx::Error> {
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
        let served = memory.positions.iter().filter(|(lane, _)| self.registry.is_enabled(&lane.job));
        let mut lanes: Vec<(Lane, Position)> = served.map(|(lane, at)| (lane.clone(), *at)).collect();
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
        let served = self.registry.names().filter(|job| self.registry.is_enabled(job));
        let jobs: Vec<String> = served.map(str::to_owned).collect();
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
        } else if !memory.asleep && memory.known_as == KnownAs::Asleep {
            // Whatever was enqueued meanwhile is announced.
            memory.asleep = true;
            memory.pause = FIRST_PAUSE;
            return;
        } else if !memory.asleep {
            self.announce(memory, KnownAs::Asleep).await;
            memory.asleep = memory.known_as == KnownAs::Asleep;
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
        if let Ok(connection) = memory.connection(&self.session).await
            && let Err(error) = self.session.answered(wait::wake_due(connection, TIMERS)).await
        {
            tracing::warn!(%error, "timers wait for the database");
            memory.connection = None;
        }
    }
}

impl Memory {
    fn new(own: BTreeSet<Lane>, registered_at: Timestamp) -> Self {
        // What was queued before is found by the first look.
        let positions = own.iter().map(|lane| (lane.clone(), dead_before(registered_at))).collect();
        Self {
            connection: None,
            positions,
            own,
            looks: Looks::default(),
            next_due: None,
            pause: FIRST_PAUSE,
            was_full: false,
            asleep: false,
            known_as: KnownAs::Awake,
            woken_at: None,
            nap: FIRST_NAP,
            unprompted: false,
        }
    }

    /// Takes over what a look saw. True where something is due.
    fn see(&mut self, (began, Look { now, firsts }): Seen) -> bool {
        if self.positions.len() > self.own.len() + MAX_LANES {
            self.positions.retain(|lane, _| firsts.contains_key(lane) || self.own.contains(lane));
        }
        // What lies before the first living run of a lane is dead, a million rows under an old snapshot, and claims need not meet it.
        for (lane, position) in &mut self.positions {
            if !firsts.contains_key(lane) {
                *position = (*position).max(dead_before(now));
            }
        }
        let mut is_due = false;
        for (lane, first) in firsts {
            if first.due_at <= now {
                is_due = true;
                // Back too, also where a claim has taken it since: that costs the next claim what has died during the look.
                self.positions.insert(lane, first.before);
            } else {
                self.expect(began + first.due_at.since(now).min(FAR));
                // Runs of now come before it.
                let position = self.positions.entry(lane).or_insert(dead_before(now));
                *position = (*position).max(dead_before(now)).min(first.before);
            }
        }
        is_due
    }

    /// Takes over that at this instant nothing was due.
    fn empty(&mut self, now: Timestamp) {
        for position in self.positions.values_mut() {
            *position = (*position).max(dead_before(now));
        }
    }

    /// Notes that a run is due then.
    fn expect(&mut self, at: Instant) {
        self.next_due = Some(self.next_due.map_or(at, |known| known.min(at)));
    }

    async fn connection(&mut self, session: &Session) -> Result<&mut PoolConnection<Postgres>, sqlx::Error> {
        match &mut self.connection {
            Some(connection) => Ok(connection),
            none => Ok(none.insert(session.open().await?)),
        }
    }
}

/// A delay beyond all reason must not overflow; a look finds the run long before.
fn after(delay: Duration) -> Instant {
    Instant::now() + delay.min(FAR)
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

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::store::claim::First;

    fn lane(job: &str) -> Lane {
        Lane { queue: "default".to_owned(), job: job.to_owned(), priority: 0 }
    }

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_unix_micros(seconds * 1_000_000)
    }

    fn claimed_at(seconds: i64) -> Position {
        Position { ready_at: at(seconds), run_id: Uuid::max() }
    }

    fn memory() -> Memory {
        Memory::new(BTreeSet::from([lane("charge")]), at(1_000))
    }

    fn seen(now: i64, firsts: &[(&str, i64)]) -> Seen {
        let first = |due_at| First { before: Position::at(at(due_at)), due_at: at(due_at) };
        let firsts = firsts.iter().map(|(job, due_at)| (lane(job), first(*due_at))).collect();
        (Instant::now(), Look { now: at(now), firsts })
    }

    #[tokio::test]
    async fn a_new_worker_meets_nothing_of_what_died_before_it_and_a_look_leads_it_back_to_what_lives() {
        let mut memory = memory();
        assert_eq!(memory.positions[&lane("charge")], Position::at(at(999)));
        assert!(memory.see(seen(1_001, &[("charge", 500), ("mail", 600)])));
        assert_eq!(memory.positions[&lane("charge")], Position::at(at(500)));
        assert_eq!(memory.positions[&lane("mail")], Position::at(at(600)));
    }

    #[tokio::test]
    async fn a_lane_that_a_look_finds_empty_is_not_searched_again_and_never_moves_back() {
        let mut memory = memory();
        assert!(!memory.see(seen(2_000, &[])));
        assert_eq!(memory.positions[&lane("charge")], Position::at(at(1_999)));
        memory.positions.insert(lane("charge"), claimed_at(2_050));
        assert!(!memory.see(seen(2_010, &[])), "an old one, made beside the claims");
        assert_eq!(memory.positions[&lane("charge")], claimed_at(2_050));
    }

    #[tokio::test]
    async fn a_run_behind_the_position_is_met_again() {
        let mut memory = memory();
        memory.positions.insert(lane("charge"), claimed_at(2_050));
        assert!(memory.see(seen(2_051, &[("charge", 1_500)])));
        assert_eq!(memory.positions[&lane("charge")], Position::at(at(1_500)));
        memory.empty(at(2_052));
        assert_eq!(memory.positions[&lane("charge")], Position::at(at(2_051)), "once it has been claimed");
    }

    #[tokio::test(start_paused = true)]
    async fn a_run_of_the_future_is_expected_and_does_not_hide_those_of_now() {
        let mut memory = memory();
        assert!(!memory.see(seen(2_000, &[("charge", 2_010), ("mail", 2_020)])));
        for job in ["charge", "mail"] {
            assert_eq!(memory.positions[&lane(job)], Position::at(at(1_999)));
        }
        assert_eq!(memory.next_due, Some(Instant::now() + Duration::from_secs(10)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_look_forgets_no_instant_and_counts_from_its_beginning() {
        let mut memory = memory();
        memory.expect(Instant::now() + Duration::from_secs(30));
        let slow = seen(2_000, &[("charge", 2_010)]);
        tokio::time::advance(Duration::from_secs(4)).await;
        memory.see(slow);
        assert_eq!(memory.next_due, Some(Instant::now() + Duration::from_secs(6)));
        memory.next_due = None;
        memory.expect(Instant::now() + Duration::from_millis(300));
        memory.see(seen(2_000, &[]));
        assert_eq!(memory.next_due, Some(Instant::now() + Duration::from_millis(300)));
    }

    #[tokio::test]
    async fn of_too_many_lanes_the_empty_ones_are_forgotten_but_not_the_workers_own() {
        let mut memory = memory();
        for n in 0..=MAX_LANES {
            memory.positions.insert(lane(&format!("job-{n}")), claimed_at(1_500));
        }
        memory.see(seen(2_000, &[("job-7", 1_600)]));
        assert_eq!(memory.positions.keys().collect::<Vec<_>>(), [&lane("charge"), &lane("job-7")]);
    }
}
