//! An embedded, private PostgreSQL for development and tests.
//!
//! Runs the PostgreSQL of this machine (13 or later) as a private cluster: no network, a socket
//! that only this user can reach, data that survives restarts. If PostgreSQL is not installed, it
//! downloads a prebuilt one once per user. `RUNLEDGER_PG_DOWNLOAD=off` forbids the download. All
//! programs of one project share one server. The server survives the death of any of them, and
//! stops some seconds after the last one ends. Unix only.
//!
//! ```text
//! Server::start ── Client::join ──▶ watcher (a shell) ── no client for the grace time ──▶ SIGINT
//!       │                                                                                    │
//!       └── Cluster::ensure_running ──▶ initdb once, pg_ctl start ──▶ postmaster ◀───────────┘
//! ```
//!
//! Owns: the folders, the processes and the connection string. Must not know: runs, schema,
//! migrations.

#![expect(clippy::large_futures, reason = "one of each in a process")]

mod archive;
mod cache;
mod cluster;
mod download;
mod error;
mod identity;
mod lifetime;
mod locate;
mod probe;

use std::path::{Path, PathBuf};
use std::time::Duration;

use sqlx::{AssertSqlSafe, Connection, PgConnection};

use self::cluster::{Cluster, ROLE};
pub use self::error::DevError;
use self::identity::Identity;
use self::lifetime::Client;

/// The default database.
const DATABASE: &str = "runledger";

/// Long enough to start the next program by hand, short enough to leave no forgotten server.
const GRACE: Duration = Duration::from_secs(10);

/// Whether committed data survives a power failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// Every commit reaches the disk, as in production: 100 µs instead of 30 µs.
    Safe,
    /// Nothing is forced to the disk. For tests, which do not need their data after a power
    /// failure.
    Fast,
}

impl Durability {
    fn kind(self) -> &'static str {
        match self {
            Self::Safe => "dev",
            Self::Fast => "test",
        }
    }
}

/// The options of a server. Programs with the same `base_dir` share one server, and the first of
/// them decides the other options.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Options {
    /// Whether commits reach the disk.
    pub durability: Durability,
    /// Where the data, the log and the lock live. The default is a folder for this user, project
    /// and durability in `CARGO_TARGET_DIR`, `XDG_STATE_HOME` or `~/.local/state`; for root, in
    /// `/var/tmp`.
    pub base_dir: Option<PathBuf>,
    /// How long the server stays after its last client has ended, 10 s by default. The wait is up
    /// to twice as long if clients joined and left during it. The client that starts the watcher
    /// decides.
    pub grace: Duration,
    /// PostgreSQL's `max_connections`: 100 by default, 300 for tests.
    pub max_connections: u16,
}

impl Options {
    /// Options for examples and programs under development: safe, 100 connections.
    pub fn dev() -> Self {
        Self { durability: Durability::Safe, base_dir: None, grace: GRACE, max_connections: 100 }
    }

    /// Same as [`dev`](Self::dev), for the programs that cargo starts in `folder`. If `folder`
    /// itself contains the data of a database, returns the options of that database. This is the
    /// case after a program called
    /// [`Db::embedded_in`](https://docs.rs/runledger/latest/runledger/struct.Db.html#method.embedded_in).
    ///
    /// # Errors
    /// [`DevError::Io`] if the folder does not exist, or [`DevError::NoBaseDir`].
    pub fn dev_of(folder: &Path) -> Result<Self, DevError> {
        let folder = std::fs::canonicalize(folder).map_err(DevError::io("find the folder", folder))?;
        let base_dir = if cluster::has_data(&folder) {
            folder
        } else {
            Identity::current()?.base_of(&folder, Durability::Safe.kind())?
        };
        Ok(Self { base_dir: Some(base_dir), ..Self::dev() })
    }

    /// Options for tests: fast, and 300 connections, because many test programs run at once and
    /// each opens pools.
    pub fn test() -> Self {
        Self { durability: Durability::Fast, max_connections: 300, ..Self::dev() }
    }
}

/// A running server. It runs at least until this value and those of other processes are dropped.
#[derive(Debug)]
pub struct Server {
    cluster: Cluster,
    _client: Client,
}

impl Server {
    /// Starts the server, or joins a running one. Several processes may do so at the same time.
    ///
    /// Takes about 1 s the first time in a project, 100 ms later, and 10 ms if the server is
    /// running.
    ///
    /// # Errors
    /// [`DevError::NoPrograms`] if PostgreSQL is neither installed nor downloaded, or
    /// [`DevError::PgBin`] if the folder in the variable does not contain it. The other errors name
    /// the folder or the program that failed.
    ///
    /// # Cancel safety
    /// A dropped call continues the start in the background. The server stops after the grace time.
    pub async fn start(options: Options) -> Result<Self, DevError> {
        blocking(move || Self::start_blocking(&options)).await
    }

    /// Returns the connection string of `database`, for sqlx and libpq. It contains the port and
    /// the `sslmode`, so that the caller's `PGPORT` and `PGSSLMODE` do not change them.
    pub fn url(&self, database: &str) -> String {
        let socket_dir = self.cluster.socket_dir.display();
        format!("postgres://{ROLE}@localhost:5432/{database}?host={socket_dir}&sslmode=disable")
    }

    /// Creates `database` if it does not exist. Costs one query if it exists.
    ///
    /// # Errors
    /// [`DevError::Database`] with the server's error.
    ///
    /// # Cancel safety
    /// A dropped call may or may not create the database. Calling again is safe in both cases.
    pub async fn create_database(&self, database: &str) -> Result<(), DevError> {
        let failed = |source| DevError::Database { database: database.to_owned(), source };
        create_if_missing(&self.url("postgres"), database).await.map_err(failed)
    }

    /// PostgreSQL's data folder.
    pub fn data_dir(&self) -> &Path {
        &self.cluster.data
    }

    /// A `psql` command line for the database `runledger`, the default of programs that name no
    /// database.
    pub fn psql(&self) -> String {
        format!("psql -h {} -U {ROLE} {DATABASE}", self.cluster.socket_dir.display())
    }

    /// One line for a person: the folder of the server, the URL of its database, how to query it,
    /// how to start over.
    pub fn notice(&self) -> String {
        let base = self.cluster.base.display();
        let url = self.url(DATABASE);
        let look = if has_psql() { format!("look: {}; ", self.psql()) } else { String::new() };
        format!("embedded PostgreSQL in {base} (URL: {url}; {look}start over: delete the folder)")
    }

    fn start_blocking(options: &Options) -> Result<Self, DevError> {
        let cluster = Cluster::open(options)?;
        cluster.fetch_programs()?;
        let locked = cluster.lock()?;
        let client = Client::join(&locked, &cluster.base, options.grace)?;
        cluster.ensure_running(&locked, options)?;
        Ok(Self { cluster, _client: client })
    }
}

/// Whether `psql` is installed. Downloaded programs do not include it.
fn has_psql() -> bool {
    std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|dir| dir.join("psql").is_file()))
}

/// Whether any process has started the server of `options` before. Starts and creates nothing.
///
/// # Errors
/// Same as [`stop_now`].
pub fn has_data(options: &Options) -> Result<bool, DevError> {
    Cluster::exists(options)
}

/// Starts the server with the database `runledger`, and returns both the server and the database's
/// URL.
///
/// # Errors
/// The errors of [`Server::start`] and [`Server::create_database`].
///
/// # Cancel safety
/// Same as [`Server::start`].
pub async fn start_with_database(options: Options) -> Result<(String, Server), DevError> {
    let server = Server::start(options).await?;
    server.create_database(DATABASE).await?;
    Ok((server.url(DATABASE), server))
}

/// Stops the server of `options` if it runs, even if clients use it. Keeps its data. Blocks for
/// about 100 ms.
///
/// # Errors
/// [`DevError::Timeout`] if it does not stop within 30 s, [`DevError::Served`] if it cannot be
/// reached, or [`DevError::Io`] if its folder cannot be used.
pub fn stop_now(options: &Options) -> Result<(), DevError> {
    let cluster = Cluster::open(options)?;
    cluster.stop(&cluster.lock()?)
}

/// Stops the server of `options` and deletes all its data. Blocks for about 100 ms.
///
/// # Errors
/// Same as [`stop_now`].
pub fn reset(options: &Options) -> Result<(), DevError> {
    let cluster = Cluster::open(options)?;
    let locked = cluster.lock()?;
    cluster.stop(&locked)?;
    cluster.delete(&locked)
}

/// Returns the folder of the programs that start a new server, and the account and group that run
/// it for root. For the project's own tests, which start their own servers.
///
/// # Errors
/// [`DevError::NoPrograms`], [`DevError::PgBin`] and [`DevError::NoServerAccount`].
#[doc(hidden)]
pub fn on_this_machine() -> Result<(PathBuf, Option<(u32, u32)>), DevError> {
    let identity = Identity::current()?;
    Ok((locate::preferred(&identity)?.path(""), identity.account()))
}

/// Returns the folder with the programs of the archive, even if PostgreSQL is installed. For the
/// project's own tests of the download.
///
/// # Errors
/// [`DevError::NoPrograms`].
#[doc(hidden)]
pub fn downloaded() -> Result<PathBuf, DevError> {
    Ok(locate::downloaded(&Identity::current()?)?.path(""))
}

/// Runs blocking work outside the executor's threads. A panic in it continues in the caller.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(value) => value,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime is shutting down, so this future is never polled again.
            Err(_) => std::future::pending().await,
        },
    }
}

async fn create_if_missing(admin_url: &str, database: &str) -> Result<(), sqlx::Error> {
    let mut connection = PgConnection::connect(admin_url).await?;
    let found: Option<i32> = sqlx::query_scalar("select 1 from pg_database where datname = $1")
        .bind(database)
        .fetch_optional(&mut connection)
        .await?;
    if found.is_none() {
        let quoted = database.replace('"', "\"\"");
        let made = sqlx::raw_sql(AssertSqlSafe(format!("create database \"{quoted}\"")))
            .execute(&mut connection)
            .await;
        // Another process may have created it in between: `duplicate_database`, or a unique
        // violation if it did so at the same instant.
        match made {
            Err(sqlx::Error::Database(error))
                if matches!(error.code().as_deref(), Some("42P04" | "23505")) => {}
            other => other.map(drop)?,
        }
    }
    connection.close().await
}
