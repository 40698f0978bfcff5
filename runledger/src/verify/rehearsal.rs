//! Rehearsal: replays a run's history with the present code, without a lease and without side
//! effects.
//!
//! A rehearsal delivers recorded steps as a worker does. Every other step stays pending. It polls
//! the body until nothing moves. The code replays if it has then claimed every recorded step and
//! received every delivered result. The attempt has no database, so that even code without a check
//! for rehearsals cannot write.

mod not_due;

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context as Poller, Poll, Wake, Waker};
use std::time::Duration;

use futures_util::task::AtomicWaker;
use tokio::sync::{Notify, Semaphore};
use tokio::time::{Instant, timeout_at};
use uuid::Uuid;

use crate::connection::client_error::ClientError;
use crate::connection::code_context::{CodeContext, take_refusal};
use crate::connection::db::{Db, connection};
use crate::connection::db_timeout::{STATEMENT_LIMIT, with_timeout};
use crate::connection::panic::Caught;
use crate::definition::Definition;
use crate::definition::invocation::{Finished, Invocation};
use crate::definition::provided::Provided;
use crate::definition::registry::Registry;
use crate::engine::attempt::clock::Clock;
use crate::engine::attempt::context::Context;
use crate::engine::attempt::stop::StopReason;
use crate::engine::attempt::{Attempt, Mode, Progress};
use crate::engine::group_commit::CommitQueue;
use crate::engine::liveness::Liveness;
use crate::engine::step::saga::found;
use crate::engine::wakes::Wakes;
use crate::model::graph::dependency_inputs;
use crate::model::payload::{PayloadError, PayloadKind, Place, Sealer};
use crate::model::replay::recorded;
use crate::model::replay::verification::{Verdict, Verification};
use crate::model::replay::{Divergence, Recorded, Replay};
use crate::model::run::failure::{Failure, FailureKind};
use crate::model::run::settle::Counters;
use crate::model::run::version::{others, parts};
use crate::model::timestamp::Timestamp;
use crate::store::attempt::checkpoint::Fence;
use crate::store::attempt::wait::Above;
use crate::store::run::verify::{Content, InFlight, MAX_STATEMENTS, Pages};
use crate::worker::execute::drive::STALLED;

/// Rehearses every run in flight.
pub(crate) async fn verify(
    db: &Db,
    registry: Arc<Registry>,
    provided: Arc<Provided>,
    queues: &[String],
) -> Result<Verification, ClientError> {
    let stage = Stage::new(provided, registry, db.sealer());
    let mut verification = Verification::default();
    let mut pages = Pages::new();
    loop {
        let page = {
            let mut connection = connection(db.pool()).await?;
            with_timeout(STATEMENT_LIMIT * MAX_STATEMENTS, pages.next(&mut connection)).await?
        };
        let Some(page) = page else { return Ok(verification) };
        let (sealer, stage) = (db.sealer(), &stage);
        let with_code = page.into_iter().filter(|it| it.fed.is_none() || !not_due::has_no_code(&it.job));
        let verdicts = side_by_side(with_code.map(|found| async move {
            let (mut job, run_id) = (found.job.clone(), found.run_id);
            let unserved = stage.unserved_queue(&found, queues);
            let mut verdicts = match Script::open(found, sealer) {
                Ok(script) => match stage.finding_of_items(&script).await {
                    Some((of_items, verdict)) => {
                        job = of_items;
                        vec![verdict]
                    }
                    None => stage.verdicts(&script).await,
                },
                Err(failure) => vec![Verdict::Undecodable { failure }],
            };
            verdicts.extend(unserved);
            (job, run_id, verdicts.into_iter().map(|verdict| shown(verdict, sealer)))
        }));
        for (job, run_id, verdicts) in verdicts.await {
            verification.add(&job, run_id, verdicts);
        }
    }
}

/// Prepares a verdict for logs. If payloads are encrypted, this hides the values in its details.
fn shown(verdict: Verdict, sealer: &Sealer) -> Verdict {
    let hidden = |what: &str| format!("{what}; the details are hidden because payloads are encrypted");
    let input = || hidden("an argument is missing, or a value does not fit its type");
    match verdict {
        Verdict::Undecodable { failure } if sealer.seals() && failure.kind != FailureKind::Sealed => {
            Verdict::Undecodable { failure: Failure::new(failure.kind, input()) }
        }
        Verdict::Breaks { divergence: Divergence::Output { key, .. } } if sealer.seals() => Verdict::Breaks {
            divergence: Divergence::Output { key, why: hidden("the output does not fit its type") },
        },
        Verdict::Breaks { divergence: Divergence::Compensation { key, failure } }
            if sealer.seals() && failure.kind == FailureKind::Decode =>
        {
            let failure = Failure::new(failure.kind, input());
            Verdict::Breaks { divergence: Divergence::Compensation { key, failure } }
        }
        verdict => verdict,
    }
}

/// A run as the code should replay it.
#[derive(Clone, Debug)]
pub(crate) struct Script {
    run_id: Uuid,
    job: String,
    tenant: String,
    /// The graph of which the run is a node.
    graph_id: Option<Uuid>,
    input: Arc<str>,
    /// How many attempts the run has used.
    attempt: i32,
    steps: Vec<Recorded>,
    /// Whether the run is compensating, so its code no longer executes.
    compensating: bool,
    /// Whether the inputs of steps are not compared.
    ignores_inputs: bool,
    /// For a node that waits for other nodes: the parameters that those nodes provide.
    fed: Option<Vec<String>>,
}

impl Script {
    fn open(found: InFlight, sealer: &Sealer) -> Result<Self, Failure> {
        let InFlight { run_id, job, tenant, queue: _, graph_id, attempt, compensating, fed, content } = found;
        let content = content.map_err(|unreadable| unreadable.to_failure())?;
        let (input, steps) =
            opened(run_id, content, sealer).map_err(|error: PayloadError| error.to_failure())?;
        Ok(Self {
            run_id,
            job,
            tenant,
            graph_id,
            input,
            attempt,
            steps,
            compensating,
            ignores_inputs: false,
            fed,
        })
    }

    /// Builds the script of a history, for a program that may not have the key of its fingerprints.
    /// It leaves out the compensations by the engine, so the code sees the run as before them.
    #[cfg(feature = "testing")]
    pub(crate) fn of_history(history: &crate::model::replay::history::History, sealer: &Sealer) -> Self {
        Self {
            run_id: history.run_id,
            job: crate::model::run::version::stored_name(&history.job, history.version).into_owned(),
            tenant: history.tenant.clone(),
            graph_id: history.graph_id,
            input: history.input.as_str().into(),
            attempt: i32::try_from(history.attempt).unwrap_or(i32::MAX),
            steps: history.recorded().into_iter().filter(|step| !step.is_compensated_by_engine()).collect(),
            compensating: false,
            ignores_inputs: history.keyed && !sealer.opens(),
            fed: None,
        }
    }

    /// Builds the script of a call that has not started.
    fn of_call(&self, job: String, input: Arc<str>) -> Self {
        Self {
            run_id: self.run_id,
            job,
            tenant: self.tenant.clone(),
            graph_id: self.graph_id,
            input,
            attempt: 0,
            steps: Vec::new(),
            compensating: false,
            ignores_inputs: true,
            fed: None,
        }
    }

    fn replay(&self) -> Replay {
        let replay = Replay::new(self.steps.clone());
        if self.ignores_inputs { replay.ignoring_inputs() } else { replay }
    }
}

/// Decodes the input and the steps of a run.
fn opened(
    run_id: Uuid,
    content: Content,
    sealer: &Sealer,
) -> Result<(Arc<str>, Vec<Recorded>), PayloadError> {
    let Content { input, given, steps } = content;
    let input = sealer.open(&Place::new(run_id, PayloadKind::Input, ""), input)?;
    Ok((dependency_inputs::bind(input, given, sealer)?.into(), recorded::open(steps, run_id, sealer)?))
}

/// Inert versions of everything that an attempt needs.
#[derive(Debug)]
pub(crate) struct Stage {
    provided: Arc<Provided>,
    db: Db,
    commit_queue: CommitQueue,
    liveness: Liveness,
    transactions: Arc<Semaphore>,
    registry: Arc<Registry>,
}

impl Stage {
    pub(crate) fn new(provided: Arc<Provided>, registry: Arc<Registry>, sealer: &Sealer) -> Self {
        // A commit queue without writers, a heartbeat that never beats, and no transaction slot:
        // all callers wait forever.
        let (commit_queue, _writers) = CommitQueue::new(1, Wakes::new().0);
        let (_heart, liveness) = Liveness::new(Duration::ZERO);
        Self {
            provided,
            db: Db::nowhere().sealed_by(sealer),
            commit_queue,
            liveness,
            transactions: Arc::new(Semaphore::new(0)),
            registry,
        }
    }

    /// A finding if the program has the code of the run, but does not serve its queue.
    fn unserved_queue(&self, found: &InFlight, queues: &[String]) -> Option<Verdict> {
        let is_unserved = self.registry.get(&found.job).is_some() && !queues.contains(&found.queue);
        is_unserved.then(|| Verdict::NoQueue { queue: found.queue.clone() })
    }

    /// Returns the findings for a run: first for its own code, then for each pending compensation
    /// that this program cannot execute, in the order of compensation.
    pub(crate) async fn verdicts(&self, script: &Script) -> Vec<Verdict> {
        let Some(definition) = self.registry.get(&script.job) else {
            // This program does not compensate the run either: a worker claims only runs of its own
            // jobs.
            return vec![self.no_code(&script.job)];
        };
        if let Some(fed) = &script.fed
            && not_due::has_missing_arguments(fed)
        {
            return vec![not_due::verdict(definition, &script.input, fed)];
        }
        let own =
            if script.compensating { Verdict::Replays } else { self.rehearse(definition, script).await };
        let mut verdicts = vec![own];
        for (key, call) in script.replay().to_undo() {
            if let Err(failure) = self.rehearse_undo(script, &call).await {
                let divergence = Divergence::Compensation { key: format!("compensate[{key}]"), failure };
                verdicts.push(Verdict::Breaks { divergence });
            }
        }
        verdicts
    }

    /// The job of a map node's items, and why the program cannot run them. `None` if it can, or if
    /// the map node has started: its items are then runs of their own.
    async fn finding_of_items(&self, script: &Script) -> Option<(String, Verdict)> {
        if !script.steps.is_empty() {
            return None;
        }
        let items = not_due::Items::of(&script.job, &script.input, script.fed.as_deref())
            .filter(|items| !items.is_empty())?;
        let job = items.job().into_owned();
        let Some(definition) = self.registry.get(&job) else {
            let verdict = self.no_code(&job);
            return Some((job, verdict));
        };
        let mut verdict = items.verdict(definition);
        for input in items.inputs() {
            if verdict != Verdict::Replays {
                break;
            }
            verdict = self.rehearse(definition, &script.of_call(job.clone(), input.into())).await;
        }
        (verdict != Verdict::Replays).then_some((job, verdict))
    }

    /// The verdict for a run whose stored name the program does not have.
    fn no_code(&self, stored: &str) -> Verdict {
        match others(stored, self.registry.names()) {
            served if served.is_empty() => Verdict::NoCode,
            served => Verdict::NoVersion { version: parts(stored).1, served },
        }
    }

    /// Checks that the program has the job of a recorded call and that the job reads its input.
    /// Does not execute the body.
    async fn rehearse_undo(&self, script: &Script, call: &str) -> Result<(), Failure> {
        let (call, definition) = found(call, &self.registry)?;
        let of_call = script.of_call(call.job.into_owned(), call.input.get().into());
        match self.rehearse(definition, &of_call).await {
            Verdict::Undecodable { failure } => Err(failure),
            _ => Ok(()),
        }
    }

    async fn rehearse(&self, definition: &'static Definition, script: &Script) -> Verdict {
        let attempt = Arc::new(self.attempt(definition, script));
        let number = attempt.counters.attempt.unsigned_abs();
        let context = Context::new(Arc::clone(&attempt), definition, None, number);
        let invocation = Invocation::new(Arc::clone(&attempt), context, Arc::clone(&script.input), None);
        let mut body = Caught::new(CodeContext::BetweenSteps, (definition.run)(invocation));
        let signal = Arc::new(Signal::default());
        let waker = Waker::from(Arc::clone(&signal));
        let mut moves = 0;
        let mut patience = Instant::now() + STALLED;
        loop {
            signal.lower();
            take_refusal();
            let polled = Pin::new(&mut body).poll(&mut Poller::from_waker(&waker));
            if take_refusal() {
                return Verdict::Breaks { divergence: attempt.asks_between_steps() };
            }
            if let Some(stop) = attempt.stop_reason() {
                return stop_reason(&attempt, stop);
            }
            let scene = attempt.scene(&waker);
            if let Poll::Ready(finished) = polled {
                return ended(&attempt, scene.begun, finished.unwrap_or_else(Finished::failed));
            }
            if moves != scene.moves {
                (moves, patience) = (scene.moves, Instant::now() + STALLED);
            }
            // Further clones of the waker are not the engine's: a timer, a channel or a combinator
            // holds them.
            let is_awaiting_more = Arc::strong_count(&signal) > 2 + scene.gated;
            let goes_on = if signal.is_raised() {
                tokio::task::yield_now().await;
                Instant::now() < patience
            } else {
                !scene.met && is_awaiting_more && timeout_at(patience, signal.notify.notified()).await.is_ok()
            };
            if goes_on {
                continue;
            }
            return match (scene.met, scene.awaits_steps || !is_awaiting_more) {
                (true, _) => Verdict::Replays,
                (false, true) => Verdict::Breaks { divergence: attempt.stalled() },
                (false, false) => Verdict::Undecided,
            };
        }
    }

    fn attempt(&self, definition: &'static Definition, script: &Script) -> Attempt {
        Attempt {
            fence: Fence { run_id: script.run_id, token: Uuid::nil() },
            tenant: script.tenant.clone(),
            above: script.graph_id.map_or(Above::Nothing, Above::Graph),
            definition,
            slice: 0,
            is_linked: false,
            counters: Counters { attempt: script.attempt.saturating_add(1), crashes: 0 },
            provided: Arc::clone(&self.provided),
            registry: Arc::clone(&self.registry),
            db: self.db.clone(),
            commit_queue: self.commit_queue.clone(),
            liveness: self.liveness.clone(),
            transactions: Arc::clone(&self.transactions),
            clock: Clock::new(Timestamp::DISTANT_PAST, &self.provided),
            wakeups: Arc::default(),
            looking: tokio::sync::Mutex::default(),
            driver: AtomicWaker::new(),
            marking: tokio::sync::Mutex::default(),
            mode: Mode::Rehearsal,
            #[cfg(feature = "logs")]
            logs: None,
            progress: Mutex::new(Progress::new(script.replay(), Vec::new())),
        }
    }
}

fn stop_reason(attempt: &Attempt, stop: StopReason) -> Verdict {
    match stop {
        StopReason::Diverged(divergence) => Verdict::Breaks { divergence },
        // The engine refuses a call of the code, so the run would end here; or it continues as new,
        // or is parked for a failed compensation, which is checked separately.
        StopReason::Refused(_) | StopReason::Continued { .. } | StopReason::CompensationFailed(_) => {
            met(attempt)
        }
        // Only unrecorded steps cause these, so they never occur in a rehearsal.
        StopReason::LeaseLost
        | StopReason::Cancelled
        | StopReason::FailedOver
        | StopReason::Sealed(_)
        | StopReason::Unpolled(_) => Verdict::Undecided,
    }
}

fn ended(attempt: &Attempt, has_begun: bool, finished: Finished) -> Verdict {
    if !has_begun {
        let failure = finished.result.err().map(|(failure, _)| failure);
        let none = || Failure::new(FailureKind::Decode, "the body ended before it began");
        return Verdict::Undecodable { failure: failure.unwrap_or_else(none) };
    }
    met(attempt)
}

/// Returns the verdict for code that has ended.
fn met(attempt: &Attempt) -> Verdict {
    match attempt.unmet() {
        Some(divergence) => Verdict::Breaks { divergence },
        None => Verdict::Replays,
    }
}

/// Wakes a body, and records that it was woken.
#[derive(Debug, Default)]
struct Signal {
    raised: AtomicBool,
    notify: Notify,
}

impl Signal {
    fn lower(&self) {
        self.raised.store(false, Ordering::Release);
    }

    fn is_raised(&self) -> bool {
        self.raised.load(Ordering::Acquire)
    }
}

impl Wake for Signal {
    fn wake(self: Arc<Self>) {
        self.raised.store(true, Ordering::Release);
        self.notify.notify_one();
    }
}

/// Polls futures concurrently, and returns their outputs in order.
async fn side_by_side<F: Future>(futures: impl Iterator<Item = F>) -> Vec<F::Output> {
    let mut futures: Vec<_> = futures.map(|future| (Box::pin(future), None)).collect();
    std::future::poll_fn(|cx| {
        for (future, output) in &mut futures {
            if output.is_none()
                && let Poll::Ready(ended) = future.as_mut().poll(cx)
            {
                *output = Some(ended);
            }
        }
        if futures.iter().all(|(_, output)| output.is_some()) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    futures.into_iter().filter_map(|(_, output)| output).collect()
}
