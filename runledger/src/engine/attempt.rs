//! One attempt of a run: the state that its body, its steps and the executor share.

pub(crate) mod activity;
#[cfg(feature = "worker")]
mod by_executor;
pub(crate) mod clock;
pub(crate) mod context;
pub(crate) mod stop;

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;

use futures_util::task::AtomicWaker;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use uuid::Uuid;

use crate::connection::db::Db;
use crate::definition::Definition;
use crate::definition::call::is_workflow;
use crate::definition::provided::Provided;
use crate::definition::registry::Registry;
use crate::engine::attempt::clock::Clock;
use crate::engine::attempt::stop::{StopReason, Wait};
use crate::engine::group_commit::CommitQueue;
use crate::engine::liveness::Liveness;
use crate::engine::output::Lines;
use crate::engine::step::detached_writes::RecordedApart;
use crate::engine::step::markers::Markers;
use crate::engine::step::unpolled::AtWork;
use crate::engine::wakeups::Wakeups;
use crate::model::payload::{PayloadError, Place, Plain, Sealer, Stored};
use crate::model::replay::history_size::HistorySize;
use crate::model::replay::recorded::place_of_error;
use crate::model::replay::{Claim, Divergence, Line, Replay, Scope};
use crate::model::run::failure::Failure;
use crate::model::run::request::key_in_slice;
use crate::model::run::settle::Counters;
use crate::model::timestamp::Timestamp;
use crate::store::attempt::checkpoint::{Checkpoint, Fence};
use crate::store::attempt::signal::Left;
use crate::store::attempt::wait::Above;

/// The state of an attempt, for its body, its steps and the executor.
pub(crate) struct Attempt {
    pub(crate) fence: Fence,
    pub(crate) tenant: String,
    /// The parent or the graph of the run.
    pub(crate) above: Above,
    pub(crate) definition: &'static Definition,
    pub(crate) counters: Counters,
    /// How often the run has continued as new.
    pub(crate) slice: u32,
    /// Whether the run was created from another run, so that it may share steps with it.
    pub(crate) is_linked: bool,
    pub(crate) provided: Arc<Provided>,
    pub(crate) registry: Arc<Registry>,
    pub(crate) db: Db,
    pub(crate) commit_queue: CommitQueue,
    pub(crate) liveness: Liveness,
    pub(crate) transactions: Arc<Semaphore>,
    pub(crate) clock: Clock,
    pub(crate) wakeups: Arc<Wakeups>,
    /// Locked by the running poll for a signal: there is one at a time.
    pub(crate) looking: tokio::sync::Mutex<()>,
    /// Wakes the task that polls the body, when something ends that the body does not await.
    pub(crate) driver: AtomicWaker,
    pub(crate) mode: Mode,
    /// Locked while markers are written, until they are committed.
    pub(crate) marking: tokio::sync::Mutex<()>,
    /// The sink for the logs of bodies, if the worker stores logs.
    #[cfg(feature = "logs")]
    pub(crate) logs: Option<Arc<crate::engine::logs::Sink>>,
    pub(crate) progress: Mutex<Progress>,
}

impl fmt::Debug for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Leave out the history: programs log their workflow contexts, and payloads must stay out
        // of logs.
        let (run_id, job) = (self.fence.run_id, self.definition.name);
        f.debug_struct("Attempt").field("run_id", &run_id).field("job", &job).finish_non_exhaustive()
    }
}

/// The purpose of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Executes the run in a worker that holds its lease.
    Work,
    /// Compensates the run's steps, without the workflow's code.
    Compensate,
    /// Replays the history to verify the code. Executes nothing that is not recorded.
    Rehearsal,
}

/// The progress of an attempt.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    pub(super) replay: Replay,
    size: HistorySize,
    /// How many steps execute a body or are being recorded.
    pub(crate) active: usize,
    /// The active steps that a detached task records.
    pub(crate) recorded_apart: RecordedApart,
    /// Steps that have a result and wait for their turn.
    gated: Vec<Waker>,
    /// Unrecorded steps that wait until the code has replayed the whole history.
    pub(super) early: Vec<Waker>,
    /// Idle steps and what they wait for, by ordinal.
    pub(super) waits: HashMap<u64, Wait>,
    /// Children that this attempt has started.
    started: HashSet<Uuid>,
    /// Signals that the code received in this attempt, by number and name.
    given: BTreeSet<(i32, String)>,
    /// Signals that a poll found and the code has not received, by name. Without them, a wait that
    /// is always dropped before its poll ends would never receive a signal.
    left: HashMap<String, Left>,
    /// Whether something has arrived for the code since its last poll.
    pub(super) has_news: bool,
    /// Values that the code has received. No other write of the run may reach the database before
    /// them.
    pub(crate) markers: Markers,
    /// The lines that the workflow has emitted in this attempt.
    pub(crate) lines: Lines,
    /// The number of failed tries of each step, by key, and when the first of them began.
    failures: HashMap<String, (u32, Timestamp)>,
    /// The steps that only make progress if the code polls them.
    pub(crate) at_work: AtWork,
    /// When bodies last reported progress, by the key of their step.
    beats: HashMap<String, Instant>,
    stop: Option<StopReason>,
    /// Whether the attempt's own transaction has ended it.
    has_ended: bool,
    /// Grows with every claim and delivery.
    moves: u64,
    /// Whether the arguments were decoded and the body has begun.
    begun: bool,
}

impl Attempt {
    /// Claims the next step. Returns `None` if the attempt stops: the step's future then never
    /// completes, and the executor ends the attempt.
    ///
    /// `line` is where the code builds the step. The input of the step may be recorded under any of
    /// the fingerprints.
    pub(crate) fn claim(
        &self,
        scope: &Scope,
        name: &str,
        key: Option<&str>,
        fingerprints: &[i64],
        line: Line,
    ) -> Option<Claim> {
        let has_room = self.progress().size.check();
        self.follow(|replay| {
            let claim = replay.claim_any(scope, name, key, fingerprints);
            let claim = claim.map_err(|divergence| divergence.at(line))?;
            if !claim.recorded {
                has_room?;
            }
            Ok(claim)
        })
    }

    /// Queries the replay. If the history and the code differ, stops the attempt and returns
    /// `None`.
    fn follow<T>(&self, ask: impl FnOnce(&mut Replay) -> Result<T, Divergence>) -> Option<T> {
        let mut progress = self.progress();
        match ask(&mut progress.replay) {
            Ok(answer) => {
                progress.moved();
                Some(answer)
            }
            Err(divergence) => {
                progress.stop.get_or_insert(StopReason::Diverged(divergence));
                None
            }
        }
    }

    /// The key of a step, made distinct from the same step in an earlier slice.
    pub(crate) fn key_of_slice<'k>(&self, key: &'k str) -> Cow<'k, str> {
        key_in_slice(self.slice, key)
    }

    /// Whether the code that wrote the history claimed this step at the same place.
    pub(crate) fn is_due(&self, scope: &Scope, name: &str, key: Option<&str>) -> bool {
        self.progress().replay.is_due(scope, name, key)
    }

    pub(crate) fn branch(&self, scope: &Scope, name: &str) -> Scope {
        self.progress().replay.branch(scope, name)
    }

    /// Whether a patch of the code applies to this run, and the claim that records a new decision.
    /// Returns `None` if the attempt stops.
    pub(crate) fn patched(&self, name: &str) -> Option<(bool, Option<Claim>)> {
        self.follow(|replay| replay.patched(name))
    }

    /// The recorded result of a step.
    pub(crate) fn result(&self, ordinal: u64) -> Option<Result<String, Failure>> {
        self.progress().replay.result(ordinal).cloned()
    }

    /// Notes that this attempt has started a child.
    pub(crate) fn note_start(&self, child: Uuid) {
        self.progress().started.insert(child);
    }

    /// Whether this attempt has started the child, and not an earlier attempt.
    pub(crate) fn has_started(&self, child: Uuid) -> bool {
        self.progress().started.contains(&child)
    }

    /// Notes that the code receives a signal. Returns false if it has received that signal before.
    pub(crate) fn give(&self, name: &str, number: i32) -> bool {
        let mut progress = self.progress();
        progress.left.remove(name);
        progress.given.insert((number, name.to_owned()))
    }

    /// Stores a signal that a poll found, until the code receives a signal of that name.
    pub(crate) fn keep_left(&self, name: &str, left: Left) {
        self.progress().left.insert(name.to_owned(), left);
    }

    /// The stored signal of a name, if the code has not received it. Its wait may have been
    /// dropped.
    pub(crate) fn left(&self, name: &str) -> Option<Left> {
        let left = self.progress().left.get(name).cloned()?;
        (!self.is_given(name, left.number)).then_some(left)
    }

    /// Whether the code has received a signal in this attempt.
    pub(crate) fn is_given(&self, name: &str, number: i32) -> bool {
        self.progress().given.contains(&(number, name.to_owned()))
    }

    /// How often this step has failed, and when its first known try began. That is now if no try is
    /// known.
    pub(crate) fn failures(&self, key: &str) -> (u32, Timestamp) {
        let known = self.progress().failures.get(key).copied();
        known.unwrap_or_else(|| (0, self.clock.now()))
    }

    /// Notes that a body has reported progress.
    pub(crate) fn beat(&self, key: &str) -> Instant {
        let now = Instant::now();
        self.progress().beats.insert(key.to_owned(), now);
        now
    }

    /// When a body last reported progress.
    pub(crate) fn last_beat(&self, key: &str) -> Instant {
        self.progress().beats.get(key).copied().unwrap_or_else(Instant::now)
    }

    /// The sealer that encrypts and decrypts the payloads of the run.
    pub(crate) fn sealer(&self) -> &Sealer {
        self.db.sealer()
    }

    /// Builds the checkpoint of a step.
    ///
    /// # Errors
    /// [`PayloadError`] if the result cannot be stored.
    pub(crate) fn checkpoint(
        &self,
        claim: &Claim,
        fingerprint: i64,
        result: Result<Plain, Failure>,
        compensation: Option<Stored>,
    ) -> Result<Checkpoint, PayloadError> {
        let (run_id, key) = (self.fence.run_id, claim.key.as_str());
        let result = match result {
            Ok(output) => Ok(self.sealer().seal(&Place::of_step(run_id, key), output)?),
            // Fail if the text cannot be stored: the code would later receive a different failure.
            Err(failure) => Err(self.sealer().try_seal_failure(&place_of_error(run_id, key), &failure)?),
        };
        let step = Checkpoint { result, compensation, ..self.place_of(claim, fingerprint) };
        self.progress().size.add(claim.ordinal, key, step.n_bytes())?;
        Ok(step)
    }

    /// The checkpoint of a step whose output is already in the database.
    pub(crate) fn place_of(&self, claim: &Claim, fingerprint: i64) -> Checkpoint {
        Checkpoint {
            fence: self.fence,
            key: claim.key.as_str().to_owned(),
            ordinal: claim.ordinal,
            fingerprint,
            result: Ok(Stored::default()),
            seen_len: claim.seen_len,
            seen: self.progress().replay.seen(claim.seen_len),
            compensation: None,
        }
    }

    /// The checkpoint of a step whose output the code has already received. It records that
    /// delivery too.
    pub(crate) fn received(&self, claim: &Claim, fingerprint: i64, output: Stored) -> Checkpoint {
        let place = self.place_of(claim, fingerprint);
        let mut progress = self.progress();
        progress.size.grow(claim.key.as_str(), output.n_bytes());
        let seen_len = progress.replay.seen_len();
        Checkpoint { result: Ok(output), seen_len, seen: progress.replay.seen(seen_len), ..place }
    }

    /// Claims the step that compensates another one. Returns `None` if the attempt stops.
    pub(crate) fn claim_undo(&self, key: &str) -> Option<Claim> {
        self.follow(|replay| replay.claim_undo(key))
    }

    /// Notes the compensation of a step.
    pub(crate) fn note_compensation(&self, key: &str, compensation: String) {
        self.progress().replay.note_compensation(key, compensation);
    }

    /// The compensation of a step.
    pub(crate) fn compensation_of(&self, key: &str) -> Option<String> {
        self.progress().replay.compensation_of(key)
    }

    /// The steps to compensate, the last first, each with its compensation.
    pub(crate) fn to_undo(&self) -> Vec<(String, String)> {
        self.progress().replay.to_undo()
    }

    /// Notes that a step's checkpoint is committed.
    pub(crate) fn acknowledge(&self, claim: &Claim) {
        self.progress().size.keep(claim.ordinal);
        self.acknowledge_until(claim.seen_len);
    }

    /// Notes that a step claimed after this many deliveries is committed.
    pub(crate) fn acknowledge_until(&self, seen_len: u32) {
        self.progress().replay.acknowledge(seen_len);
    }

    /// Waits until the result of a step may reach the code, and notes its delivery.
    pub(crate) async fn turn(&self, ordinal: u64) {
        std::future::poll_fn(|cx| {
            let mut progress = self.progress();
            if progress.replay.may_deliver(ordinal) {
                progress.replay.deliver(ordinal);
                progress.moved();
                return Poll::Ready(());
            }
            progress.gated.push(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Claims the step that records which dropped steps of a saga to compensate. Returns `None` if
    /// the attempt stops.
    pub(crate) fn claim_saga(&self, first: &str) -> Option<Claim> {
        self.follow(|replay| replay.claim_saga(first))
    }

    /// Notes that the arguments are decoded. Returns whether to run the body: the rehearsal of a
    /// job ends here, because its body has effects.
    pub(crate) fn begin(&self) -> bool {
        self.progress().begun = true;
        self.works() || is_workflow(self.definition)
    }

    /// Whether this is not a rehearsal.
    pub(crate) fn works(&self) -> bool {
        self.mode != Mode::Rehearsal
    }

    /// Accesses the unwritten markers.
    pub(crate) fn with_markers<T>(&self, work: impl FnOnce(&mut Markers) -> T) -> T {
        work(&mut self.progress().markers)
    }

    /// Accesses the emitted lines.
    pub(crate) fn with_lines<T>(&self, work: impl FnOnce(&mut Lines) -> T) -> T {
        work(&mut self.progress().lines)
    }

    /// Stops the attempt: wakes the executor, which then ends it.
    pub(crate) fn stop(&self, stop: StopReason) {
        self.progress().stop.get_or_insert(stop);
        self.driver.wake();
    }

    /// Sleeps until an instant of the database's clock, as estimated by this process.
    ///
    /// Returns at once if the history shows that the code has continued after this sleep. Never
    /// returns in a rehearsal: a sleep is over in the history, or never.
    pub(crate) async fn sleep_until(&self, ordinal: u64, until: Timestamp) {
        // A clock that was set back, or the slower clock of a promoted server, must not repeat the
        // sleep.
        if self.progress().replay.was_delivered(ordinal) {
            return;
        }
        if !self.works() {
            std::future::pending::<()>().await;
        }
        let left = until.since(self.clock.now());
        if left > Duration::ZERO {
            tokio::time::sleep(left).await;
        }
    }

    /// Notes that the body's own transaction has ended the attempt: nothing is left to write.
    pub(crate) fn note_end(&self) {
        self.progress().has_ended = true;
    }

    pub(crate) fn progress(&self) -> MutexGuard<'_, Progress> {
        // Nothing panics while it holds the lock. Even then, the value would be consistent.
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Progress {
    fn moved(&mut self) {
        self.moves += 1;
        self.gated.drain(..).for_each(Waker::wake);
        if self.replay.may_begin() {
            self.early.drain(..).for_each(Waker::wake);
        }
    }
}
