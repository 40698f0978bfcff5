//! A working site: worker processes, each behind its own proxy, and a client, from the first call
//! to the verdict.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use runledger_tests::check::fleet::Process;
use runledger_tests::proxy::{Mode, Proxy};
use sqlx::{AssertSqlSafe, PgConnection};

use crate::dice::Dice;
use crate::load::Client;
use crate::scenario::Setting;
use crate::site::Site;
use crate::summary::Summary;

/// Selects the default timings. For scenarios without reclaims, in which neither a loaded machine
/// nor an outage may look like a worker's death.
pub const PATIENT: &[&str] = &["--timings", "default"];

/// The engine's sessions in this database, without those of the monitor and of scenarios.
pub const OURS: &str = "datname = current_database() and application_name like 'runledger/%'";

/// Counts the workers with a recent heartbeat, which have reached the server.
pub const BEATING: &str = "select count(*) from runledger.worker where state = 'active' and heartbeat_at > clock_timestamp() - interval '2 seconds'";

/// The locks of this database's workers in `pg_locks`. A session with such a lock also listens.
pub const WORKER_LOCKS: &str =
    "locktype = 'advisory' and database = (select oid from pg_database where datname = current_database())
    and classid = 'runledger.worker'::regclass and objsubid = 2 and granted";

/// How long to wait for what must happen.
pub const LONG: Duration = Duration::from_secs(60);

/// A worker and its proxy.
#[derive(Debug)]
pub struct Member {
    /// The process.
    pub process: Process,
    /// The proxy between the worker and the server.
    pub proxy: Proxy,
}

/// A working site.
#[derive(Debug)]
pub struct Scene {
    /// The database and the checkers.
    pub site: Site,
    /// The workers.
    pub crew: Vec<Member>,
    /// The proxy between the client and the server.
    pub proxy: Proxy,
    /// The client.
    pub client: Client,
    /// The random choices.
    pub dice: Dice,
    options: &'static [&'static str],
    load: Duration,
    began: Instant,
}

impl Scene {
    /// Starts `n_workers` workers with these options, and the client.
    ///
    /// # Errors
    /// A process or the client did not start.
    pub async fn open(setting: &Setting, n_workers: usize, options: &'static [&'static str]) -> Result<Self> {
        let site = Site::new(setting).await?;
        Self::at(site, setting, n_workers, options).await
    }

    /// Like [`open`](Self::open), at an existing site.
    ///
    /// # Errors
    /// A process or the client did not start.
    pub async fn at(
        site: Site,
        setting: &Setting,
        n_workers: usize,
        options: &'static [&'static str],
    ) -> Result<Self> {
        let proxy = Proxy::start(site.address()).await?;
        let client = site.client_at(proxy.url(), setting).await?;
        let (dice, load, began) = (setting.dice(), setting.load, Instant::now());
        let mut scene = Self { site, crew: Vec::new(), proxy, client, dice, options, load, began };
        for _ in 0..n_workers {
            scene.hire().await?;
        }
        scene.began = Instant::now();
        Ok(scene)
    }

    /// Starts another worker.
    ///
    /// # Errors
    /// The worker did not start.
    pub async fn hire(&mut self) -> Result<()> {
        self.hire_with(self.options).await
    }

    /// Starts another worker with other options.
    ///
    /// # Errors
    /// The worker did not start.
    pub async fn hire_with(&mut self, options: &[&str]) -> Result<()> {
        let proxy = Proxy::start(self.site.address()).await?;
        let process = self.site.worker_at(proxy.url(), options).await?;
        self.crew.push(Member { process, proxy });
        Ok(())
    }

    /// Whether there is time for another fault.
    #[must_use]
    pub fn goes_on(&self) -> bool {
        self.began.elapsed() < self.load
    }

    /// Returns the time since the workers started.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    /// Waits a random time between two numbers of milliseconds.
    pub async fn moment(&mut self, least: u64, most: u64) {
        let wait = self.dice.between(Duration::from_millis(least), Duration::from_millis(most));
        tokio::time::sleep(wait).await;
    }

    /// Returns the index of a random worker.
    pub fn any(&mut self) -> usize {
        self.dice.index(self.crew.len())
    }

    /// Kills a worker and starts another.
    ///
    /// # Errors
    /// The new worker did not start.
    pub async fn replace_killed(&mut self, victim: usize) -> Result<()> {
        self.crew.swap_remove(victim).process.kill().await?;
        self.site.n_faults += 1;
        self.hire().await
    }

    /// Applies a mode to every proxy.
    pub fn set_all(&self, mode: Mode) {
        self.proxies().for_each(|proxy| proxy.set(mode));
    }

    /// Returns every proxy: those of the workers and the client's.
    pub fn proxies(&self) -> impl Iterator<Item = &Proxy> {
        self.crew.iter().map(|member| &member.proxy).chain([&self.proxy])
    }

    /// Ends the network faults, checks that no worker has ended by itself, and judges the scenario.
    ///
    /// # Errors
    /// The database did not answer.
    pub async fn end(mut self) -> Result<Summary> {
        self.set_all(Mode::Pass);
        // Resets connections that are still silent, as the kernel does after enough retries.
        self.proxies().for_each(|proxy| {
            proxy.disarm();
            proxy.cut();
        });
        self.look_after_crew();
        let Self { site, client, crew: _crew, proxy: _proxy, .. } = self;
        site.judge(client).await
    }

    fn look_after_crew(&mut self) {
        for member in &mut self.crew {
            if member.process.has_ended() {
                let sentence = format!("worker process {} has ended by itself", member.process.pid);
                self.site.violations.push(sentence);
            }
        }
    }
}

/// Executes statements without reading rows.
///
/// # Errors
/// The database refused a statement.
pub async fn execute(connection: &mut PgConnection, statements: &str) -> Result<()> {
    sqlx::raw_sql(AssertSqlSafe(statements.to_owned())).execute(connection).await?;
    Ok(())
}

/// Returns one number.
///
/// # Errors
/// The database refused the query.
pub async fn count(connection: &mut PgConnection, query: &str) -> Result<i64> {
    Ok(sqlx::query_scalar(AssertSqlSafe(query.to_owned())).fetch_one(connection).await?)
}

/// Ends a random session of the engine (see [`OURS`]), and returns how many it ended.
///
/// # Errors
/// The database refused the query.
pub async fn end_a_session(connection: &mut PgConnection) -> Result<i64> {
    let one = format!(
        "select count(pg_terminate_backend(pid)) from (select pid from pg_stat_activity where {OURS} order by random() limit 1) as one"
    );
    count(connection, &one).await
}

/// Ends the sessions that hold a worker's lock, and returns how many it ended.
///
/// # Errors
/// The database refused the query.
pub async fn end_lock_sessions(connection: &mut PgConnection) -> Result<i64> {
    let holders = format!("select count(pg_terminate_backend(pid)) from pg_locks where {WORKER_LOCKS}");
    count(connection, &holders).await
}

/// Waits until a query returns at least `wanted`.
///
/// # Errors
/// The number stayed lower for a minute, or the database refused the query.
pub async fn reaches(connection: &mut PgConnection, query: &str, wanted: i64) -> Result<()> {
    let began = Instant::now();
    loop {
        let now = count(connection, query).await?;
        if now >= wanted {
            return Ok(());
        }
        if began.elapsed() > LONG {
            bail!("still {now} instead of {wanted} after {LONG:?}: {query}");
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
