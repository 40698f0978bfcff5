//! Test kit: runs your jobs and workflows on a real PostgreSQL, without waiting for sleeps.
//!
//! A [`Testing`] owns a database and drops it at the end. Its worker runs in the test process. You
//! can mock jobs and skip time. [`crash_everywhere`](Testing::crash_everywhere) kills the worker at
//! every write of a run. Enable the feature `testing` only under `[dev-dependencies]`.
//!
//! ```
//! use runledger::prelude::*;
//! use runledger::testing::Testing;
//!
//! #[job]
//! async fn charge(cents: u64) -> Result<String> {
//!     Err(Error::terminal(format!("there is no payment provider in this test, and {cents} cents to charge")))
//! }
//!
//! #[workflow]
//! async fn checkout(wf: &Wf, cents: u64) -> Result<String> {
//!     wf.sleep(std::time::Duration::from_secs(30 * 86_400)).await?;
//!     Ok(wf.run(charge(cents)).await?)
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<()> {
//! let test = Testing::new()
//!     .await?
//!     .with(jobs![checkout, charge])
//!     .mock(charge, |cents: u64| async move { Ok(format!("{cents} cents")) })
//!     .auto_advance_time();
//! let run = test.start(checkout(4200)).await?;
//! assert_eq!(run.result().await?, "4200 cents");
//! assert_eq!(test.calls(charge), 1);
//! # Ok(())
//! # }
//! ```

mod crash;
mod database;
mod drive;
mod mock;
mod run;
mod standstill;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tokio::sync::OnceCell;

pub use self::crash::{CrashError, CrashEverywhere, Crashes, Ended, RecordedStep};
use self::database::{Database, Server};
use self::drive::{Drive, Hand, Names, STALL_LIMIT, Script};
pub use self::mock::{Mock, Takes};
pub use self::run::TestRun;
use crate::connection::task::spawn_detached;
use crate::definition::jobs::DefinitionOf;
use crate::definition::provided::Provided;
use crate::definition::registry::registered;
use crate::engine::test_hooks::{self, Role, Skipped, Steps, TestHooks, WorkerHooks};
use crate::model::payload::{Codec, Plain};
use crate::{App, Call, ClientError, Db, Definition, Job, Timings, Worker};

/// Enough for the worker and for the queries of a test.
const CONNECTIONS: u32 = 12;

/// A database for one test, and a worker in it.
///
/// Configure what the worker serves and which values it gets, then [`start`](Self::start) runs. The
/// database is new and has the schema `runledger`. It is on the embedded PostgreSQL, or on the
/// server in `RUNLEDGER_TEST_DATABASE_URL`, whose role must be allowed to create databases.
/// Dropping this value drops the database. Works in `#[tokio::test]` with either runtime flavor.
#[must_use = "dropping it drops its database"]
pub struct Testing {
    db: Db,
    plan: Plan,
    worker: Arc<OnceCell<(Worker, Arc<TestHooks>)>>,
    hand: Arc<Hand>,
    // Last, so that it is dropped after the fields that use it.
    database: Database,
}

/// The configuration of a worker.
#[derive(Clone, Default)]
struct Plan {
    definitions: Option<Vec<&'static Definition>>,
    queues: Option<Vec<String>>,
    values: Vec<Provide>,
    fakes: Vec<Fake>,
    mocks: HashMap<test_hooks::Code, test_hooks::Mock>,
    script: Script,
    skips: bool,
    stall_limit: Option<Duration>,
    codec: Option<Arc<dyn Codec>>,
    /// An invalid setting. Starting a worker fails with this text.
    refused: Option<String>,
}

type Fake = Arc<dyn Fn(&mut Provided) + Send + Sync>;

type Provide = Arc<dyn Fn(&mut Provided, &Db) + Send + Sync>;

impl Testing {
    /// Creates a database, without a worker yet.
    ///
    /// The first call of a process takes about 1 s, each further call some 10 ms.
    ///
    /// # Errors
    /// [`ClientError`] if no server is available, the embedded server does not start, or the role
    /// may not create databases.
    pub async fn new() -> Result<Self, ClientError> {
        Box::pin(async { Self::in_database(Server::usual().await?.database().await?).await }).await
    }

    /// Same as [`new`](Self::new), on the server at this address. Its role must be allowed to
    /// create databases.
    ///
    /// # Errors
    /// Same as [`new`](Self::new).
    pub async fn on(url: &str) -> Result<Self, ClientError> {
        Box::pin(async { Self::in_database(Server::at(url).await?.database().await?).await }).await
    }

    async fn in_database(database: Database) -> Result<Self, ClientError> {
        let db = Db::connect_with(database.options(), CONNECTIONS).await?;
        let (plan, worker, hand) = (Plan::default(), Arc::default(), Arc::default());
        Ok(Self { db, plan, worker, hand, database })
    }

    /// Serves only these jobs, as [`App::with`] does: `.with(jobs![checkout, charge])`. By default,
    /// the worker serves every job that is linked into the test.
    pub fn with(mut self, definitions: impl IntoIterator<Item = &'static Definition>) -> Self {
        self.plan.definitions.get_or_insert_default().extend(definitions);
        self
    }

    /// Serves only these queues, as [`App::queues`] does. By default, the worker serves the queues
    /// of its jobs and `default`.
    pub fn queues<Q: Into<String>>(mut self, queues: impl IntoIterator<Item = Q>) -> Self {
        self.plan.queues.get_or_insert_default().extend(queues.into_iter().map(Into::into));
        self
    }

    /// Provides a value, as [`App::provide`] does.
    pub fn provide<T: Send + Sync + 'static>(mut self, value: T) -> Self {
        let value = Arc::new(value);
        self.plan.values.push(Arc::new(move |provided, _| provided.insert(Arc::clone(&value))));
        self
    }

    /// Provides a value that needs the test's database. Each worker that starts creates its own
    /// value, as a process would.
    pub fn provide_with<T: Send + Sync + 'static>(
        mut self,
        make: impl Fn(&Db) -> T + Send + Sync + 'static,
    ) -> Self {
        self.plan.values.push(Arc::new(move |provided, db| provided.insert(Arc::new(make(db)))));
        self
    }

    /// Provides a fake of an external system, such as a payment provider. Each database has one
    /// fake, which survives crashes of workers. [`fake`](Self::fake) returns it to the test.
    pub fn provide_shared_fake<T: Send + Sync + 'static>(
        mut self,
        make: impl Fn() -> T + Send + Sync + 'static,
    ) -> Self {
        self.plan.fakes.push(Arc::new(move |provided| provided.insert(Arc::new(make()))));
        self
    }

    /// Replaces the body of a job, both as a step and as a run. The mock takes the job's arguments
    /// as owned values (`String` for `&str`) and no injected values. A closure must annotate its
    /// types. [`calls`](Self::calls) counts calls of the mock.
    ///
    /// The engine records, retries and replays the result of a mock like the result of the job. You
    /// can also mock a workflow that other workflows start.
    pub fn mock<Arguments, Owned, F, M>(mut self, function: F, body: M) -> Self
    where
        F: DefinitionOf<Arguments>,
        M: Mock<Arguments, Owned, <F::Job as Job>::Output>,
    {
        drop(function);
        if F::DEFINITION.transactional {
            let job = F::DEFINITION.name;
            self.plan.refused.get_or_insert(format!(
                "job `{job}` is transactional, and what it writes is part of the commit that records it: run it as it is, on the test's own database, \
                 and mock what it calls"
            ));
        }
        self.plan.mocks.insert(F::DEFINITION.code(), body.into_mock(F::DEFINITION).0);
        self
    }

    /// Encrypts payloads with a codec, as [`Db::with_codec`] does. It applies to the worker, to
    /// `db()`, and to each run of [`crash_everywhere`](Self::crash_everywhere).
    pub fn codec(mut self, codec: impl Codec) -> Self {
        let codec: Arc<dyn Codec> = Arc::new(codec);
        self.plan.codec = Some(Arc::clone(&codec));
        self.db = self.db.with_codec(codec);
        self
    }

    /// Sends these signals in order, each to the first run that waits for a signal of its name.
    pub fn signals<N: Into<String>, T: Serialize>(
        mut self,
        signals: impl IntoIterator<Item = (N, T)>,
    ) -> Self {
        for (name, payload) in signals {
            let name = name.into();
            match Plain::of(&payload) {
                Ok(payload) => self.plan.script.push(name, payload),
                Err(error) => {
                    self.plan.refused.get_or_insert(format!("signal `{name}` cannot be stored: {error}"));
                }
            }
        }
        self
    }

    /// Skips sleeps: whenever no other activity is left, time jumps to the next instant that a run
    /// sleeps until. Sleeps, wait limits, deadlines, delays and retry pauses then end at once, in
    /// their order. The clock of workflows (`wf.now()`) moves too; the clock of the server does
    /// not.
    ///
    /// Time passes only while the test awaits [`TestRun::result`], which fails after 5,000 skips
    /// and signals. A wait for a signal with a limit times out unless the test sent the signal
    /// before or named it in [`signals`](Self::signals).
    pub fn auto_advance_time(mut self) -> Self {
        self.plan.skips = true;
        self
    }

    /// Sets how long nothing may happen before [`TestRun::result`] fails and reports what the run
    /// waits for; 30 s by default. A running body counts as activity. While other runs progress,
    /// the limit is ten times as long.
    ///
    /// [`crash_everywhere`](Self::crash_everywhere) has the same limit between two events of a run.
    /// There, a running body does not count as activity: raise the limit if one body takes longer.
    pub fn stall_limit(mut self, stall_limit: Duration) -> Self {
        self.plan.stall_limit = Some(stall_limit);
        self
    }

    /// The database. Use it to create the application's schema and to query its tables.
    #[must_use]
    pub fn db(&self) -> &Db {
        &self.db
    }

    /// The URL of the database, for programs that the test starts.
    #[must_use]
    pub fn url(&self) -> String {
        self.database.url()
    }

    /// Enqueues a call, and starts the worker if it does not run yet.
    ///
    /// # Errors
    /// Same as [`App::start`] and [`Call::enqueue`].
    pub async fn start<J: Job>(&self, call: Call<J>) -> Result<TestRun<'_, J::Output>, ClientError> {
        let (_, scene) = self.worker().await?;
        let handle = call.enqueue(&self.db).await?;
        let drive = self.drive(scene);
        Ok(TestRun::new(self, handle, drive))
    }

    /// Skips time to the next instant that a run sleeps until, once no other activity is left.
    /// Returns the skipped time.
    ///
    /// # Errors
    /// [`ClientError::Config`] if no run sleeps, or if a run is active for longer than
    /// [`stall_limit`](Self::stall_limit); otherwise a database error.
    pub async fn skip_time(&self) -> Result<Duration, ClientError> {
        let (_, scene) = self.worker().await?;
        Box::pin(self.drive(scene).skip(&self.hand)).await
    }

    fn drive(&self, scene: &Arc<TestHooks>) -> Drive {
        let stall_limit = self.plan.stall_limit.unwrap_or(STALL_LIMIT);
        Drive::new(&self.db, Arc::clone(scene), self.plan.script.clone(), self.plan.names(), stall_limit)
    }

    /// How often the body of this job, or its mock, has started.
    pub fn calls<Arguments, F: DefinitionOf<Arguments>>(&self, function: F) -> u32 {
        drop(function);
        self.worker.get().map_or(0, |(_, scene)| scene.calls(F::DEFINITION))
    }

    /// The fake from [`provide_shared_fake`](Self::provide_shared_fake). `None` before the first
    /// [`start`](Self::start), or if no fake has this type.
    #[must_use]
    pub fn fake<T: Send + Sync + 'static>(&self) -> Option<Arc<T>> {
        self.worker.get().and_then(|(_, scene)| scene.fakes.get::<T>())
    }

    async fn worker(&self) -> Result<&(Worker, Arc<TestHooks>), ClientError> {
        if self.worker.get().is_none() {
            let (cell, plan, db) = (Arc::clone(&self.worker), self.plan.clone(), self.db.clone());
            // In a task, so that a caller whose future is not polled does not block others.
            let started = spawn_detached("test worker", |mut let_go| async move {
                let start = async || plan.start(&db).await;
                let_go.or(async { cell.get_or_try_init(start).await.map(drop) }).await
            });
            started.await.unwrap_or(Ok(()))?;
        }
        self.worker
            .get()
            .ok_or_else(|| ClientError::Config("the worker of the test did not start".to_owned()))
    }
}

impl fmt::Debug for Testing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Testing").field("database", &self.database).finish_non_exhaustive()
    }
}

impl Plan {
    /// Hooks for one more database.
    fn scene(&self) -> Arc<TestHooks> {
        self.scene_with(Steps::default())
    }

    /// Hooks for one more database that can hold a step.
    fn scene_with(&self, steps: Steps) -> Arc<TestHooks> {
        let mut scene = TestHooks { mocks: self.mocks.clone(), steps, ..TestHooks::default() };
        if self.skips {
            scene.skipped = Skipped::by_itself();
        }
        for fake in &self.fakes {
            fake(&mut scene.fakes);
        }
        Arc::new(scene)
    }

    /// Starts the worker of a test.
    async fn start(&self, db: &Db) -> Result<(Worker, Arc<TestHooks>), ClientError> {
        let scene = self.scene();
        let app = self.app(db, &scene, Role::Only)?.timings(Timings::FAST);
        let worker = Box::pin(app.start()).await?;
        Ok((worker, scene))
    }

    /// Adds the codec of the test to a database handle.
    fn sealed(&self, db: Db) -> Db {
        match &self.codec {
            Some(codec) => db.with_codec(Arc::clone(codec)),
            None => db,
        }
    }

    fn definitions(&self) -> Vec<&'static Definition> {
        self.definitions.clone().unwrap_or_else(|| registered().collect())
    }

    fn names(&self) -> Names {
        let of = |definition: &'static Definition| {
            definition.names().flat_map(|job| definition.names().map(move |name| (job, name)))
        };
        self.definitions().into_iter().flat_map(of).collect()
    }

    /// Builds a worker with these hooks.
    fn app(&self, db: &Db, scene: &Arc<TestHooks>, role: Role) -> Result<App, ClientError> {
        if let Some(refused) = &self.refused {
            return Err(ClientError::Config(refused.clone()));
        }
        let mut provided = scene.fakes.clone();
        for value in &self.values {
            value(&mut provided, db);
        }
        provided.insert(Arc::new(WorkerHooks { scene: Arc::clone(scene), role }));
        let mut app = App::new(db.clone()).provide_all(provided);
        if let Some(queues) = &self.queues {
            app = app.queues(queues.iter().cloned());
        }
        Ok(match &self.definitions {
            Some(definitions) => app.with(definitions.iter().copied()),
            None => app,
        })
    }
}
