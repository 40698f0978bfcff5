//! One attempt of a run: what its body, its steps and the executor share.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;

use futures_util::task::AtomicWaker;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use uuid::Uuid;

use super::clock::Clock;
use super::detached_writes::RecordedApart;
use super::group_commit::CommitQueue;
use super::liveness::Liveness;
use super::markers::Markers;
use super::output::Lines;
#[cfg(feature = "worker")]
use super::stop::PollVerdict;
use super::stop::{StopReason, Wait};
use super::unpolled::AtWork;
#[cfg(feature = "worker")]
use super::unpolled::UnpolledSteps;
use super::wakeups::Wakeups;
use crate::connection::db::Db;
use crate::definition::Definition;
use crate::definition::call::is_workflow;
use crate::definition::provided::Provided;
use crate::definition::registry::Registry;
use crate::model::failure::Failure;
use crate::model::history_size::HistorySize;
use crate::model::payload::{PayloadError, Place, Plain, Sealer, Stored};
use crate::model::recorded::place_of_error;
use crate::model::replay::{Claim, Divergence, Line, Replay, Scope};
use crate::model::request::key_in_slice;
use crate::model::settle::Counters;
use crate::model::timestamp::Timestamp;
use crate::store::checkpoint::{Checkpoint, Fence};
#[cfg(feature = "worker")]
use crate::store::claim::FailedTries;
use crate::store::signal::Left;
use crate::store::wait::Above;

/// What an attempt's body and its steps need, and where they leave what the executor must know.
pub(crate) struct Attempt {
    pub(crate) fence: Fence,
    pub(crate) tenant: String,
    /// What stands above the run.
    pub(crate) above: Above,
    pub(crate) definition: &'static Definition,
    pub(crate) counters: Counters,
    /// How often the run has begun anew.
    pub(crate) slice: u32,
    /// Whether the run was made of another, from which it may have steps.
    pub(crate) is_linked: bool,
    pub(crate) provided: Arc<Provided>,
    pub(crate) registry: Arc<Registry>,
    pub(crate) db: Db,
    pub(crate) commit_queue: CommitQueue,
    pub(crate) liveness: Liveness,
    pub(crate) transactions: Arc<Semaphore>,
    pub(crate) clock: Clock,
    pub(crate) wakeups: Arc<Wakeups>,
    /// Held by the look for a signal that is under way: there is one at a time.
    pub(crate) looking: tokio::sync::Mutex<()>,
    /// What polls the body, where something that the body does not await has an end.
    pub(crate) driver: AtomicWaker,
    pub(crate) mode: Mode,
    /// Held by whoever sends marks, until they are committed.
    pub(crate) marking: tokio::sync::Mutex<()>,
    /// Where its bodies' logs go, if its worker keeps any.
    #[cfg(feature = "logs")]
    pub(crate) logs: Option<Arc<super::logs::Sink>>,
    pub(crate) progress: Mutex<Progress>,
}

impl fmt::Debug for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Nothing of the record: programs log what they hold of a workflow, and payloads stay out of logs.
        let (run_id, job) = (self.fence.run_id, self.definition.name);
        f.debug_struct("Attempt").field("run_id", &run_id).field("job", &job).finish_non_exhaustive()
    }
}

/// What an attempt is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// To bring the run forward, in a worker that holds its lease.
    Work,
    /// To take back what its steps did, without its code.
    Undo,
    /// To see whether the code follows the record. Nothing is done that the record does not have.
    Rehearsal,
}

/// How far an attempt has come.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    replay: Replay,
    size: HistorySize,
    /// Steps whose bodies run or whose records are under way.
    pub(crate) active: usize,
    /// Of these those that are being recorded whatever becomes of their futures.
    pub(crate) recorded_apart: RecordedApart,
    /// Steps whose result is there and whose turn has not come.
    gated: Vec<Waker>,
    /// Steps that are not recorded, of code that has not met the whole record yet.
    early: Vec<Waker>,
    /// Steps that wait without working, by ordinal.
    waits: HashMap<u64, Wait>,
    /// Children that this attempt has started.
    started: HashSet<Uuid>,
    /// Signals that the code has been given in this attempt, by number and name.
    given: BTreeSet<(i32, String)>,
    /// Signals that looks have found and that the code has not been given, by name: one that is dropped sooner than a look takes would never find any.
    left: HashMap<String, Left>,
    /// Whether something has come for the code since it was polled last.
    has_news: bool,
    /// Values that the code has been given and that nothing of the run may overtake on its way to the database.
    pub(crate) markers: Markers,
    /// What the workflow has emitted in this attempt.
    pub(crate) lines: Lines,
    /// Failed tries of steps, by key: how many, and when the first of them began.
    failures: HashMap<String, (u32, Timestamp)>,
    /// Those that the code has to poll, if they are to go on.
    pub(crate) at_work: AtWork,
    /// When bodies last said how far they are, by the key of their step.
    beats: HashMap<String, Instant>,
    stop: Option<StopReason>,
    /// Whether the attempt's own transaction has ended it.
    #[cfg(feature = "worker")]
    has_ended: bool,
    /// Grows with every claim and delivery.
    moves: u64,
    /// Whether the arguments were decoded and the body has begun.
    begun: bool,
}

impl Progress {
    #[cfg(feature = "worker")]
    pub(crate) fn new(replay: Replay, failures: Vec<(String, FailedTries)>) -> Self {
        let failures =
            failures.into_iter().map(|(key, tries)| (key, (tries.count, tries.began_at))).collect();
        let size = HistorySize::of(replay.n_bytes());
        Self { replay, size, failures, ..Self::default() }
    }
}

/// How far a rehearsal has come.
#[cfg(feature = "worker")]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scene {
    /// Whether the arguments were decoded.
    pub(crate) begun: bool,
    /// Grows with every claim and delivery.
    pub(crate) moves: u64,
    /// Whether the code has followed all of the record.
    pub(crate) met: bool,
    /// Whether the code awaits a step, recorded or not.
    pub(crate) awaits_steps: bool,
    /// How many clones of the body's own waker the steps hold.
    pub(crate) gated: usize,
}

impl Attempt {
    /// Claims the next step. None where the attempt stops: the step's future then never completes, and the executor ends the attempt.
    /// `line` is that of the code that builds the step; the input of the step may be on record under any of the fingerprints.
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

    /// Asks the record. None where it and the code disagree: then the attempt stops.
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

    /// A step's key, told from that of the same step before the run began anew.
    pub(crate) fn key_of_slice<'k>(&self, key: &'k str) -> Cow<'k, str> {
        key_in_slice(self.slice, key)
    }

    /// Whether the record has this step next, and had it by now.
    pub(crate) fn is_due(&self, scope: &Scope, name: &str, key: Option<&str>) -> bool {
        self.progress().replay.is_due(scope, name, key)
    }

    /// A branch of a scope.
    pub(crate) fn branch(&self, scope: &Scope, name: &str) -> Scope {
        self.progress().replay.branch(scope, name)
    }

    /// Whether a change of the code is in force, with the claim that records a fresh decision. None where the attempt stops.
    pub(crate) fn patched(&self, name: &str) -> Option<(bool, Option<Claim>)> {
        self.follow(|replay| replay.patched(name))
    }

    /// What is recorded for a step.
    pub(crate) fn result(&self, ordinal: u64) -> Option<Result<String, Failure>> {
        self.progress().replay.result(ordinal).cloned()
    }

    /// Notes that this attempt has started a child.
    pub(crate) fn note_start(&self, child: Uuid) {
        self.progress().started.insert(child);
    }

    /// Whether this attempt has started the child, and not one before.
    pub(crate) fn has_started(&self, child: Uuid) -> bool {
        self.progress().started.contains(&child)
    }

    /// Notes that the code is given a signal. False where it has been before.
    pub(crate) fn give(&self, name: &str, number: i32) -> bool {
        let mut progress = self.progress();
        progress.left.remove(name);
        progress.given.insert((number, name.to_owned()))
    }

    /// Keeps a signal that a look has found, until the code is given one of its name.
    pub(crate) fn keep_left(&self, name: &str, left: Left) {
        self.progress().left.insert(name.to_owned(), left);
    }

    /// The signal of a name that a look has found, perhaps one whose wait was dropped, and that the code was not given meanwhile.
    pub(crate) fn left(&self, name: &str) -> Option<Left> {
        let left = self.progress().left.get(name).cloned()?;
        (!self.is_given(name, left.number)).then_some(left)
    }

    /// Whether the code has been given a signal in this attempt.
    pub(crate) fn is_given(&self, name: &str, number: i32) -> bool {
        self.progress().given.contains(&(number, name.to_owned()))
    }

    /// How often this step has failed before, and when the first of its tries began that is known: this one, where none is.
    pub(crate) fn failures(&self, key: &str) -> (u32, Timestamp) {
        let known = self.progress().failures.get(key).copied();
        known.unwrap_or_else(|| (0, self.clock.now()))
    }

    /// Notes that a body has given a sign of life.
    pub(crate) fn beat(&self, key: &str) -> Instant {
        let now = Instant::now();
        self.progress().beats.insert(key.to_owned(), now);
        now
    }

    /// When a body last gave one.
    pub(crate) fn last_beat(&self, key: &str) -> Instant {
        self.progress().beats.get(key).copied().unwrap_or_else(Instant::now)
    }

    /// What seals and opens the payloads of the run.
    pub(crate) fn sealer(&self) -> &Sealer {
        self.db.sealer()
    }

    /// The checkpoint of a step.
    ///
    /// # Errors
    /// [`PayloadError`], where its result cannot be stored.
    pub(crate) fn checkpoint(
        &self,
        claim: &Claim,
        fingerprint: i64,
        result: Result<Plain, Failure>,
        undo: Option<Stored>,
    ) -> Result<Checkpoint, PayloadError> {
        let (run_id, key) = (self.fence.run_id, claim.key.as_str());
        let result = match result {
            Ok(output) => Ok(self.sealer().seal(&Place::of_step(run_id, key), output)?),
            // Without its text it would not be what the code receives.
            Err(failure) => Err(self.sealer().try_seal_failure(&place_of_error(run_id, key), &failure)?),
        };
        let step = Checkpoint { result, undo, ..self.place_of(claim, fingerprint) };
        self.progress().size.add(claim.ordinal, key, step.n_bytes())?;
        Ok(step)
    }

    /// The checkpoint of a step whose output the statement finds elsewhere.
    pub(crate) fn place_of(&self, claim: &Claim, fingerprint: i64) -> Checkpoint {
        Checkpoint {
            fence: self.fence,
            key: claim.key.as_str().to_owned(),
            ordinal: claim.ordinal,
            fingerprint,
            result: Ok(Stored::default()),
            seen_len: claim.seen_len,
            seen: self.progress().replay.seen(claim.seen_len),
            undo: None,
        }
    }

    /// The checkpoint of a step whose output the code has by now: that it has is recorded with it.
    pub(crate) fn received(&self, claim: &Claim, fingerprint: i64, output: Stored) -> Checkpoint {
        let place = self.place_of(claim, fingerprint);
        let mut progress = self.progress();
        progress.size.grow(claim.key.as_str(), output.n_bytes());
        let seen_len = progress.replay.seen_len();
        Checkpoint { result: Ok(output), seen_len, seen: progress.replay.seen(seen_len), ..place }
    }

    /// Claims the step that takes back what another did. None where the attempt stops.
    pub(crate) fn claim_undo(&self, key: &str) -> Option<Claim> {
        self.follow(|replay| replay.claim_undo(key))
    }

    /// Notes the call that takes back what a step did.
    pub(crate) fn note_undo(&self, key: &str, undo: String) {
        self.progress().replay.note_undo(key, undo);
    }

    /// The call that takes back what a step did.
    pub(crate) fn undo_of(&self, key: &str) -> Option<String> {
        self.progress().replay.undo_of(key)
    }

    /// The steps whose effects can be taken back and are not, the last first, each with the call that does it.
    pub(crate) fn to_undo(&self) -> Vec<(String, String)> {
        self.progress().replay.to_undo()
    }

    /// Notes that a step's checkpoint is committed.
    pub(crate) fn acknowledge(&self, claim: &Claim) {
        self.progress().size.keep(claim.ordinal);
        self.acknowledge_until(claim.seen_len);
    }

    /// Notes that a step that was claimed after so many deliveries is committed.
    pub(crate) fn acknowledge_until(&self, seen_len: u32) {
        self.progress().replay.acknowledge(seen_len);
    }

    /// Waits until the result of a step may reach the code, and notes that it does.
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

    /// Claims the step that says which of the dropped steps of a saga are taken back. None where the attempt stops.
    pub(crate) fn claim_saga(&self, first: &str) -> Option<Claim> {
        self.follow(|replay| replay.claim_saga(first))
    }

    /// Counts a step as working until the guard is dropped. Whatever is done for a step that is not recorded begins here, and so never in a rehearsal.
    /// It begins where [`Replay::may_begin`] says so: code that never meets its record has changed, and must do nothing before that is found.
    pub(crate) async fn begin_work(&self) -> Working<&Self> {
        Self::begin_work_of(self).await
    }

    /// The same, with a guard that holds what it is given: for work that goes on whether the step is polled or not.
    pub(crate) async fn begin_work_of<A: Deref<Target = Self>>(attempt: A) -> Working<A> {
        if attempt.mode == Mode::Work {
            attempt.may_begin().await;
        }
        attempt.progress().active += 1;
        let working = Working(attempt);
        if !working.0.works() {
            std::future::pending::<()>().await;
        }
        working
    }

    async fn may_begin(&self) {
        std::future::poll_fn(|cx| {
            let mut progress = self.progress();
            if progress.replay.may_begin() {
                return Poll::Ready(());
            }
            progress.early.push(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Notes that the arguments are decoded. False where that was all to be seen: the body of a job has effects.
    pub(crate) fn begin(&self) -> bool {
        self.progress().begun = true;
        self.works() || is_workflow(self.definition)
    }

    /// Whether this is no rehearsal.
    pub(crate) fn works(&self) -> bool {
        self.mode != Mode::Rehearsal
    }

    /// Notes what a step waits for until the guard is dropped.
    pub(crate) fn waiting(&self, ordinal: u64, wait: Wait) -> Waiting<&Self> {
        Self::waiting_of(self, ordinal, wait)
    }

    /// The same, with a guard that holds what it is given.
    pub(crate) fn waiting_of<A: Deref<Target = Self>>(attempt: A, ordinal: u64, wait: Wait) -> Waiting<A> {
        attempt.progress().waits.insert(ordinal, wait);
        Waiting(attempt, ordinal)
    }

    /// The marks, where they are kept until they are written.
    pub(crate) fn with_markers<T>(&self, work: impl FnOnce(&mut Markers) -> T) -> T {
        work(&mut self.progress().markers)
    }

    /// What the workflow has emitted.
    pub(crate) fn with_lines<T>(&self, work: impl FnOnce(&mut Lines) -> T) -> T {
        work(&mut self.progress().lines)
    }

    /// Ends the attempt at the executor's next look, which is now.
    pub(crate) fn stop(&self, stop: StopReason) {
        self.progress().stop.get_or_insert(stop);
        self.driver.wake();
    }

    /// Sleeps until an instant of the database's clock, as well as this process knows it, unless the code has gone on from there before. A rehearsal does not
    /// sleep: the code has been woken, or it never is.
    pub(crate) async fn sleep_until(&self, ordinal: u64, until: Timestamp) {
        // A clock that has been set back, or a promoted server's that is behind, does not undo it.
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

    pub(crate) fn progress(&self) -> MutexGuard<'_, Progress> {
        // Nothing panics while it holds the lock; should it, what is there is as good as before.
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(feature = "worker")]
impl Attempt {
    /// Notes that the transaction of the run's body has ended the attempt: there is nothing left to write for it.
    pub(crate) fn note_end(&self) {
        self.progress().has_ended = true;
    }

    /// Whether the transaction of the run's body has ended the attempt.
    pub(crate) fn has_ended(&self) -> bool {
        self.progress().has_ended
    }

    /// To be called before each poll of the body: it sees whatever has come for it.
    pub(crate) fn polled_by(&self, driver: &Waker) {
        self.driver.register(driver);
        self.progress().has_news = false;
    }

    /// The steps that the code passes by, after a poll that began at this instant.
    pub(crate) fn kept(&self, polled_from: Instant) -> UnpolledSteps {
        self.progress().at_work.unpolled(polled_from)
    }

    /// What to do with a workflow whose future is pending, and which passes these steps by.
    pub(crate) fn rest(&self, kept: &UnpolledSteps) -> PollVerdict {
        let progress = self.progress();
        if let Some(stop) = &progress.stop {
            return PollVerdict::Stopped(stop.clone());
        }
        if progress.has_news {
            return PollVerdict::Working;
        }
        let none_gated = progress.gated.is_empty() && progress.early.is_empty();
        let follows = self.mode == Mode::Undo || progress.replay.is_met();
        let waits = || PollVerdict::Waiting(progress.moves, progress.waits.values().cloned().collect());
        match (progress.active, progress.waits.is_empty(), none_gated) {
            // Code that has left the record must not wait for something new: it would be found out only when that comes.
            (0, false, _) if !follows => PollVerdict::Stalled(progress.moves),
            (0, false, _) => waits(),
            (0, true, false) => PollVerdict::Stalled(progress.moves),
            // What it passes by does not go on before something else has come for it.
            (active, false, _) if follows && kept.count == Some(active) => waits(),
            (_, _, _) => PollVerdict::Working,
        }
    }

    /// Why the attempt cannot go on, if it cannot.
    pub(crate) fn stop_reason(&self) -> Option<StopReason> {
        self.progress().stop.clone()
    }

    /// The divergence of a workflow that ends without reaching recorded steps.
    pub(crate) fn unmet(&self) -> Option<Divergence> {
        self.progress().replay.unmet()
    }

    /// The divergence of a workflow whose recorded results wait for a turn that does not come.
    pub(crate) fn stalled(&self) -> Divergence {
        self.progress().replay.stalled()
    }

    /// The divergence of a workflow that asks the engine for something between its steps.
    pub(crate) fn asks_between_steps(&self) -> Divergence {
        Divergence::BetweenSteps { after: self.progress().replay.last_delivered().map(ToOwned::to_owned) }
    }

    /// How far a rehearsal has come.
    pub(crate) fn scene(&self, own: &Waker) -> Scene {
        let progress = self.progress();
        Scene {
            begun: progress.begun,
            moves: progress.moves,
            met: progress.replay.is_met(),
            awaits_steps: progress.active > 0 || !progress.waits.is_empty() || !progress.gated.is_empty(),
            gated: progress.gated.iter().filter(|waker| waker.will_wake(own)).count(),
        }
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

/// A step that works.
#[derive(Debug)]
pub(crate) struct Working<A: Deref<Target = Attempt>>(A);

impl Working<Arc<Attempt>> {
    /// Ends work that was done apart from the body, which may have let go of it: then only this tells that the run has nothing more to do.
    pub(crate) fn ends_apart(self) {
        let attempt = Arc::clone(&self.0);
        drop(self);
        attempt.driver.wake();
    }

    /// The same, where the work has brought something: the run is not idle before the body was polled with it.
    pub(crate) fn ends_with_news(self) {
        self.0.progress().has_news = true;
        self.ends_apart();
    }
}

impl<A: Deref<Target = Attempt>> Drop for Working<A> {
    fn drop(&mut self) {
        let mut progress = self.0.progress();
        progress.active = progress.active.saturating_sub(1);
    }
}

/// A step that waits.
#[derive(Debug)]
pub(crate) struct Waiting<A: Deref<Target = Attempt>>(A, u64);

impl<A: Deref<Target = Attempt>> Drop for Waiting<A> {
    fn drop(&mut self) {
        self.0.progress().waits.remove(&self.1);
    }
}
