//! The app: what a worker process serves.

#![expect(clippy::large_futures, reason = "one of each in a worker")]

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use super::observer::Observer;
use super::report::hook::FailureHook;
use super::report::observers::{Given, Observers};
use super::serve::{Plan, Running, start};
use super::timings::Timings;
use crate::connection::client_error::ClientError;
use crate::connection::db::Db;
use crate::definition::Definition;
use crate::definition::failed::FailedRun;
use crate::definition::provided::Provided;
use crate::definition::registry::{Registry, registered};
use crate::engine::builtin::CONCLUDE;
#[cfg(feature = "logs")]
use crate::engine::logs::RunLogs;
use crate::graph::map::MAP;
use crate::model::name::{check_key, check_name};

/// Whoever runs nodes concludes graphs, and starts the runs of map nodes.
const BUILT_IN: [&Definition; 2] = [&CONCLUDE, &MAP];

/// How many runs a worker has in hand at most, where it is not told.
pub const DEFAULT_CONCURRENCY: usize = 128;

/// How long a shutdown waits for running attempts, where it is not told.
pub const DEFAULT_DRAIN: Duration = Duration::from_secs(30);

/// For how long a workflow that only waits stays in its process, unless [`App::idle_residency`] says otherwise.
pub const DEFAULT_IDLE_RESIDENCY: Duration = Duration::from_millis(300);

/// How long a run may take to heed its cancel, unless [`App::cancel_grace`] says otherwise.
pub const DEFAULT_CANCEL_GRACE: Duration = Duration::from_secs(10);

/// The fewest connections a worker's pool can do with: the claimer, the commit queue, and one for everything else.
const FEWEST_CONNECTIONS: u32 = 3;

const NONE_GIVEN: &str = "`App::with` was given no job, so this worker would serve nothing; name its jobs, as in `.with(jobs![charge])`, or \
                          leave `with` out to serve every job that is linked into the program";

/// Where a worker is to keep what nobody hears.
#[cfg(feature = "logs")]
const NOT_HEARD: &str = "`keep_logs` hears nothing: no subscriber of this program has the layer; build one with \
    `tracing_subscriber::registry().with(RunLogs::layer())` before the worker starts";

const NO_QUEUE: &str = "`App::queues` was given no queue, so this worker would serve nothing; name its queues, or leave `queues` out to serve those of \
                        its jobs and `default`";

/// Builds a worker.
///
/// A worker holds two connections beyond its pool: one for heartbeats, one for the session lock and for listening; waiting for results in the same
/// process takes a third. Of a pool of the default size it keeps four, for claims, records and the upkeep of the fleet, and leaves one to what is
/// short; transactional bodies share the rest. A smaller pool works with fewer of each, and a transactional body at a time.
/// Each further worker on the same pool keeps four more, so three workers need a larger pool, or pools of their own: otherwise bodies wait for a connection.
///
/// While bodies hold every connection of the pool, the worker opens up to six connections of its own and logs
/// a warning. It uses them to claim, record, cancel and wake runs as before. It closes each one after 10 s
/// without use.
#[derive(Debug)]
#[must_use = "an app does nothing until it serves"]
pub struct App {
    pub(crate) db: Db,
    pub(crate) provided: Provided,
    definitions: Option<Vec<&'static Definition>>,
    queues: Option<Vec<String>>,
    name: Option<String>,
    concurrency: usize,
    timings: Timings,
    drain: Duration,
    idle_residency: Duration,
    cancel_grace: Duration,
    on_failure: Option<FailureHook>,
    #[cfg(feature = "logs")]
    logs: Option<tracing::Level>,
    observers: Given,
}

impl App {
    /// A worker on this database, with every job that is linked into the program.
    pub fn new(db: Db) -> Self {
        Self {
            db,
            provided: Provided::default(),
            definitions: None,
            queues: None,
            name: None,
            concurrency: DEFAULT_CONCURRENCY,
            timings: Timings::DEFAULT,
            drain: DEFAULT_DRAIN,
            idle_residency: DEFAULT_IDLE_RESIDENCY,
            cancel_grace: DEFAULT_CANCEL_GRACE,
            on_failure: None,
            #[cfg(feature = "logs")]
            logs: None,
            observers: Given::default(),
        }
    }

    /// Builds a worker on the database of [`Db::from_env`].
    ///
    /// # Errors
    /// Same as [`Db::from_env`].
    pub async fn from_env() -> Result<Self, ClientError> {
        Ok(Self::new(Db::from_env().await?))
    }

    /// Provides a value to every body that asks for its type with `#[inject]`. A second value of the same type replaces the first.
    pub fn provide<T: Send + Sync + 'static>(mut self, value: T) -> Self {
        self.provided.insert(Arc::new(value));
        self
    }

    /// Provides these values and no others.
    #[cfg(feature = "testing")]
    pub(crate) fn provide_all(mut self, provided: Provided) -> Self {
        self.provided = provided;
        self
    }

    /// Serves these jobs, and no others: `.with(jobs![charge, refund])`. Without it, every job that is linked into the program.
    pub fn with(mut self, definitions: impl IntoIterator<Item = &'static Definition>) -> Self {
        self.definitions.get_or_insert_default().extend(definitions);
        self
    }

    /// Serves these queues, and no others. Without it, the queues of the served jobs and `default`.
    pub fn queues<Q: Into<String>>(mut self, queues: impl IntoIterator<Item = Q>) -> Self {
        self.queues.get_or_insert_default().extend(queues.into_iter().map(Into::into));
        self
    }

    /// The name of this process. A process that starts again under a name takes the runs of its predecessor over at once, so no two may have the
    /// same. Without it a fresh one.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// How many runs this process has in hand at most; 128 by default.
    pub fn concurrency(mut self, concurrency: usize) -> Self {
        self.concurrency = concurrency.max(1);
        self
    }

    /// How fast this process proves that it lives, and believes that others do not. All workers of a database should agree.
    pub fn timings(mut self, timings: Timings) -> Self {
        self.timings = timings;
        self
    }

    /// How long a shutdown waits for running attempts before it hands them back; 30 seconds by default.
    pub fn drain(mut self, deadline: Duration) -> Self {
        self.drain = deadline;
        self
    }

    /// For how long a workflow that only waits stays in this process; 300 milliseconds by default.
    ///
    /// A run that waits for a child, a signal or an instant longer than that leaves: it then takes no slot, no connection and no memory, and whoever claims
    /// it when it is woken reads its record and replays it. One that is answered while it stays is spared both. It stays only as long as this process has
    /// a free slot, so lingering costs memory and nothing else; with zero only sleeps of less than 300 milliseconds stay.
    pub fn idle_residency(mut self, limit: Duration) -> Self {
        self.idle_residency = limit;
        self
    }

    /// How long a run that this process works on may take to heed its cancel; 10 seconds by default.
    ///
    /// The body of a cancelled run is dropped at its next await. One that blocks its thread comes to none: after the grace its run is ended without it, at the
    /// next heartbeat. Nothing that the body still writes for the run counts; its slot and its thread are free when it yields. A run whose transaction is being
    /// committed has no body any more, and ends behind that commit.
    pub fn cancel_grace(mut self, grace: Duration) -> Self {
        self.cancel_grace = grace;
        self
    }

    /// What to do when a run that this process works on has failed for good: told after the commit, with the input, the reason and the last progress. A
    /// second one replaces the first.
    ///
    /// It is told of each failed run once, as far as this process lives: one that ends between the commit and the hook's own end tells nobody, and neither
    /// does a run that is cancelled or blocked. What must happen whatever happens is the business of the job: of a step that it takes when another has
    /// failed.
    ///
    /// A hook has 30 seconds, in which the run keeps its slot; then it is dropped at its next await. Neither that nor its panic changes anything: the run
    /// has failed, and both are logged.
    pub fn on_failure<F, Fut>(mut self, hook: F) -> Self
    where
        F: Fn(FailedRun) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        self.on_failure = Some(FailureHook::new(hook));
        self
    }

    /// Keeps what the bodies of runs log by `tracing`, of this level and of those that are more urgent, for [`Db::logs`](Db::logs) to read (feature `logs`). Needs the layer
    /// [`RunLogs`](crate::RunLogs) in the subscriber of the program.
    ///
    /// No body waits for it: lines wait in memory, 10,000 at most, and are written some hundred at once, a statement each tenth of a second. What finds no room there, or in the log of its
    /// run, is lost, and said by `tracing`. Lines are sealed as payloads are, where the database has a codec; a message is cut at 8 KiB.
    #[cfg(feature = "logs")]
    pub fn keep_logs(mut self, level: tracing::Level) -> Self {
        self.logs = Some(level);
        self
    }

    /// Tells an [`Observer`] what becomes of the attempts of this process, after the commits. Several are told beside one another.
    ///
    /// Each has a thread and room for 4,096 events of its own: it holds up no run, and what comes while there is no room is dropped, counted, told to it and logged. At a shutdown
    /// what waits for it is told, up to five seconds beyond [`drain`](Self::drain); then the worker ends without it. A panic of it is logged, and it goes on to be told.
    ///
    /// It hears of the attempts of this process alone, and nothing of runs that no worker holds, such as the cancel of a queued one.
    ///
    /// Costs nothing where nobody observes; else two messages an attempt, and one query where a workflow has failed or was cancelled, or a run was lost.
    pub fn observe(mut self, observer: impl Observer) -> Self {
        self.observers.add(observer);
        self
    }

    /// Starts the worker and returns once it takes runs.
    ///
    /// # Errors
    /// [`ClientError`] if no job is registered, two jobs have the same name, a name is invalid, or a job injects
    /// a type that nothing provides; if the pool is too small; if `keep_logs` is set but no subscriber has the
    /// log layer; if the database is a [copy](crate::Db::adopt) that nobody has adopted, or fails.
    pub async fn start(self) -> Result<Worker, ClientError> {
        let registry = self.code()?;
        check_pool(&self.db)?;
        let queues = match self.queues {
            Some(queues) => queues,
            None => own_queues(&registry),
        };
        if queues.is_empty() {
            return Err(ClientError::Config(NO_QUEUE.to_owned()));
        }
        for queue in &queues {
            check_name("queue", queue)?;
        }
        #[cfg(feature = "logs")]
        if self.logs.is_some() && !RunLogs::are_heard() {
            return Err(ClientError::Config(NOT_HEARD.to_owned()));
        }
        let name = self.name.unwrap_or_else(|| format!("worker-{}", uuid::Uuid::now_v7().simple()));
        check_key("worker name", &name)?;
        let observers = Observers::start(self.observers, &name).map_err(|error| no_thread(&error))?;
        let plan = Plan {
            db: self.db,
            registry: Arc::new(registry),
            provided: Arc::new(self.provided),
            queues,
            name,
            concurrency: self.concurrency,
            timings: self.timings,
            drain: self.drain,
            idle_residency: self.idle_residency,
            cancel_grace: self.cancel_grace,
            on_failure: self.on_failure,
            #[cfg(feature = "logs")]
            logs: self.logs,
            observers,
        };
        Ok(Worker { running: start(plan).await? })
    }

    /// The jobs and workflows, with all that they ask for.
    pub(crate) fn code(&self) -> Result<Registry, ClientError> {
        let registry = match &self.definitions {
            Some(given) if given.is_empty() => return Err(ClientError::Config(NONE_GIVEN.to_owned())),
            Some(given) => Registry::collect(given.iter().copied(), BUILT_IN)?,
            None => Registry::collect(registered(), BUILT_IN)?,
        };
        check_provided(&registry, &self.provided)?;
        Ok(registry)
    }

    /// Serves until SIGTERM or ctrl-c: then running attempts may end, up to [`drain`](Self::drain), and the rest is handed back unconsumed.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub async fn serve(self) -> Result<(), ClientError> {
        let mut worker = self.start().await?;
        tokio::select! {
            () = asked_to_stop() => {}
            () = worker.ended() => return Ok(()),
        }
        worker.stop().await;
        Ok(())
    }
}

/// A running worker. Dropping it stops it in the background.
#[derive(Debug)]
pub struct Worker {
    running: Running,
}

impl Worker {
    /// The number under which it is registered now.
    #[must_use]
    pub fn id(&self) -> i64 {
        *self.running.number.borrow()
    }

    /// Stops: takes nothing new, lets running attempts end up to the deadline, hands the rest back, and returns when all is written.
    pub async fn stop(mut self) {
        let _ = self.running.stop.send(true);
        self.ended().await;
    }

    /// Returns when the worker has ended, because it was asked to drain from outside.
    pub async fn ended(&mut self) {
        if !self.running.task.is_finished() {
            // The worker's task does not panic; should it, it has ended all the same.
            let _ = (&mut self.running.task).await;
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.running.stop.send(true);
    }
}

fn check_provided(registry: &Registry, provided: &Provided) -> Result<(), ClientError> {
    let mut missing = Vec::new();
    for definition in registry.definitions().filter(|definition| !is_mocked(definition, provided)) {
        for inject in definition.injects {
            let is_own = inject.id() == std::any::TypeId::of::<crate::engine::context::Context>();
            if !is_own && !provided.has(inject.id()) {
                missing.push(format!(
                    "job `{}` ({}) asks for `{}`",
                    definition.name,
                    definition.location,
                    inject.name()
                ));
            }
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    Err(ClientError::Config(format!(
        "nothing provides what these ask for: {}; add `.provide(…)` to the app",
        missing.join(", ")
    )))
}

/// Whether another body stands in the place of the job's own.
#[cfg(feature = "testing")]
fn is_mocked(definition: &Definition, provided: &Provided) -> bool {
    crate::engine::test_hooks::worker_hooks(provided)
        .is_some_and(|part| part.scene.mocks.contains_key(&definition.code()))
}

#[cfg(not(feature = "testing"))]
fn is_mocked(_definition: &Definition, _provided: &Provided) -> bool {
    false
}

fn no_thread(error: &std::io::Error) -> ClientError {
    ClientError::Config(format!(
        "the system gives no thread for an observer of this worker: {error}; observe with fewer, or raise the limit of threads"
    ))
}

fn check_pool(db: &Db) -> Result<(), ClientError> {
    let connections = db.pool().options().get_max_connections();
    if connections >= FEWEST_CONNECTIONS {
        return Ok(());
    }
    Err(ClientError::Config(format!(
        "a worker's pool needs at least {FEWEST_CONNECTIONS} connections, this one has {connections}: the claimer and the commit queue keep one each; \
         raise it in `Db::connect_with`"
    )))
}

fn own_queues(registry: &Registry) -> Vec<String> {
    let mut queues: Vec<String> =
        registry.definitions().map(|definition| definition.queue.to_owned()).collect();
    queues.push(crate::definition::DEFAULT_QUEUE.to_owned());
    queues.sort();
    queues.dedup();
    queues
}

async fn asked_to_stop() {
    let ctrl_c = async {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    #[cfg(unix)]
    let terminated = async {
        match tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()) {
            Ok(mut signal) => {
                signal.recv().await;
            }
            Err(_) => std::future::pending().await,
        }
    };
    #[cfg(not(unix))]
    let terminated = std::future::pending::<()>();
    tokio::select! {
        () = ctrl_c => {}
        () = terminated => {}
    }
}

/// Serves every job that is linked into the program, on the database of [`Db::from_env`], until SIGTERM or ctrl-c.
///
/// # Errors
/// As [`App::from_env`] and [`App::serve`].
pub async fn serve() -> Result<(), ClientError> {
    App::from_env().await?.serve().await
}
