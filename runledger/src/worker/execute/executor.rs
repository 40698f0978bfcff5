//! The executor: one task per run, from its claim to its settlement.

use std::future::Future;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::task::AtomicWaker;
use sqlx::PgConnection;
use tokio::sync::{Mutex, Semaphore};

use super::drive::{drive, drive_compensations};
use super::writer::refused;
use crate::connection::code_context::CodeContext;
use crate::connection::db::Db;
use crate::connection::db_timeout::{STATEMENT_LIMIT, with_timeout};
use crate::connection::outage::warn_outage;
use crate::definition::call::is_workflow;
use crate::definition::invocation::{Finished, Invocation, unstorable};
use crate::definition::provided::Provided;
use crate::definition::registry::Registry;
use crate::definition::{Definition, RunFuture};
use crate::engine::attempt::clock::Clock;
use crate::engine::attempt::context::Context;
use crate::engine::attempt::stop::StopReason;
use crate::engine::attempt::{Attempt, Mode, Progress};
use crate::engine::beat::watched;
use crate::engine::group_commit::CommitQueue;
use crate::engine::liveness::Liveness;
use crate::engine::span::within_span;
use crate::engine::step::bounded;
use crate::engine::step::call::policy_of;
use crate::engine::step::markers;
use crate::engine::{body, transaction};
use crate::model::graph::dependency_inputs;
use crate::model::payload::{PayloadError, PayloadKind, Place, Sealer, Stored};
use crate::model::replay::recorded;
use crate::model::replay::{Recorded, Replay};
use crate::model::run::failure::{Failure, FailureKind, Retry};
use crate::model::run::refusal::explained;
use crate::model::run::settle::{Counters, Outcome, RetryPolicy};
use crate::model::run::state::RunState;
use crate::store::attempt::wait::{Waits, continue_run};
use crate::store::error::{Class, Limit, Reason, class, own_cause};
use crate::store::operator::cancel;
use crate::store::worker::claim::Claimed;
use crate::store::worker::suspend::{Suspended, suspend};
use crate::worker::claim::permits::Freed;
use crate::worker::in_flight::{InFlight, Slot, StopOrder, StopSignal};
use crate::worker::report::hook::FailureHook;
use crate::worker::report::observers::{Observers, Watch, What};

/// The pause before a suspension is retried after a transient error. It doubles up to
/// [`LAST_REPEAT`].
const REPEAT: Duration = Duration::from_millis(200);
const LAST_REPEAT: Duration = Duration::from_secs(1);

/// The parts that all attempts of a worker share.
#[derive(Debug)]
pub(crate) struct Executor {
    pub(crate) db: Db,
    pub(crate) commit_queue: CommitQueue,
    pub(crate) provided: Arc<Provided>,
    pub(crate) registry: Arc<Registry>,
    pub(crate) liveness: Liveness,
    pub(crate) in_flight: Arc<InFlight>,
    /// How long a waiting run stays resident.
    pub(crate) idle_residency: Duration,
    /// Limits how many transactional bodies hold a connection, so that they do not use the whole
    /// pool.
    pub(crate) transactions: Arc<Semaphore>,
    /// Notified when a run with a permit of a resource has ended.
    pub(crate) freed: Freed,
    /// Receives the delay of every run that is queued again, so that the claimer wakes in time.
    pub(crate) due: tokio::sync::mpsc::UnboundedSender<Duration>,
    pub(crate) on_failure: Option<FailureHook>,
    #[cfg(feature = "logs")]
    pub(crate) logs: Option<Arc<crate::engine::logs::Sink>>,
    pub(crate) observers: Observers,
    /// Locked while a suspension waits for a lock. Suspensions take turns, so that the pool has
    /// connections for other runs.
    pub(crate) turn: Mutex<()>,
    /// The id of this worker.
    pub(crate) worker_id: i64,
}

/// How the body of an attempt ended.
pub(crate) enum AttemptEnd {
    /// With an outcome to settle.
    Outcome(Outcome),
    /// The run waits for an event outside its worker.
    Suspended(Waits),
    /// The run continues as new, with this input and after this delay.
    Anew(Stored, Duration),
    /// Completed. The body's transaction has written the outcome.
    Written,
    /// Without the lease: the attempt can write nothing more, or its last write had no answer.
    Lost,
}

impl Executor {
    /// Executes a claimed run until its attempt ends.
    pub(crate) async fn execute(
        self: Arc<Self>,
        mut claimed: Claimed,
        definition: &'static Definition,
        slot: Slot,
    ) {
        let policy = policy_of(&claimed.content.options, definition, &self.registry).retry;
        let unreadable = claimed.unreadable.take();
        let (Opened { input, steps, unmet }, unreadable) = match opened(&mut claimed, self.db.sealer()) {
            Ok(opened) => (opened, unreadable),
            Err(error) => (Opened::default(), Some(unreadable.unwrap_or_else(|| error.to_failure()))),
        };
        let attempt = Arc::new(self.attempt(&claimed, steps, &slot, definition));
        let watch = self.observers.watch(&claimed, self.worker_id);
        let run = Run { claimed, input: input.into(), watch };
        let claimed = &run.claimed;
        let is_unreadable = unreadable.is_some();
        let end = if let Some(failure) = unreadable {
            AttemptEnd::Outcome(Outcome::Diverged(failure))
        } else if let Some(state) = claimed.compensating {
            tokio::select! {
                biased;
                end = wait_for_stop(&slot.stop_signal) => end,
                end = Box::pin(self.compensate(&attempt, state)) => end,
            }
        } else if claimed.cancel_requested {
            AttemptEnd::Outcome(cancelled())
        } else if let Some(unmet) = unmet {
            AttemptEnd::Outcome(not_to_run(unmet))
        } else {
            tokio::select! {
                biased;
                end = wait_for_stop(&slot.stop_signal) => end,
                end = self.body(&attempt, &run) => end,
            }
        };
        slot.stop_signal.leave_body();
        self.finish(&attempt, &run, &policy, end).await;
        // An unreadable run may hold a permit.
        if is_unreadable || run.claimed.content.options.resource.is_some() {
            self.hint_at_permit();
        }
    }

    /// Returns a claimed run that has not started to its position in the queue.
    pub(crate) async fn put_back(self: Arc<Self>, claimed: Claimed, slot: Slot) {
        let position = Outcome::Deferred(claimed.ready_at);
        self.settle_unstarted(claimed, slot, position).await;
    }

    /// Blocks a claimed run that this worker cannot execute.
    pub(crate) async fn block(self: Arc<Self>, claimed: Claimed, failure: Failure, slot: Slot) {
        tracing::warn!(job = claimed.lane.job, run_id = %claimed.run_id, %failure, "a run is blocked");
        self.settle_unstarted(claimed, slot, Outcome::Diverged(failure)).await;
    }

    /// Makes the claimer scan for runs whose permit may be free now. A scan that finds none costs
    /// one claim.
    pub(super) fn hint_at_permit(&self) {
        self.freed.note();
        let _ = self.due.send(Duration::ZERO);
    }

    fn attempt(
        &self,
        claimed: &Claimed,
        steps: Vec<Recorded>,
        slot: &Slot,
        definition: &'static Definition,
    ) -> Attempt {
        let replay = Replay::new(steps);
        Attempt {
            fence: slot.fence,
            tenant: claimed.tenant.clone(),
            above: claimed.above,
            definition,
            counters: claimed.counters,
            slice: claimed.slice,
            is_linked: claimed.is_linked,
            provided: Arc::clone(&self.provided),
            registry: Arc::clone(&self.registry),
            db: self.db.clone(),
            commit_queue: self.commit_queue.clone(),
            liveness: self.liveness.clone(),
            transactions: Arc::clone(&self.transactions),
            clock: Clock::new(claimed.claimed_at, &self.provided),
            wakeups: Arc::clone(&slot.stop_signal.wakeups),
            looking: tokio::sync::Mutex::default(),
            driver: AtomicWaker::new(),
            mode: if claimed.compensating.is_some() { Mode::Compensate } else { Mode::Work },
            marking: tokio::sync::Mutex::default(),
            #[cfg(feature = "logs")]
            logs: self.logs.clone(),
            progress: std::sync::Mutex::new(Progress::new(replay, claimed.content.step_failures.clone())),
        }
    }

    async fn body(&self, attempt: &Arc<Attempt>, run: &Run) -> AttemptEnd {
        self.liveness.guard().await;
        if let Some(watch) = &run.watch {
            watch.started();
        }
        let claimed = &run.claimed;
        let definition = attempt.definition;
        let timeout = policy_of(&claimed.content.options, definition, &self.registry).timeout;
        let input = &run.input;
        let number = claimed.counters.attempt.unsigned_abs();
        let invoke = |tx| -> RunFuture {
            let context = Context::new(Arc::clone(attempt), definition, None, number);
            let invocation = Invocation::new(Arc::clone(attempt), context, Arc::clone(input), tx);
            within_span(attempt, "", body::run(definition, invocation))
        };
        if is_workflow(definition) {
            return drive(self, attempt, invoke(None), timeout).await;
        }
        // The progress of a job's body has no step key.
        let watch = |work| watched(attempt, "", definition.heartbeat, work);
        if definition.transactional {
            let commit = transaction::Commit::Run { above: claimed.above };
            let run = |tx| {
                bounded(
                    CodeContext::Other,
                    watch(body::around(attempt, definition.name, true, || invoke(Some(tx)))),
                    timeout,
                )
            };
            let work = Box::pin(transaction::perform(attempt, commit, run));
            return match unless_stopped(attempt, work).await {
                Ok(Ok(_)) => AttemptEnd::Written,
                Ok(Err((failure, retry))) => AttemptEnd::Outcome(Outcome::Failed(failure, retry)),
                Err(stop) => end_of(stop),
            };
        }
        let work = body::around(attempt, definition.name, false, || invoke(None));
        match unless_stopped(attempt, bounded(CodeContext::Other, watch(work), timeout)).await {
            Ok(finished) => AttemptEnd::Outcome(outcome(attempt, finished)),
            Err(stop) => end_of(stop),
        }
    }

    /// Compensates the steps of the run, the last first, and ends it with the outcome decided
    /// before.
    async fn compensate(&self, attempt: &Arc<Attempt>, state: RunState) -> AttemptEnd {
        self.liveness.guard().await;
        match Box::pin(drive_compensations(self, attempt)).await {
            // A run with a failed compensation would be claimed again at once, for ever. A person
            // decides.
            Err(AttemptEnd::Outcome(Outcome::Failed(refused, _))) => {
                AttemptEnd::Outcome(Outcome::Diverged(refused))
            }
            Err(end) => end,
            // The database already has the reason, and uses that one.
            Ok(()) if state == RunState::Cancelled => AttemptEnd::Outcome(cancelled()),
            Ok(()) => {
                let failure = Failure::new(FailureKind::Error, "what its steps did is taken back");
                AttemptEnd::Outcome(Outcome::Failed(failure, Retry::Never))
            }
        }
    }

    async fn finish(&self, attempt: &Arc<Attempt>, run: &Run, policy: &RetryPolicy, end: AttemptEnd) {
        if !matches!(end, AttemptEnd::Written | AttemptEnd::Lost) {
            // Wait for steps and commits that are still being recorded: a run that has ended or
            // waits accepts no more records. If a lock on the lease delays them, only this run's
            // task waits.
            attempt.settled(|_| true).await;
            if attempt.has_ended() {
                if run.watch.is_some() {
                    run.ended(Box::pin(self.found(run)).await);
                }
                return;
            }
        }
        // A suspended run may depend on its markers, so write them first.
        let end = match end {
            AttemptEnd::Suspended(_) | AttemptEnd::Outcome(Outcome::Asleep(_)) => {
                markers::flush(attempt).await.map_or_else(end_of, |()| end)
            }
            AttemptEnd::Outcome(Outcome::Diverged(_)) | AttemptEnd::Written | AttemptEnd::Lost => end,
            AttemptEnd::Outcome(Outcome::Completed(_) | Outcome::Cancelled(_)) | AttemptEnd::Anew(..) => {
                markers::flush_final(attempt).await.map_or_else(end_of, |()| end)
            }
            // A replay may follow, which must read the same markers.
            AttemptEnd::Outcome(_) => markers::flush(attempt).await.map_or_else(end_of, |()| end),
        };
        match end {
            AttemptEnd::Written => run.ended(What::Completed),
            AttemptEnd::Lost if run.watch.is_none() => {}
            AttemptEnd::Lost => run.ended(Box::pin(self.found(run)).await),
            AttemptEnd::Suspended(waits) => {
                let suspended = Box::pin(self.suspend(attempt, &waits)).await;
                self.report_or_block(attempt, run, policy, suspended).await;
            }
            AttemptEnd::Anew(input, delay) => {
                let continued = Box::pin(self.begin_anew(attempt, &input, delay)).await;
                self.report_or_block(attempt, run, policy, continued).await;
            }
            AttemptEnd::Outcome(outcome) => self.settle(attempt, run, policy, outcome).await,
        }
    }

    async fn suspend(&self, attempt: &Attempt, waits: &Waits) -> Result<What, Failure> {
        let is_written = self.until_written(attempt, Detach::Parked(waits)).await?;
        // The awaited event may have arrived already, so the run may be due at once.
        let _ = self.due.send(Duration::ZERO);
        Ok(if is_written { What::Waiting } else { What::Lost })
    }

    async fn begin_anew(&self, attempt: &Attempt, input: &Stored, delay: Duration) -> Result<What, Failure> {
        let is_written = self.until_written(attempt, Detach::Anew(input, delay)).await?;
        let _ = self.due.send(delay);
        Ok(if is_written { What::Continued(delay) } else { What::Lost })
    }

    /// Writes how the attempt left its worker, and retries as long as the database is unavailable.
    /// Returns false if the write found no lease, and the failure if the database refuses it.
    async fn until_written(&self, attempt: &Attempt, parting: Detach<'_>) -> Result<bool, Failure> {
        let (mut takes_turns, mut pause) = (false, REPEAT);
        loop {
            let turn = if takes_turns { Some(self.turn.lock().await) } else { None };
            let connection = self.db.acquire().await;
            if self.db.is_overtaken() {
                return Ok(false);
            }
            let written = match connection {
                Ok(mut connection) => {
                    with_timeout(STATEMENT_LIMIT, parting.write(&mut connection, attempt)).await
                }
                Err(error) => Err(error),
            };
            drop(turn);
            match written {
                Ok(is_written) => return Ok(is_written),
                Err(error) if class(&error) == Class::Permanent => {
                    return Err(explained(parting.name(), &refused(&error)));
                }
                Err(error) => {
                    warn_outage!(static, %error, "the end of an attempt waits for the database");
                    takes_turns = own_cause(&error).reason == Reason::Limit(Limit::Lock);
                }
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LAST_REPEAT);
        }
    }
}

/// A claimed run, its decrypted input, and its watch for observers.
pub(crate) struct Run {
    pub(crate) claimed: Claimed,
    pub(crate) input: Arc<str>,
    pub(crate) watch: Option<Box<Watch>>,
}

/// The decrypted content of a run that its code reads.
#[derive(Default)]
struct Opened {
    input: String,
    steps: Vec<Recorded>,
    /// Why the run must not execute: it is a node of a graph whose condition is not met.
    unmet: Option<Failure>,
}

/// Takes the input and the steps out of a claimed run and decrypts them.
fn opened(claimed: &mut Claimed, sealer: &Sealer) -> Result<Opened, PayloadError> {
    let content = &mut claimed.content;
    let (input, steps) = (std::mem::take(&mut content.input), std::mem::take(&mut content.steps));
    let place = Place::new(claimed.run_id, PayloadKind::Input, "");
    let given = std::mem::take(&mut content.given);
    let unmet = dependency_inputs::failed_condition(&given, sealer)?;
    let input = dependency_inputs::bind(sealer.open(&place, input)?, given, sealer)?;
    Ok(Opened { input, steps: recorded::open(steps, claimed.run_id, sealer)?, unmet })
}

/// How a run leaves its worker without an outcome.
enum Detach<'a> {
    Parked(&'a Waits),
    Anew(&'a Stored, Duration),
}

impl Detach<'_> {
    fn name(&self) -> &'static str {
        match self {
            Self::Parked(_) => "wait of this run",
            Self::Anew(..) => "continuation of this run",
        }
    }

    /// Returns false if the lease is lost.
    async fn write(&self, connection: &mut PgConnection, attempt: &Attempt) -> Result<bool, sqlx::Error> {
        match self {
            Self::Parked(waits) => {
                // The run leaves its worker in order, so earlier crashes no longer count.
                let spent = Counters { attempt: attempt.counters.attempt - 1, crashes: 0 };
                let suspended = suspend(connection, attempt.fence, waits, spent).await?;
                if suspended == Suspended::Locked {
                    attempt.commit_queue.wakes.owe([attempt.fence.run_id]);
                }
                Ok(suspended != Suspended::LeaseLost)
            }
            Self::Anew(input, delay) => {
                let micros = i64::try_from(delay.as_micros()).unwrap_or(i64::MAX);
                continue_run(connection, attempt.fence, input, micros).await
            }
        }
    }
}

/// Polls work until it ends or the attempt stops.
async fn unless_stopped<T>(attempt: &Attempt, work: impl Future<Output = T>) -> Result<T, StopReason> {
    let mut work = std::pin::pin!(work);
    std::future::poll_fn(|cx| match work.as_mut().poll(cx) {
        Poll::Ready(done) => Poll::Ready(Ok(done)),
        Poll::Pending => attempt.stop_reason().map_or(Poll::Pending, |stop| Poll::Ready(Err(stop))),
    })
    .await
}

pub(crate) fn end_of(stop: StopReason) -> AttemptEnd {
    match stop {
        StopReason::LeaseLost => AttemptEnd::Lost,
        StopReason::Diverged(divergence) => AttemptEnd::Outcome(Outcome::Diverged(divergence.to_failure())),
        StopReason::Refused(failure) => AttemptEnd::Outcome(Outcome::Failed(failure, Retry::Never)),
        StopReason::Cancelled => AttemptEnd::Outcome(cancelled()),
        StopReason::FailedOver => AttemptEnd::Outcome(Outcome::Released),
        StopReason::CompensationFailed(failure)
        | StopReason::Sealed(failure)
        | StopReason::Unpolled(failure) => AttemptEnd::Outcome(Outcome::Diverged(failure)),
        StopReason::Continued { input: Some(input), delay } => AttemptEnd::Anew(input, delay),
        StopReason::Continued { input: None, delay } => AttemptEnd::Outcome(Outcome::Continued(delay)),
    }
}

pub(crate) fn outcome(attempt: &Attempt, finished: Finished) -> Outcome {
    match finished.result {
        Ok(output) => {
            let place = Place::new(attempt.fence.run_id, PayloadKind::Output, "");
            match attempt.sealer().seal(&place, output) {
                Ok(output) => Outcome::Completed(output),
                Err(error) if error.is_of_codec() => Outcome::Diverged(unstorable(error.to_failure())),
                Err(error) => Outcome::Failed(unstorable(error.to_failure()), Retry::Never),
            }
        }
        Err((failure, retry)) => Outcome::Failed(failure, retry),
    }
}

/// The outcome of a node whose condition is not met or is invalid.
fn not_to_run(unmet: Failure) -> Outcome {
    match unmet.kind {
        FailureKind::Skipped => Outcome::Cancelled(unmet),
        _ => Outcome::Failed(unmet, Retry::Never),
    }
}

fn cancelled() -> Outcome {
    Outcome::Cancelled(cancel::failure(None))
}

async fn wait_for_stop(stop_signal: &StopSignal) -> AttemptEnd {
    match stop_signal.wait().await {
        StopOrder::Cancel => AttemptEnd::Outcome(cancelled()),
        StopOrder::Release => AttemptEnd::Outcome(Outcome::Released),
        StopOrder::Pause => AttemptEnd::Outcome(Outcome::Paused),
        StopOrder::GoOn | StopOrder::Drop => AttemptEnd::Lost,
    }
}

/// The failure for a run whose row in `ready` names another job than the run itself.
pub(crate) fn unknown_job(job: &str) -> Failure {
    Failure::new(
        FailureKind::Setup,
        format!(
            "`ready.job` of this run differs from its job `{job}`, which this worker has no code for; nothing was executed; resume the run: its row of `ready` is written anew"
        ),
    )
}
