//! The life of a worker: its registration, its tasks and its end.

#![expect(clippy::large_futures, reason = "one of each in a worker")]

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use sqlx::Postgres;
use sqlx::pool::PoolConnection;
use sqlx::postgres::PgConnectOptions;
use tokio::runtime::Handle;
use tokio::sync::{Mutex, Notify, Semaphore, mpsc, watch};
use tokio::task::{JoinError, JoinHandle, JoinSet};
use tokio::time::Instant;

use super::claim::claimer::{Claimer, drain};
use super::claim::permits::Freed;
use super::execute::executor::Executor;
use super::execute::writer;
use super::in_flight::{InFlight, StopOrder};
use super::process_workers::ProcessWorkers;
use super::report::hook::FailureHook;
use super::report::observers::Observers;
use super::timings::Timings;
use super::upkeep::control::Control;
use super::upkeep::heartbeat::Heartbeat;
use super::upkeep::maintenance::{Maintenance, WorkerExit};
use super::upkeep::orphans::{adopt_orphans, release};
use super::upkeep::wakes;
use crate::connection::client_error::ClientError;
use crate::connection::db::{Db, no_connection};
use crate::connection::db_timeout::{STATEMENT_LIMIT, with_timeout};
use crate::connection::installation::check_home;
use crate::connection::outage::{Outage, Recovery, warn_outage};
use crate::connection::session::{Session, engine_options};
use crate::connection::task;
use crate::definition::provided::Provided;
use crate::definition::registry::Registry;
use crate::engine::group_commit::CommitQueue;
use crate::engine::liveness::Liveness;
#[cfg(feature = "logs")]
use crate::engine::logs::Logs;
use crate::engine::wakes::Wakes;
use crate::model::run::failure::Failure;
use crate::model::timestamp::Timestamp;
use crate::store::error::{Reason, cause, spares_others};
use crate::store::operator::{config, overrides};
use crate::store::session::failover::ServerEpoch;
use crate::store::worker;
use crate::store::worker::pooler::shares_sessions;
use crate::store::worker::set_aside::SetAside;

/// The configuration of a worker.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) db: Db,
    pub(crate) registry: Arc<Registry>,
    pub(crate) provided: Arc<Provided>,
    pub(crate) queues: Vec<String>,
    pub(crate) name: String,
    pub(crate) concurrency: usize,
    pub(crate) timings: Timings,
    pub(crate) drain: Duration,
    pub(crate) idle_residency: Duration,
    pub(crate) cancel_grace: Duration,
    pub(crate) on_failure: Option<FailureHook>,
    /// The least urgent level of stored log lines. `None` stores none.
    #[cfg(feature = "logs")]
    pub(crate) logs: Option<tracing::Level>,
    pub(crate) observers: Observers,
}

/// How long runs may take to be released at a shutdown.
const GRACE: Duration = Duration::from_secs(5);

/// The pause between two tries to register while the server is unavailable.
const REGISTER_AGAIN: Duration = Duration::from_millis(500);

/// How many ids a worker tries if other sessions hold their locks.
const NUMBERS: u32 = 20;

#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) stop: watch::Sender<bool>,
    pub(crate) number: watch::Receiver<i64>,
    pub(crate) task: JoinHandle<()>,
}

/// Starts a worker. Returns when it is registered and has its session lock.
pub(crate) async fn start(plan: Plan) -> Result<Running, ClientError> {
    let plan = Plan { db: plan.db.clone().with_reserve(), ..plan };
    if !is_quiet(&plan) {
        let options = engine_options(&plan.db);
        let shares = with_timeout(STATEMENT_LIMIT, shares_sessions(&options)).await;
        if shares.map_err(|error| no_connection(&options, error))? {
            return Err(ClientError::pooled());
        }
    }
    let (stop, stopping) = watch::channel(false);
    let session = Session::to(plan.db.clone(), plan.timings.answer_limit());
    let in_flight = Arc::new(InFlight::new(plan.concurrency));
    let process = ProcessWorkers::with(&in_flight, &plan.db.pool().connect_options());
    let first = register(&plan, &session).await?;
    let (number, numbers) = watch::channel(first.worker_id);
    #[cfg(feature = "logs")]
    let logs = plan.logs.map(|level| Logs::open(level, plan.db.clone()));
    let worker = Worker {
        plan,
        session,
        in_flight,
        process,
        number,
        stopping,
        asked: OnceLock::new(),
        #[cfg(feature = "logs")]
        logs: logs.as_ref().map(|logs| Arc::clone(&logs.sink)),
    };
    let task = task::spawn("worker", async move {
        worker.live(first).await;
        #[cfg(feature = "logs")]
        if let Some(logs) = logs {
            logs.close(GRACE).await;
        }
    });
    Ok(Running { stop, number: numbers, task })
}

/// Whether this is one of the hundreds of workers that the test kit kills. To save connections,
/// they have no heartbeat, and do not search for dead workers or poolers.
fn is_quiet(plan: &Plan) -> bool {
    #[cfg(feature = "testing")]
    return crate::engine::test_hooks::worker_hooks(&plan.provided)
        .is_some_and(|part| part.role != crate::engine::test_hooks::Role::Only);
    #[cfg(not(feature = "testing"))]
    {
        let _ = plan;
        false
    }
}

/// Whether the worker belongs to the test kit, which copies databases itself.
fn is_in_a_scene(plan: &Plan) -> bool {
    #[cfg(feature = "testing")]
    return crate::engine::test_hooks::worker_hooks(&plan.provided).is_some();
    #[cfg(not(feature = "testing"))]
    {
        let _ = plan;
        false
    }
}

/// Two writers keep the server busy while one waits for its commit. A small pool has room for one.
fn n_writers(plan: &Plan) -> usize {
    if plan.db.pool().options().get_max_connections() < 6 { 1 } else { 2 }
}

/// How many connections of the pool transactional bodies may hold. The claimer, the writers and
/// short statements, such as suspensions and enqueues of bodies, use the others.
fn n_transactions(plan: &Plan) -> usize {
    let connections = usize::try_from(plan.db.pool().options().get_max_connections()).unwrap_or(usize::MAX);
    connections.saturating_sub(1 + n_writers(plan) + 2).max(1)
}

struct Worker {
    plan: Plan,
    session: Session,
    in_flight: Arc<InFlight>,
    process: Arc<ProcessWorkers>,
    number: watch::Sender<i64>,
    stopping: watch::Receiver<bool>,
    #[cfg(feature = "logs")]
    logs: Option<Arc<crate::engine::logs::Sink>>,
    /// When the last registration began to drain.
    asked: OnceLock<Instant>,
}

/// A worker's registration under one id.
struct Identity {
    worker_id: i64,
    /// By the database's clock.
    registered_at: Timestamp,
    control: Control,
    era: ServerEpoch,
    /// Whether the registration marked earlier workers of the same name dead.
    has_buried: bool,
}

impl Worker {
    /// Runs the worker until it ends, then delivers the remaining events to the observers.
    async fn live(self, first: Identity) {
        self.live_on(first).await;
        let asked = self.asked.get().copied().unwrap_or_else(Instant::now);
        self.plan.observers.end(asked + self.plan.drain + GRACE).await;
    }

    /// Runs the worker under one id after another until it stops. A worker that was declared dead,
    /// lost a task, or began on a server that was replaced never continues under its old id.
    async fn live_on(&self, first: Identity) {
        let mut identity = first;
        loop {
            let worker_id = identity.worker_id;
            let _ = self.number.send(worker_id);
            match self.run_registration(identity).await {
                WorkerExit::Dead => {}
                WorkerExit::Moved => {
                    self.hand_back(worker_id).await;
                    self.sign_off(worker_id).await;
                }
                WorkerExit::Broken => {
                    self.sign_off(worker_id).await;
                    // If the cause persists, the worker must not retry in a busy loop.
                    tokio::time::sleep(REGISTER_AGAIN).await;
                }
                WorkerExit::Alive | WorkerExit::Drain => {
                    self.sign_off(worker_id).await;
                    return;
                }
            }
            if *self.stopping.borrow() {
                return;
            }
            self.in_flight.clear();
            let outage = Outage::new();
            let mut stopping = self.stopping.clone();
            identity = loop {
                let registered = tokio::select! {
                    registered = register(&self.plan, &self.session) => registered,
                    () = task::raised(&mut stopping) => return,
                };
                match registered {
                    Ok(identity) => {
                        if let Some(Recovery { n_failures, lasted }) = outage.succeeded() {
                            tracing::info!(n_failures, ?lasted, "the worker is registered again");
                        }
                        break identity;
                    }
                    Err(error) => {
                        let error = Failure::text_of_chain(&error);
                        warn_outage!(&outage, error, "the worker cannot register yet");
                    }
                }
                tokio::select! {
                    () = tokio::time::sleep(REGISTER_AGAIN) => {}
                    () = task::raised(&mut stopping) => return,
                }
            };
        }
    }

    async fn run_registration(&self, identity: Identity) -> WorkerExit {
        let Identity { worker_id, registered_at, control, era, has_buried } = identity;
        let era = Arc::new(era);
        let session = self.session.clone().within(Arc::clone(&era));
        let (stop, stopped) = watch::channel(false);
        let (stop_claims, claims_stopped) = watch::channel(false);
        let (fate, mut fates) = watch::channel(WorkerExit::Alive);
        let (wake, doubt) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let (due, mut dues) = mpsc::unbounded_channel();
        let (acknowledged, liveness) = Liveness::new(self.plan.timings.guard());
        let (reply_sender, replies) = mpsc::channel(4);
        let heartbeat = Heartbeat {
            options: engine_options(&self.plan.db),
            worker_id,
            timings: self.plan.timings,
            in_flight: Arc::clone(&self.in_flight),
            replies: reply_sender,
            acknowledged,
            stop: stopped.clone(),
            runtime: Handle::current(),
        };
        let mut silent = None;
        if is_quiet(&self.plan) {
            // Keep the heartbeat: its channels must stay open.
            silent = Some(heartbeat);
        } else if let Err(error) = heartbeat.start() {
            tracing::error!(%error, "the heartbeat's thread cannot be started");
            return WorkerExit::Drain;
        }
        let mut tasks = JoinSet::new();
        let (wakes, owed) = Wakes::new();
        task::spawn_on(&mut tasks, "wakes", wakes::carry_out(session.clone(), owed));
        let (commit_queue, receivers) = CommitQueue::new(n_writers(&self.plan), wakes.clone());
        for receiver in receivers {
            task::spawn_on(
                &mut tasks,
                "writer",
                writer::write(session.clone(), receiver, wakes.clone(), stopped.clone()),
            );
        }
        let control = control.listen(
            engine_options(&self.plan.db),
            Arc::clone(&self.in_flight),
            Arc::clone(&wake),
            stopped.clone(),
        );
        task::spawn_on(&mut tasks, "control", control);
        let maintenance = Maintenance {
            session: self.session.clone(),
            worker_id,
            timings: self.plan.timings,
            registry: Arc::clone(&self.plan.registry),
            era,
            in_flight: Arc::clone(&self.in_flight),
            cancel_grace: self.plan.cancel_grace,
            wake: Arc::clone(&wake),
            doubt: Arc::clone(&doubt),
            wakes,
            fate,
            stop: stopped,
            has_buried,
            // Sweep at once, because other workers may have died before. Quiet workers of the test
            // kit wait.
            idle: if silent.is_some() { self.plan.timings.lease } else { Duration::ZERO },
            cancel_requests: Mutex::default(),
            failing: Mutex::default(),
        };
        task::spawn_on(&mut tasks, "maintenance", maintenance.run(replies));
        let executor = Arc::new(Executor {
            db: session.db().clone(),
            commit_queue,
            provided: Arc::clone(&self.plan.provided),
            registry: Arc::clone(&self.plan.registry),
            liveness,
            in_flight: Arc::clone(&self.in_flight),
            idle_residency: self.plan.idle_residency,
            transactions: Arc::new(Semaphore::new(n_transactions(&self.plan))),
            freed: Freed::default(),
            due,
            on_failure: self.plan.on_failure.clone(),
            #[cfg(feature = "logs")]
            logs: self.logs.clone(),
            observers: self.plan.observers.clone(),
            turn: Mutex::default(),
            worker_id,
        });
        let claimer = Claimer {
            session,
            worker_id,
            registered_at,
            registry: Arc::clone(&self.plan.registry),
            queues: self.plan.queues.clone(),
            timings: self.plan.timings,
            executor: Arc::clone(&executor),
            process: Arc::clone(&self.process),
            wake,
            doubt,
            stop: claims_stopped,
        };
        let mut claims = task::spawn("claimer", async move { claimer.run(&mut dues).await });
        let mut stopping = self.stopping.clone();
        let ended = tokio::select! {
            biased;
            // After maintenance has ended, nothing sets the exit any more. Then the ended task
            // decides.
            Ok(_) = fates.wait_for(|fate| *fate != WorkerExit::Alive) => None,
            _ = stopping.wait_for(|stop| *stop) => None,
            ended = tasks.join_next() => ended,
            ended = &mut claims => Some(ended.map(drop)),
        };
        if let Some(ended) = ended {
            report(ended);
            self.in_flight.stop_all(StopOrder::Drop);
            claims.abort();
            tasks.shutdown().await;
            return WorkerExit::Broken;
        }
        let _ = stop_claims.send(true);
        let patience = if *fates.borrow() == WorkerExit::Moved { GRACE } else { self.plan.drain };
        if !fates.borrow().is_lost() {
            let _ = self.asked.set(Instant::now());
            self.announce_draining(worker_id).await;
        }
        if let Ok(tasks) = claims.await {
            if fates.borrow().is_lost() {
                // Runs that were claimed since then.
                self.in_flight.stop_all(StopOrder::Drop);
            }
            tokio::select! {
                () = drain(&executor, tasks, patience, GRACE) => {}
                Ok(_) = fates.wait_for(|fate| *fate == WorkerExit::Dead) => self.in_flight.stop_all(StopOrder::Drop),
            }
        }
        let fate = *fates.borrow();
        let _ = stop.send(true);
        drop(executor);
        if !fate.is_lost() {
            // A writer ends when the commit queue is closed and empty. A body that keeps its
            // context for good keeps the commit queue open, so the wait is limited.
            let _ = tokio::time::timeout(GRACE, async { while tasks.join_next().await.is_some() {} }).await;
        }
        tasks.shutdown().await;
        fate
    }

    async fn announce_draining(&self, worker_id: i64) {
        let said = match self.session.open().await {
            Ok(mut connection) => self.session.with_timeout(worker::drain(&mut connection, worker_id)).await,
            Err(error) => Err(error),
        };
        if let Err(error) = said {
            tracing::warn!(%error, "the worker stops without having said that it drains");
        }
    }

    /// Releases the runs that the promoted server records for a registration on the old server.
    /// They did not crash.
    async fn hand_back(&self, worker_id: i64) {
        let give = async {
            let mut connection = self.session.open_beside().await?;
            let leases = worker::held(&mut connection, worker_id).await?;
            release(&mut connection, leases).await
        };
        if let Err(error) = self.session.with_timeout(give).await {
            tracing::warn!(%error, "the runs of this worker could not be handed back; others will find them");
        }
    }

    /// Marks this worker dead and recovers its runs, so that no other worker has to.
    async fn sign_off(&self, worker_id: i64) {
        let bury = async {
            let mut connection = self.session.open_beside().await?;
            worker::mark_dead(&mut connection, worker_id, 0.0, "stopped").await?;
            adopt_orphans(&mut connection, &mut SetAside::default(), None).await.map(drop)
        };
        let done = self.session.with_timeout(bury).await;
        if let Err(error) = done {
            tracing::warn!(%error, "the worker could not sign off; others will find that it is gone");
        }
    }
}

/// Logs a task that has ended. Without it, the worker would look alive and do nothing.
fn report(ended: Result<(), JoinError>) {
    let cause =
        ended.err().map_or_else(|| "its heartbeat's thread has ended".to_owned(), |error| error.to_string());
    tracing::error!(
        cause,
        "a task of this worker has panicked; the worker gives its runs back and takes a new number: please report this"
    );
}

/// Registers under a new id, takes its lock, and marks dead the earlier workers of this name that
/// are gone.
async fn register(plan: &Plan, session: &Session) -> Result<Identity, ClientError> {
    let options = engine_options(&plan.db);
    let unconnected = |error| no_connection(&options, error);
    for _ in 0..NUMBERS {
        let mut connection = session.open().await.map_err(unconnected)?;
        let registered = async { Ok(register_on(&mut connection, plan, &options).await) };
        if let Some(identity) = session.with_timeout(registered).await.map_err(unconnected)?? {
            return Ok(identity);
        }
    }
    Err(ClientError::Config(format!(
        "the session locks of {NUMBERS} fresh workers are all held by others: another program uses advisory locks of the class of our table; \
         look into `pg_locks` for advisory locks"
    )))
}

/// Returns `None` if another session holds the lock of the id.
async fn register_on(
    connection: &mut PoolConnection<Postgres>,
    plan: &Plan,
    options: &PgConnectOptions,
) -> Result<Option<Identity>, ClientError> {
    let jobs: Vec<String> = plan.registry.names().map(str::to_owned).collect();
    let era = ServerEpoch::begin(options);
    if !is_in_a_scene(plan) {
        check_home(connection).await?;
    }
    let (worker_id, registered_at) =
        worker::register(connection, &plan.name, plan.db.session_name(), &jobs, &plan.queues).await?;
    let opened = Control::open(options, worker_id).await.map_err(|error| match cause(&error).reason {
        Reason::Privilege => error.into(),
        _ => no_connection(options, error),
    })?;
    let Some(control) = opened else { return Ok(None) };
    // Read the overrides before the first claim.
    plan.registry.set_overrides(overrides::all(connection).await?);
    plan.registry.configure(config::all(connection).await?.into_iter().collect());
    let has_buried = bury_predecessors(connection, plan, worker_id).await?;
    tracing::info!(worker_id, name = plan.name, n_jobs = jobs.len(), "worker registered");
    Ok(Some(Identity { worker_id, registered_at, control, era, has_buried }))
}

/// Marks dead the earlier workers of this name, and returns whether there were any. Maintenance
/// recovers their runs: a run that the database refuses must not keep the worker from starting.
///
/// A free lock is enough evidence here: a process that restarts under its name does not wait until
/// its predecessor is suspect.
async fn bury_predecessors(
    connection: &mut PoolConnection<Postgres>,
    plan: &Plan,
    worker_id: i64,
) -> Result<bool, sqlx::Error> {
    let mut has_buried = false;
    for (predecessor, lock_is_evidence) in worker::predecessors(connection, &plan.name, worker_id).await? {
        if !lock_is_evidence {
            continue;
        }
        match worker::bury_if_unlocked(connection, predecessor, 0.0, "its name came back").await {
            Ok(true) => {
                tracing::info!(predecessor, "the worker of this name is gone; its runs go on here");
                has_buried = true;
            }
            Ok(false) => {}
            Err(error) if spares_others(&error) => {
                tracing::warn!(%error, predecessor, "the worker of this name cannot be examined; maintenance tries again");
            }
            Err(error) => return Err(error),
        }
    }
    Ok(has_buried)
}
