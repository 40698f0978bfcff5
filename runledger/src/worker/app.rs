//! The app: builds and starts a worker.

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
use crate::model::run::name::{check_key, check_name};

/// Every worker can conclude graphs and start the runs of map nodes.
const BUILT_IN: [&Definition; 2] = [&CONCLUDE, &MAP];

/// How many runs a worker executes at once, unless [`App::concurrency`] sets another number.
pub const DEFAULT_CONCURRENCY: usize = 128;

/// How long a shutdown waits for running attempts, unless [`App::drain`] sets another limit.
pub const DEFAULT_DRAIN: Duration = Duration::from_secs(30);

/// How long a waiting workflow stays resident, unless [`App::idle_residency`] sets another limit.
pub const DEFAULT_IDLE_RESIDENCY: Duration = Duration::from_millis(300);

/// How long a cancelled body may take to stop, unless [`App::cancel_grace`] sets another limit.
pub const DEFAULT_CANCEL_GRACE: Duration = Duration::from_secs(10);

/// The smallest pool of a worker: one connection for the claimer, one for the commit queue, and one
/// for everything else.
const FEWEST_CONNECTIONS: u32 = 3;

const NONE_GIVEN: &str = "`App::with` was given no job, so this worker would serve nothing; name its jobs, as in `.with(jobs![charge])`, or \
                          leave `with` out to serve every job that is linked into the program";

/// The error for a worker that keeps logs in a program without the log layer.
#[cfg(feature = "logs")]
const NOT_HEARD: &str = "`keep_logs` hears nothing: no subscriber of this program has the layer; build one with \
    `tracing_subscriber::registry().with(RunLogs::layer())` before the worker starts";

const NO_QUEUE: &str = "`App::queues` was given no queue, so this worker would serve nothing; name its queues, or leave `queues` out to serve those of \
                        its jobs and `default`";

/// Builds a worker.
///
/// A worker opens two connections outside its pool: one for heartbeats, and one for the session
/// lock and for notifications. Waiting for results in the same process needs a third.
///
/// From a pool of the default size, the worker reserves four connections for claims, records and
/// maintenance, and one for short statements. Transactional bodies share the rest. In a smaller
/// pool the worker reserves fewer, and runs one transactional body at a time.
///
/// Each further worker on the same pool reserves four more connections. Three workers need a larger
/// pool or one pool each; otherwise bodies wait for a connection.
///
/// While bodies hold every connection of the pool, the worker opens up to six extra connections and
/// logs a warning. It uses them to claim, record, cancel and wake runs as before. It closes each
/// one after 10 s without use.
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
    /// Creates a worker on this database that serves every job linked into the program.
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
    /// The errors of [`Db::from_env`].
    pub async fn from_env() -> Result<Self, ClientError> {
        Ok(Self::new(Db::from_env().await?))
    }

    /// Provides a value to every body that asks for its type with `#[inject]`.
    ///
    /// A second value of the same type replaces the first.
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

    /// Serves only these jobs: `.with(jobs![charge, refund])`.
    ///
    /// The default is every job that is linked into the program.
    pub fn with(mut self, definitions: impl IntoIterator<Item = &'static Definition>) -> Self {
        self.definitions.get_or_insert_default().extend(definitions);
        self
    }

    /// Serves only these queues. The default is the queues of the served jobs, and `default`.
    pub fn queues<Q: Into<String>>(mut self, queues: impl IntoIterator<Item = Q>) -> Self {
        self.queues.get_or_insert_default().extend(queues.into_iter().map(Into::into));
        self
    }

    /// Sets the name of this process. The default is a new unique name.
    ///
    /// A process that restarts under the same name recovers its predecessor's runs at once. Two
    /// live processes must not share a name.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Sets how many runs this process executes at once. The default is 128.
    pub fn concurrency(mut self, concurrency: usize) -> Self {
        self.concurrency = concurrency.max(1);
        self
    }

    /// Sets the intervals of heartbeats and failure detection.
    ///
    /// All workers of a database should use the same timings.
    pub fn timings(mut self, timings: Timings) -> Self {
        self.timings = timings;
        self
    }

    /// Sets how long a shutdown waits for running attempts before it releases them. The default is
    /// 30 s.
    pub fn drain(mut self, deadline: Duration) -> Self {
        self.drain = deadline;
        self
    }

    /// Sets how long a waiting workflow stays resident in this process. The default is 300 ms.
    ///
    /// A run that waits longer for a child, a signal or an instant is suspended. A suspended run
    /// uses no slot, no connection and no memory. After its wake-up, a worker claims the run, reads
    /// its history and replays it. A run that receives its answer while it is resident needs
    /// neither.
    ///
    /// A waiting run stays resident only while this process has a free slot, so it costs only
    /// memory. With a limit of zero, only runs that sleep for less than 300 ms stay resident.
    pub fn idle_residency(mut self, limit: Duration) -> Self {
        self.idle_residency = limit;
        self
    }

    /// Sets how long the body of a cancelled run may take to stop. The default is 10 s.
    ///
    /// The worker drops a cancelled body at its next await. A body that blocks its thread reaches
    /// no await. After the grace, the next heartbeat ends its run without the body. Later writes of
    /// the body have no effect on the run. Its slot and its thread become free when the body
    /// yields.
    ///
    /// A run whose transaction is committing has no body any more. It ends after that commit.
    pub fn cancel_grace(mut self, grace: Duration) -> Self {
        self.cancel_grace = grace;
        self
    }

    /// Sets a hook that the worker calls when a run has failed for good.
    ///
    /// The worker calls the hook after the commit, with the input, the failure and the last
    /// progress. A second hook replaces the first.
    ///
    /// The worker calls the hook once for each failed run. If the process dies after the commit and
    /// before the hook ends, no other process calls it. The worker does not call it for cancelled
    /// or blocked runs. Put work that must happen into the job: into a step that runs when another
    /// step has failed.
    ///
    /// A hook may take 30 s, and the run keeps its slot during that time. Then the worker drops the
    /// hook at its next await. A timeout or a panic of the hook is logged and does not change the
    /// run.
    pub fn on_failure<F, Fut>(mut self, hook: F) -> Self
    where
        F: Fn(FailedRun) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        self.on_failure = Some(FailureHook::new(hook));
        self
    }

    /// Stores what bodies log through `tracing` at this level and above, for
    /// [`RunHandle::logs`](crate::RunHandle::logs) (feature `logs`).
    ///
    /// The subscriber of the program needs the layer [`RunLogs`](crate::RunLogs).
    ///
    /// Bodies never wait for logs. Up to 10,000 lines wait in memory. Each statement writes up to
    /// 500 of them, with a pause of 100 ms after one that is not full. The worker drops lines for
    /// which the memory or the log of the run has no room, and reports the loss through `tracing`.
    /// If the database has a codec, lines are encrypted like payloads. A message is cut at 8 KiB.
    #[cfg(feature = "logs")]
    pub fn keep_logs(mut self, level: tracing::Level) -> Self {
        self.logs = Some(level);
        self
    }

    /// Adds an [`Observer`] that the worker notifies about its attempts, after each commit.
    ///
    /// An app can have several observers. Each has its own thread and a buffer of 4,096 events, and
    /// delays no run. When the buffer is full, the worker drops events, counts them, logs the count
    /// and reports it to the observer.
    ///
    /// At a shutdown, the worker delivers the buffered events for up to 5 s beyond
    /// [`drain`](Self::drain). Then it ends without the observer. A panic of an observer is logged,
    /// and the observer still receives the next events.
    ///
    /// An observer sees only the attempts of this process. Actions on unclaimed runs, such as
    /// cancelling a queued run, are not reported.
    ///
    /// # Cost
    /// Nothing without observers. Otherwise two messages per attempt, and one query when a workflow
    /// failed or was cancelled or an attempt lost its lease.
    pub fn observe(mut self, observer: impl Observer) -> Self {
        self.observers.add(observer);
        self
    }

    /// Starts the worker and returns when it can claim runs.
    ///
    /// # Errors
    /// [`ClientError`] in these cases:
    ///
    /// - No job is registered, two jobs have the same name, or a name is invalid.
    /// - A job injects a type that nothing provides.
    /// - The pool is too small.
    /// - `keep_logs` is set, but no subscriber has the log layer.
    /// - The database is a [copy](crate::Db::adopt) that no operator has adopted.
    /// - The database fails.
    pub async fn start(self) -> Result<Worker, ClientError> {
        let registry = self.code()?;
        check_pool(&self.db)?;
        let queues = self.served_queues(&registry);
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

    /// The queues that this app serves.
    pub(crate) fn served_queues(&self, registry: &Registry) -> Vec<String> {
        self.queues.clone().unwrap_or_else(|| own_queues(registry))
    }

    /// Collects the served jobs and checks that the app provides everything they inject.
    pub(crate) fn code(&self) -> Result<Registry, ClientError> {
        let registry = match &self.definitions {
            Some(given) if given.is_empty() => return Err(ClientError::Config(NONE_GIVEN.to_owned())),
            Some(given) => Registry::collect(given.iter().copied(), BUILT_IN)?,
            None => Registry::collect(registered(), BUILT_IN)?,
        };
        check_provided(&registry, &self.provided)?;
        Ok(registry)
    }

    /// Serves until SIGTERM or ctrl-c.
    ///
    /// Then running attempts may end within [`drain`](Self::drain). The worker releases the rest
    /// without using up an attempt.
    ///
    /// # Errors
    /// The errors of [`start`](Self::start).
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

/// A running worker. Dropping it stops the worker in the background.
#[derive(Debug)]
pub struct Worker {
    running: Running,
}

impl Worker {
    /// Returns the id under which the worker is registered now.
    #[must_use]
    pub fn id(&self) -> i64 {
        *self.running.number.borrow()
    }

    /// Stops the worker and returns when everything is written.
    ///
    /// The worker claims no new runs, waits for running attempts up to the drain deadline, and
    /// releases the rest.
    pub async fn stop(mut self) {
        let _ = self.running.stop.send(true);
        self.ended().await;
    }

    /// Returns when the worker has ended, for example because an operator drained it.
    pub async fn ended(&mut self) {
        if !self.running.task.is_finished() {
            // The worker's task does not panic. If it does, the worker has ended too.
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
            let is_own = inject.id() == std::any::TypeId::of::<crate::engine::attempt::context::Context>();
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

/// Whether the test kit replaces the job's body with a mock.
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

/// Serves every job that is linked into the program, on the database of [`Db::from_env`].
///
/// Returns after SIGTERM or ctrl-c.
///
/// # Errors
/// The errors of [`App::from_env`] and [`App::serve`].
pub async fn serve() -> Result<(), ClientError> {
    App::from_env().await?.serve().await
}
