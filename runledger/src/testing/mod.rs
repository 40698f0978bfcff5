//! The test kit: your own jobs and workflows under test, on a real PostgreSQL, with everything of the engine but its waiting.
//!
//! A [`Testing`] has a database of its own, which goes with it. Its worker runs in the test's own process. Jobs can be mocked, time can be skipped, and
//! [`crash_everywhere`](Testing::crash_everywhere) kills the worker at every write of a run. Nothing of it belongs into a program: enable the feature
//! `testing` under `[dev-dependencies]` alone.
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
use self::drive::{Drive, Hand, Names, PATIENCE, Script};
pub use self::mock::{Mock, Takes};
pub use self::run::TestRun;
use crate::connection::task::spawn_detached;
use crate::definition::jobs::DefinitionOf;
use crate::definition::provided::Provided;
use crate::definition::registry::registered;
use crate::engine::test_hooks::{self, Role, Skipped, Steps, TestHooks, WorkerHooks};
use crate::model::payload::{Codec, Plain};
use crate::{App, Call, ClientError, Db, Definition, Job, Timings, Worker};

/// Enough for the worker, and for a test that looks into the tables.
const CONNECTIONS: u32 = 12;

/// A test's own database, and the worker that it starts in it.
///
/// Say what the worker serves and is provided with, then [`start`](Self::start) runs. The database is a fresh one on the embedded PostgreSQL, or on the
/// server that `RUNLEDGER_TEST_DATABASE_URL` names (a role that may create databases), with the schema `runledger` in it; it is dropped with this value.
/// Works in a plain `#[tokio::test]`, on either kind of runtime.
#[must_use = "dropping it drops its database"]
pub struct Testing {
    db: Db,
    plan: Plan,
    worker: Arc<OnceCell<(Worker, Arc<TestHooks>)>>,
    hand: Arc<Hand>,
    // Last: it is dropped under whatever is left of the others.
    database: Database,
}

/// What a worker is made of.
#[derive(Clone, Default)]
struct Plan {
    definitions: Option<Vec<&'static Definition>>,
    queues: Option<Vec<String>>,
    values: Vec<Provide>,
    fakes: Vec<Fake>,
    mocks: HashMap<test_hooks::Code, test_hooks::Mock>,
    script: Script,
    skips: bool,
    patience: Option<Duration>,
    codec: Option<Arc<dyn Codec>>,
    /// What cannot be as it was said: a worker that is started says so.
    refused: Option<String>,
}

type Fake = Arc<dyn Fn(&mut Provided) + Send + Sync>;

type Provide = Arc<dyn Fn(&mut Provided, &Db) + Send + Sync>;

impl Testing {
    /// A fresh database, and no worker yet.
    ///
    /// The first one of a process takes a second; each further one some ten milliseconds.
    ///
    /// # Errors
    /// [`ClientError`]: there is no server, it cannot be started, or the role may not create databases.
    pub async fn new() -> Result<Self, ClientError> {
        Box::pin(async { Self::in_database(Server::usual().await?.database().await?).await }).await
    }

    /// As [`new`](Self::new), on the server at this address, whose role must be allowed to create databases.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub async fn on(url: &str) -> Result<Self, ClientError> {
        Box::pin(async { Self::in_database(Server::at(url).await?.database().await?).await }).await
    }

    async fn in_database(database: Database) -> Result<Self, ClientError> {
        let db = Db::connect_with(database.options(), CONNECTIONS).await?;
        let (plan, worker, hand) = (Plan::default(), Arc::default(), Arc::default());
        Ok(Self { db, plan, worker, hand, database })
    }

    /// Serves these jobs, and no others, as [`App::with`] does: `.with(jobs![checkout, charge])`. Without it, every job that is linked into the test.
    pub fn with(mut self, definitions: impl IntoIterator<Item = &'static Definition>) -> Self {
        self.plan.definitions.get_or_insert_default().extend(definitions);
        self
    }

    /// Serves these queues, and no others, as [`App::queues`] does. Without it, the queues of the served jobs and
    /// `default`.
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

    /// Provides a value that needs the database of the test: it is made anew for every worker that starts, as it is in a process that starts.
    pub fn provide_with<T: Send + Sync + 'static>(
        mut self,
        make: impl Fn(&Db) -> T + Send + Sync + 'static,
    ) -> Self {
        self.plan.values.push(Arc::new(move |provided, db| provided.insert(Arc::new(make(db)))));
        self
    }

    /// Provides a value that stands for something outside, such as a payment provider: one is made for each database, and no crash of a worker harms it.
    /// [`fake`](Self::fake) gives it to the test.
    pub fn provide_shared_fake<T: Send + Sync + 'static>(
        mut self,
        make: impl Fn() -> T + Send + Sync + 'static,
    ) -> Self {
        self.plan.fakes.push(Arc::new(move |provided| provided.insert(Arc::new(make()))));
        self
    }

    /// Puts another body in the place of a job's, wherever it runs: as a step, or as a run of its own. The body takes the arguments of the job, owned
    /// (`String` for `&str`), and no values that are injected; closures have to name their types. [`calls`](Self::calls) counts it.
    ///
    /// What a mock gives is recorded, retried and replayed as what the job gives. A workflow can be mocked too, where others start it.
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

    /// Seals payloads with a codec, as [`Db::with_codec`] does: those of the worker, of `db()`, and of each run of [`crash_everywhere`](Self::crash_everywhere).
    pub fn codec(mut self, codec: impl Codec) -> Self {
        let codec: Arc<dyn Codec> = Arc::new(codec);
        self.plan.codec = Some(Arc::clone(&codec));
        self.db = self.db.with_codec(codec);
        self
    }

    /// Sends these signals, each to the first run that waits for one of its name, in their order.
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

    /// Lets no run sleep: as soon as nothing else goes on, time passes to the next instant that a run sleeps until. Sleeps, limits of waits, deadlines of runs,
    /// delays and the pauses between tries are so over at once, in their order. The clock of workflows (`wf.now()`) moves with it; that of the server does not.
    ///
    /// Time passes while the test waits in [`TestRun::result`], which fails after 5,000 skips and signals. A wait
    /// for a signal with a limit times out unless the signal was sent or named by [`signals`](Self::signals) before.
    pub fn auto_advance_time(mut self) -> Self {
        self.plan.skips = true;
        self
    }

    /// How long nothing may happen before [`TestRun::result`] reports what the run waits for; 30 s by
    /// default. A running body counts as activity. Beside other runs that go on, the limit is ten times as long.
    ///
    /// [`crash_everywhere`](Self::crash_everywhere) has the same limits between two events of a run. There a running
    /// body does not count as activity: give more time if one body takes longer.
    pub fn patience(mut self, patience: Duration) -> Self {
        self.plan.patience = Some(patience);
        self
    }

    /// The database: for a schema of the application, and for looks into its tables.
    #[must_use]
    pub fn db(&self) -> &Db {
        &self.db
    }

    /// The address of the database, for programs that the test starts.
    #[must_use]
    pub fn url(&self) -> String {
        self.database.url()
    }

    /// Enqueues a call, and starts the worker where it does not run yet.
    ///
    /// # Errors
    /// As [`App::start`] and [`Call::enqueue`].
    pub async fn start<J: Job>(&self, call: Call<J>) -> Result<TestRun<'_, J>, ClientError> {
        let (_, scene) = self.worker().await?;
        let handle = call.enqueue(&self.db).await?;
        let drive = self.drive(scene);
        Ok(TestRun::new(self, handle, drive))
    }

    /// Skips time to the next instant that a run sleeps until, once no other activity is left. Returns the
    /// skipped time.
    ///
    /// # Errors
    /// [`ClientError::Config`] if no run sleeps, or if a run is active for longer than
    /// [`patience`](Self::patience); or a failure of the database.
    pub async fn skip_time(&self) -> Result<Duration, ClientError> {
        let (_, scene) = self.worker().await?;
        Box::pin(self.drive(scene).skip(&self.hand)).await
    }

    fn drive(&self, scene: &Arc<TestHooks>) -> Drive {
        let patience = self.plan.patience.unwrap_or(PATIENCE);
        Drive::new(&self.db, Arc::clone(scene), self.plan.script.clone(), self.plan.names(), patience)
    }

    /// How often the body of this job, or its mock, has begun.
    pub fn calls<Arguments, F: DefinitionOf<Arguments>>(&self, function: F) -> u32 {
        drop(function);
        self.worker.get().map_or(0, |(_, scene)| scene.calls(F::DEFINITION))
    }

    /// What [`provide_shared_fake`](Self::provide_shared_fake) has made. None before the first [`start`](Self::start), or where nothing makes such a value.
    #[must_use]
    pub fn fake<T: Send + Sync + 'static>(&self) -> Option<Arc<T>> {
        self.worker.get().and_then(|(_, scene)| scene.fakes.get::<T>())
    }

    async fn worker(&self) -> Result<&(Worker, Arc<TestHooks>), ClientError> {
        if self.worker.get().is_none() {
            let (cell, plan, db) = (Arc::clone(&self.worker), self.plan.clone(), self.db.clone());
            // A task of its own: a caller whose future nobody polls must not keep the worker from others.
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
    /// A scene for another database.
    fn scene(&self) -> Arc<TestHooks> {
        self.scene_with(Steps::default())
    }

    /// A scene for another database, in which a step may be held up.
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

    /// Starts the worker of a test, in a scene.
    async fn start(&self, db: &Db) -> Result<(Worker, Arc<TestHooks>), ClientError> {
        let scene = self.scene();
        let app = self.app(db, &scene, Role::Only)?.timings(Timings::FAST);
        let worker = Box::pin(app.start()).await?;
        Ok((worker, scene))
    }

    /// A database with the codec of the test.
    fn sealed(&self, db: Db) -> Db {
        match &self.codec {
            Some(codec) => db.with_codec(Arc::clone(codec)),
            None => db,
        }
    }

    /// What it serves.
    fn definitions(&self) -> Vec<&'static Definition> {
        self.definitions.clone().unwrap_or_else(|| registered().collect())
    }

    /// The names of what it serves.
    fn names(&self) -> Names {
        let of = |definition: &'static Definition| {
            definition.names().flat_map(|job| definition.names().map(move |name| (job, name)))
        };
        self.definitions().into_iter().flat_map(of).collect()
    }

    /// A worker in a scene.
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
