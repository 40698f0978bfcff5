//! Executes one run, with or without a fault, in its own database.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sqlx::PgConnection;
use uuid::Uuid;

use super::super::drive::{Drive, STALL_LIMIT};
use super::super::standstill::{Standstill, is_over, why};
use super::super::{Plan, Testing};
use super::fault::Fault;
use super::process::Process;
use super::slot::{Slot, Slots};
use crate::definition::jobs::DefinitionOf;
use crate::engine::test_hooks::{HoldAt, Phase, Role, Steps, TestHooks};
use crate::model::json::canonical;
use crate::model::payload::{PayloadKind, Place, Sealer};
use crate::model::replay::recorded::place_of_error;
use crate::model::run::failure::Failure;
use crate::store::failpoints::scope::{Scope, Written};
use crate::store::run::inspect::{End, end_of_run};
use crate::store::testing::{Look, Step, blocked, cancel_requested, forgotten, steps};
use crate::store::worker::set_aside::SetAside;
use crate::store::worker::wakes::wake_stranded;
use crate::store::worker::{bury_if_silent, held, mark_dead};
use crate::worker::upkeep::failure_detector::AFTER_BURIAL;
use crate::worker::upkeep::maintenance::BATCH;
use crate::worker::upkeep::orphans::adopt_orphans;
use crate::{Call, ClientError, Db, Job, RunHandle, RunState};

/// The pause between two polls. Each poll costs a query.
const PAUSE: Duration = Duration::from_millis(8);

/// How long connections of the test may take to return to their pool, before the clone ends their
/// sessions.
const GOODBYE: Duration = Duration::from_millis(200);

/// How often the kit skips time or sends a signal after the run and all its descendants have ended.
const NUDGES_AFTERWARDS: u32 = 20;

/// Connections of the test itself: polls, signals and the invariant.
const CONNECTIONS: u32 = 4;

/// Provides the databases for the runs.
pub(super) struct Stage {
    slots: Slots,
    plan: Arc<Plan>,
}

/// The facts about a run that remain after its database was reused.
pub(super) struct Seen {
    /// Whether the fault happened.
    pub(super) was_met: bool,
    pub(super) written: Vec<Written>,
    /// The bodies that started, and whether each had a transaction.
    pub(super) begun: Vec<(String, bool)>,
    end: Outcome,
}

/// The outcome of a run, with decoded payloads.
struct Outcome {
    state: RunState,
    output: Option<String>,
    failure: Option<Failure>,
}

impl Outcome {
    fn of(end: End, run_id: Uuid, sealer: &Sealer) -> Self {
        let End { state, output, failure } = end;
        let place = Place::new(run_id, PayloadKind::Output, "");
        Self {
            state,
            output: output.map(|output| sealer.show(&place, output)),
            failure: failure.map(|failure| sealer.show_failure(&place_of_error(run_id, ""), &failure)),
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = self.output.clone().or_else(|| self.failure.as_ref().map(Failure::to_string));
        write!(f, "{} with {}", self.state, what.as_deref().unwrap_or("nothing"))
    }
}

/// A run that has ended, and its database.
pub(super) struct FinishedRun {
    was_met: bool,
    run_id: Uuid,
    end: Outcome,
    steps: Vec<Step>,
    written: Vec<Written>,
    begun: Vec<(String, bool)>,
    db: Db,
    scene: Arc<TestHooks>,
    slot: Slot,
}

impl Stage {
    pub(super) async fn new(test: &Testing) -> Result<Self, ClientError> {
        if test.worker.initialized() {
            let message = "this test has started a run already, and its database would be the beginning of each crash; crash what another `Testing` is \
                           made of";
            return Err(ClientError::Config(message.to_owned()));
        }
        let plan = Plan { skips: true, ..test.plan.clone() };
        let (server, template) = (Arc::clone(test.database.server()), test.database.name().to_owned());
        let began = Instant::now();
        // A template must have no sessions, and the pool of the test keeps some open.
        while test.db.pool().size() > 0 {
            match test.db.pool().try_acquire() {
                // The connection is closed even if the clean shutdown fails.
                Some(idle) => drop(idle.close().await),
                None if began.elapsed() < GOODBYE => tokio::time::sleep(PAUSE).await,
                None => break,
            }
        }
        Ok(Self { slots: Slots::new(server, template), plan: Arc::new(plan) })
    }

    /// Runs a call to its end. Returns what went wrong if it does not end.
    pub(super) async fn run<J: Job>(
        &self,
        call: &Call<J>,
        fault: Option<&Fault>,
    ) -> Result<FinishedRun, String> {
        let mut slot = self.slots.take().await.map_err(told)?;
        let (dies_at, held_at) = match fault {
            None => (None, None),
            Some(Fault::Death(write, moment)) => (Some((write.clone(), *moment)), None),
            Some(Fault::Loss { step, hold, .. }) => (None, Some((step.clone(), *hold))),
        };
        let scene = self.plan.scene_with(Steps::held_at(held_at));
        let options = slot.database.options();
        let db = self.plan.sealed(Db::lazily(options.clone(), CONNECTIONS));
        let blocked_before = blocked(&mut slot.connection).await.map_err(told)?;
        let handle = call.again().enqueue(db.on(&mut slot.connection)).await.map_err(told)?;
        let scope = Scope::new(dies_at);
        let first = Process::start(&self.plan, &options, &scene, Arc::clone(&scope), Role::First);
        let first = first.await.map_err(told)?;
        let stall_limit = self.plan.stall_limit.unwrap_or(STALL_LIMIT);
        let drive =
            Drive::new(&db, Arc::clone(&scene), self.plan.script.anew(), self.plan.names(), stall_limit);
        let mut course = Course {
            stage: self,
            options,
            scene: Arc::clone(&scene),
            drive,
            stall_limit,
            first: Some(first),
            second: None,
            sweep_at: None,
            before: Vec::new(),
        };
        let connection = &mut slot.connection;
        let run = Box::pin(course.follow(connection, handle.id(), fault)).await;
        let was_met = course.end(run.is_ok()).await;
        run?;
        let end = end_of_run(connection, handle.id()).await.map_err(told)?;
        let end = Outcome::of(end.ok_or("the run is gone")?, handle.id(), db.sealer());
        let steps = steps(connection, db.sealer()).await.map_err(told)?;
        nothing_lost(&course.before, &steps, &forgotten(connection).await.map_err(told)?)?;
        if let (RunState::Blocked, Some(failure)) = (end.state, &end.failure) {
            return Err(format!("the run is blocked: {failure}"));
        }
        for (run_id, job) in blocked(connection).await.map_err(told)? {
            if !blocked_before.iter().any(|(before, _)| *before == run_id) {
                let end = end_of_run(connection, run_id).await.map_err(told)?.ok_or("a run is gone")?;
                let end = Outcome::of(end, run_id, db.sealer());
                return Err(format!("a run of `{job}` that it has enqueued is {end}"));
            }
        }
        let (written, begun) = (scope.written(), scene.steps.begun());
        let run_id = handle.id();
        Ok(FinishedRun { was_met, run_id, end, steps, written, begun, db, scene, slot })
    }
}

impl Stage {
    /// Resets the database of a run for the next run.
    pub(super) async fn give_back(&self, observed: FinishedRun) -> Seen {
        let FinishedRun { was_met, end, written, begun, slot, .. } = observed;
        self.slots.give_back(slot).await;
        Seen { was_met, end, written, begun }
    }

    /// Drops all databases that it created.
    pub(super) async fn clear(&self) {
        self.slots.clear().await;
    }
}

/// Follows one run.
struct Course<'s> {
    stage: &'s Stage,
    options: sqlx::postgres::PgConnectOptions,
    scene: Arc<TestHooks>,
    drive: Drive,
    /// How long nothing may happen. A running body does not count as activity: a body that hangs is
    /// a defect to report.
    stall_limit: Duration,
    first: Option<Process>,
    second: Option<Process>,
    /// When the kit looks for wake-ups that the first worker lost, as a worker does that marks
    /// another one dead.
    sweep_at: Option<Instant>,
    /// The steps recorded when the first worker died or lost the run.
    before: Vec<Step>,
}

impl Course<'_> {
    /// Waits until the run and all its descendants have ended. Enqueued runs may never end, or may
    /// belong to another service, so the kit moves them only by a few skips of time.
    async fn follow(
        &mut self,
        connection: &mut PgConnection,
        run_id: Uuid,
        fault: Option<&Fault>,
    ) -> Result<(), String> {
        let mut standstill = Standstill::default();
        let (mut finished_at, mut n_nudges_left) = (None, NUDGES_AFTERWARDS);
        loop {
            if self.second.is_none() {
                self.meet(connection, fault).await.map_err(told)?;
            }
            if self.sweep_at.take_if(|at| Instant::now() >= *at).is_some() {
                wake_stranded(connection, &mut SetAside::default(), BATCH, Duration::MAX)
                    .await
                    .map_err(told)?;
            }
            let look = self.drive.look(connection, run_id).await.map_err(told)?;
            if is_over(&look) {
                // A body that is still held continues now, and must change nothing.
                self.scene.steps.release();
            }
            // The caller reports a blocked run with its failure.
            let is_finished = is_over(&look) && (look.n_left_below == 0 || look.state() == "blocked");
            if is_finished && finished_at.get_or_insert_with(Instant::now).elapsed() > self.stall_limit {
                return Ok(());
            }
            let may_move = look.is_at_rest() && (!is_finished || n_nudges_left > 0);
            let moved = may_move && self.drive.nudge(connection, &look).await.map_err(told)?;
            if look.is_at_rest() && !moved {
                if is_finished {
                    return Ok(());
                } else if is_over(&look) || look.has_unclaimable() {
                    return Err(unfinished(&look, &why(&look)));
                }
            }
            standstill.see(&look);
            if moved {
                standstill.nudged();
                n_nudges_left = n_nudges_left.saturating_sub(u32::from(is_finished));
            }
            if self.sweep_at.is_none()
                && let Some(limit) = standstill.limit(&look, self.stall_limit)
            {
                return Err(format!("{}; {limit}", unfinished(&look, &limit.why(&look))));
            }
            let dies = self.first.as_ref().filter(|_| self.second.is_none()).map(|first| first.scope.death());
            tokio::select! {
                () = tokio::time::sleep(PAUSE) => {}
                () = async { match dies { Some(dies) => dies.await, None => std::future::pending().await } } => {}
            }
        }
    }

    /// Starts the second worker once the first one has died or is held.
    async fn meet(
        &mut self,
        connection: &mut PgConnection,
        fault: Option<&Fault>,
    ) -> Result<(), ClientError> {
        let Some(first) = &mut self.first else { return Ok(()) };
        let (is_dead, is_held) = (first.scope.is_dead(), matches!(self.scene.steps.phase(), Phase::Held(_)));
        if !is_dead && !is_held {
            return Ok(());
        }
        if is_dead {
            first.gone().await;
        }
        self.before = steps(connection, self.drive.sealer()).await?;
        // A body held after writes in a transaction locks rows that the second worker needs. End
        // its session, as the engine does when it declares a worker dead.
        let ends_sessions =
            is_dead || matches!(fault, Some(Fault::Loss { in_transaction: true, hold: HoldAt::After, .. }));
        if ends_sessions {
            bury_if_silent(connection, first.worker_id, 0.0, "killed by a test").await?;
        } else {
            mark_dead(connection, first.worker_id, 0.0, "stalled by a test").await?;
        }
        adopt_orphans(connection, &mut SetAside::default(), None).await?;
        // A cut-off transaction may lock the lease until the server notices the lost connection.
        while !held(connection, first.worker_id).await?.is_empty() {
            tokio::time::sleep(PAUSE).await;
            adopt_orphans(connection, &mut SetAside::default(), None).await?;
        }
        cancel_requested(connection).await?;
        let (plan, scope) = (&self.stage.plan, Scope::new(None));
        self.second = Some(Process::start(plan, &self.options, &self.scene, scope, Role::Second).await?);
        self.sweep_at = Some(Instant::now() + AFTER_BURIAL);
        Ok(())
    }

    /// Ends the workers and returns whether the fault was met. Waits for a live first worker: it
    /// may still execute a run that it lost, or may not yet have met its fault at the last write.
    async fn end(&mut self, is_over: bool) -> bool {
        self.scene.steps.release();
        let mut was_met = self.scene.steps.phase() != Phase::Unmet;
        if let Some(first) = self.first.take() {
            let scope = Arc::clone(&first.scope);
            if is_over && !scope.is_dead() {
                first.stop().await;
            } else {
                first.kill();
            }
            was_met |= scope.was_met();
        }
        if let Some(second) = self.second.take() {
            second.kill();
        }
        was_met
    }
}

/// Checks that each step recorded before the fault is unchanged, and that no two steps share a
/// place. Steps that a run dropped when it continued as new are exempt.
fn nothing_lost(before: &[Step], after: &[Step], forgotten: &HashMap<Uuid, i32>) -> Result<(), String> {
    let is_forgotten = |step: &Step| forgotten.get(&step.run_id).is_some_and(|claims| *claims >= step.claims);
    for step in before.iter().filter(|step| !is_forgotten(step)) {
        let (key, job) = (&step.key, &step.job);
        match after.iter().find(|it| it.run_id == step.run_id && it.key == step.key) {
            None => {
                return Err(format!("step `{key}` of `{job}` was recorded before the fault, and is lost"));
            }
            Some(found) if found != step => {
                return Err(format!(
                    "step `{key}` of `{job}` was recorded before the fault, and is another one now"
                ));
            }
            Some(_) => {}
        }
    }
    let mut places = HashSet::new();
    match after.iter().find(|step| !places.insert((step.run_id, step.ordinal))) {
        Some(twice) => Err(format!("step `{}` of `{}` has the place of another step", twice.key, twice.job)),
        None => Ok(()),
    }
}

impl FinishedRun {
    /// Checks that the run without a fault reached this state.
    pub(super) fn ended_in(&self, expected: RunState) -> Result<(), String> {
        if self.end.state == expected {
            return Ok(());
        }
        let advice = match self.end.state {
            RunState::Completed => "remove `expect_state`, or mend the workflow".to_owned(),
            state => format!(
                "no crash was tried, because crashes of a run that does not end as it should show nothing; mend the workflow, or where this end is right \
                 call `.expect_state(RunState::{state:?})`"
            ),
        };
        Err(format!("the run is {}, and it had to be {expected}: {advice}", self.end))
    }

    /// Checks that two runs reached the same state.
    pub(super) fn same_state(&self, calm: &Seen) -> Result<(), String> {
        if self.end.state == calm.end.state { Ok(()) } else { Err(self.differs(calm)) }
    }

    /// Checks that two runs ended alike. Compares failures by kind, because their texts may contain
    /// ids.
    pub(super) fn same_end(&self, calm: &Seen) -> Result<(), String> {
        let of = |end: &Outcome| {
            (end.state, end.output.as_deref().map(canonical), end.failure.as_ref().map(|it| it.kind))
        };
        if of(&self.end) == of(&calm.end) { Ok(()) } else { Err(self.differs(calm)) }
    }

    fn differs(&self, calm: &Seen) -> String {
        format!("the run is {}, and without a fault it was {}", self.end, calm.end)
    }

    /// Builds the argument of the invariant.
    pub(super) async fn ended<J: Job>(&self) -> Result<Ended<J::Output>, ClientError> {
        let handle =
            RunHandle::<J::Output>::new(self.run_id, false, Some(J::DEFINITION), Some(self.db.home()));
        let result = handle.result().await;
        let step = |step: &Step| RecordedStep {
            run_id: step.run_id,
            job: step.job.clone(),
            key: step.key.clone(),
            result: step.result.clone(),
        };
        let steps = self.steps.iter().map(step).collect();
        let (db, scene) = (self.db.clone(), Arc::clone(&self.scene));
        Ok(Ended { run_id: self.run_id, result, steps, db, scene })
    }
}

/// A run that has ended, with or without a fault, and everything that it left behind.
#[derive(Debug)]
pub struct Ended<T> {
    run_id: Uuid,
    result: Result<T, ClientError>,
    steps: Vec<RecordedStep>,
    db: Db,
    scene: Arc<TestHooks>,
}

/// A recorded step of the run, or of any other run in its database.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RecordedStep {
    /// The run.
    pub run_id: Uuid,
    /// The job of the run.
    pub job: String,
    /// The key of the step.
    pub key: String,
    /// The output as JSON text, or the failure that the workflow received.
    pub result: Result<String, Failure>,
}

impl<T> Ended<T> {
    /// The run.
    #[must_use]
    pub fn run_id(&self) -> Uuid {
        self.run_id
    }

    /// The output of the run.
    ///
    /// # Errors
    /// The failure or cancellation as text, if the run did not complete.
    pub fn result(&self) -> crate::Result<&T> {
        Ok(self.result.as_ref().map_err(|error| Failure::text_of_chain(error))?)
    }

    /// The recorded steps of all runs.
    #[must_use]
    pub fn steps(&self) -> &[RecordedStep] {
        &self.steps
    }

    /// The database of this run. No other run under test uses it at the same time.
    #[must_use]
    pub fn db(&self) -> &Db {
        &self.db
    }

    /// How often the body of a job, or its mock, has started.
    pub fn calls<Arguments, F: DefinitionOf<Arguments>>(&self, function: F) -> u32 {
        drop(function);
        self.scene.calls(F::DEFINITION)
    }

    /// The fake that [`Testing::provide_shared_fake`] created for this run.
    #[must_use]
    pub fn fake<V: Send + Sync + 'static>(&self) -> Option<Arc<V>> {
        self.scene.fakes.get::<V>()
    }
}

fn told(error: impl Into<ClientError>) -> String {
    Failure::text_of_chain(&error.into())
}

fn unfinished(look: &Look, why: &str) -> String {
    let Look { n_left, n_left_below, .. } = look;
    let state = look.state();
    if is_over(look) {
        format!("the run is {state}, but {n_left_below} of the runs that it started have not ended{why}")
    } else {
        format!("the run does not end: it is {state}, and {n_left} runs have not ended{why}")
    }
}
