//! The database as the client and the worker see it.

#[cfg(feature = "worker")]
mod by_worker;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgConnectOptions, PgConnection, PgPool, PgPoolOptions};
use sqlx::{ConnectOptions, Connection, Postgres, Transaction};

use super::client_error::ClientError;
use super::code_context::refuses_effects;
use super::db_timeout::{STATEMENT_LIMIT, with_timeout};
use super::inbox::Inbox;
use super::installation::adopt_if_idle;
use super::outage::warn_outage;
use super::server_check::{check_server, check_writable};
use super::source::{Build, Source, choose, parsed, shown_host};
use super::tx::Tx;
use crate::model::payload::{Codec, Limits, Sealer};
use crate::store::error::{Class, class, unopened};
use crate::store::migrate::{is_current, migrate};
use crate::store::session::failover::ServerEpoch;
use crate::store::session::reserve::Reserve;
use crate::store::session::server::{server, socket_folder};
use crate::store::session::without_connection::{self, with_reason};
use crate::store::session::{ClientSessions, acquire, begin_body, has_lost_statements, unsafe_path};

/// The default maximum number of connections of a [`Db`].
pub const DEFAULT_CONNECTIONS: u32 = 10;

/// How long a caller waits for a free connection.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(5);

/// The pool pings a connection that was idle for this long before it hands it out: after a server
/// restart, each dead connection would cause one error. Busy connections need no ping.
const RESTED: Duration = Duration::from_millis(50);

/// How long the pool waits for the reply to such a ping.
const PONG: Duration = Duration::from_secs(2);

/// A pool of connections to the database that is safe against dropped futures. Cloning is cheap.
///
/// Transactions begin at `read committed`, even if the role has another default; set another level
/// in the transaction. Each connection runs a `ROLLBACK` when it returns to the pool: in sqlx 0.9,
/// a dropped `begin()` returns its connection with an open transaction. The database would
/// acknowledge the next statement on it and then lose the write.
#[derive(Clone, Debug)]
pub struct Db {
    pool: PgPool,
    inbox: Arc<Inbox>,
    session_name: Arc<str>,
    sealer: Sealer,
    /// Counts this codec in [`SEALING`] while the `Db` exists.
    #[expect(dead_code, reason = "held, not read")]
    sealing: Option<Arc<Sealing>>,
    /// The server epoch of a worker's claimed runs. Their writes are valid only in this epoch.
    era: Option<Arc<ServerEpoch>>,
    /// Spare connections of a worker, used while bodies hold the whole pool.
    reserve: Option<Reserve>,
    /// The embedded server. It runs until the last user drops it.
    #[cfg(all(feature = "dev", unix))]
    #[expect(dead_code, reason = "held, not read")]
    server: Option<Arc<crate::dev::Server>>,
}

impl Db {
    /// Connects, checks the server, and updates the schema `runledger` to the current version.
    ///
    /// Sessions of the [`pool`](Self::pool) have
    /// `default_transaction_isolation = 'read committed'`, `client_min_messages = error` and
    /// `jit = off`, whatever the role's defaults. To compile one of your own queries, run
    /// `set local jit = on`. Names resolve in `pg_catalog` first: if the role's `search_path` lists
    /// it after another schema, the session removes it from the path.
    ///
    /// Connecting to a [copy](Self::adopt) of another database succeeds. If the copy has no
    /// unfinished runs, this call adopts it. Otherwise workers refuse it.
    ///
    /// # Errors
    /// [`ClientError`] for a failed connection; a server that is older than PostgreSQL 13, a
    /// standby, or read-only; a server in whose place this process has met a promoted standby; a
    /// role whose `search_path` leads into the schema `runledger`, as the default does for a role
    /// of that name; a schema that a newer program has changed incompatibly.
    pub async fn connect(url: &str) -> Result<Self, ClientError> {
        Self::connect_with(parsed(url)?, DEFAULT_CONNECTIONS).await
    }

    /// Connects for reading only. Writes nothing, and accepts a standby or a read-only server.
    ///
    /// # Errors
    /// Same as [`connect`](Self::connect), and if the schema `runledger` is missing or outdated.
    pub async fn connect_read_only(url: &str) -> Result<Self, ClientError> {
        Self::connect_for(For::Looking, parsed(url)?, DEFAULT_CONNECTIONS).await
    }

    /// Connects to the address in `DATABASE_URL`, like [`connect`](Self::connect).
    ///
    /// Without the variable, a debug build with the feature `dev` uses the embedded server, like
    /// [`embedded`](Self::embedded). A release build returns an error, even with `dev`. A release
    /// build is a build without debug assertions, such as cargo's profile `release`.
    ///
    /// # Errors
    /// Same as [`connect`](Self::connect). Without the variable, [`ClientError::NoDatabaseUrl`], or
    /// in a debug build with `dev` the errors of [`embedded`](Self::embedded).
    pub async fn from_env() -> Result<Self, ClientError> {
        Self::of_env(For::Work).await
    }

    /// Connects like [`from_env`](Self::from_env), for reading only. Accepts a standby too.
    ///
    /// # Errors
    /// Same as [`from_env`](Self::from_env) and [`connect_read_only`](Self::connect_read_only).
    pub async fn from_env_read_only() -> Result<Self, ClientError> {
        Self::of_env(For::Looking).await
    }

    /// Connects to this project's embedded PostgreSQL, in any build. Ignores `DATABASE_URL`.
    ///
    /// All programs of a project share the server. Its data survives restarts. The server runs
    /// while this `Db` or a clone exists. Prints one line to standard error with the data folder,
    /// the URL and, if `psql` is installed, the command for it.
    ///
    /// # Errors
    /// Same as [`connect`](Self::connect), and [`ClientError::Dev`] if the server cannot start.
    ///
    /// # Cost
    /// About a second the first time in a project, 100 ms later, and 10 ms while the server runs.
    #[cfg(all(feature = "dev", unix))]
    pub async fn embedded() -> Result<Self, ClientError> {
        Box::pin(Self::of_embedded(For::Work, crate::dev::Options::dev())).await
    }

    /// Connects like [`embedded`](Self::embedded), with the data in `folder`.
    ///
    /// Creates the folder if it does not exist. An existing folder must come from an earlier call,
    /// or be empty apart from hidden files. Only this user can read the folder afterwards. Programs
    /// that use the same folder share one server. They must run on one machine, and not in separate
    /// containers. A program that cannot reach the server is refused. Root runs the server as the
    /// account `postgres` or `nobody`, which must be able to enter the folder.
    ///
    /// # Errors
    /// Same as [`embedded`](Self::embedded).
    #[cfg(all(feature = "dev", unix))]
    pub async fn embedded_in(folder: impl AsRef<std::path::Path>) -> Result<Self, ClientError> {
        let base_dir = Some(folder.as_ref().to_owned());
        let options = crate::dev::Options { base_dir, ..crate::dev::Options::dev() };
        Box::pin(Self::of_embedded(For::Work, options)).await
    }

    async fn of_env(purpose: For) -> Result<Self, ClientError> {
        match choose(std::env::var_os("DATABASE_URL"), Build::CURRENT)? {
            Source::Url(url) => Self::connect_for(purpose, parsed(&url)?, DEFAULT_CONNECTIONS).await,
            #[cfg(all(feature = "dev", unix))]
            Source::Embedded => Box::pin(Self::of_embedded(purpose, crate::dev::Options::dev())).await,
            #[cfg(not(all(feature = "dev", unix)))]
            Source::Embedded => Err(ClientError::NoDatabaseUrl),
        }
    }

    #[cfg(all(feature = "dev", unix))]
    #[expect(
        clippy::print_stderr,
        reason = "a developer must see where the data is, with or without a subscriber"
    )]
    async fn of_embedded(purpose: For, options: crate::dev::Options) -> Result<Self, ClientError> {
        let (url, server) = Box::pin(crate::dev::start_with_database(options)).await?;
        eprintln!("{}", server.notice());
        let db = Self::connect_for(purpose, parsed(&url)?, DEFAULT_CONNECTIONS).await?;
        Ok(Self { server: Some(Arc::new(server)), ..db })
    }

    /// Connects with options of sqlx and a maximum number of connections.
    ///
    /// # Errors
    /// Same as [`connect`](Self::connect).
    pub async fn connect_with(options: PgConnectOptions, connections: u32) -> Result<Self, ClientError> {
        Self::connect_for(For::Work, options, connections).await
    }

    async fn connect_for(
        purpose: For,
        options: PgConnectOptions,
        connections: u32,
    ) -> Result<Self, ClientError> {
        let db = Self::lazily(options, connections);
        match db.prepare(purpose).await {
            Ok(()) => Ok(db),
            Err(error) => Err(error.or_pooled()),
        }
    }

    async fn prepare(&self, purpose: For) -> Result<(), ClientError> {
        let mut connection = connection(&self.pool).await?;
        let server = server(&mut connection).await?;
        check_server(&server)?;
        match purpose {
            For::Looking if is_current(&mut connection).await? => Ok(()),
            For::Looking => Err(ClientError::Config(NOT_CURRENT.to_owned())),
            For::Work => {
                check_writable(server, &self.pool.connect_options())?;
                migrate(&mut connection).await?;
                adopt_if_idle(&mut connection).await;
                Ok(())
            }
        }
    }

    /// Opens a separate pool to the database of an application's pool.
    ///
    /// # Errors
    /// Same as [`connect`](Self::connect).
    pub async fn connect_like(pool: &PgPool) -> Result<Self, ClientError> {
        Self::connect_with((*pool.connect_options()).clone(), DEFAULT_CONNECTIONS).await
    }

    /// A pool that opens connections on demand, to a database with the current schema.
    pub(crate) fn lazily(options: PgConnectOptions, connections: u32) -> Self {
        let session_name = format!("runledger/{}", uuid::Uuid::now_v7().simple());
        let sessions = Arc::new(ClientSessions::to(&options));
        let [opening, acquired, released] = [(); 3].map(|()| Arc::clone(&sessions));
        let pool = PgPoolOptions::new()
            .max_connections(connections.max(1))
            .acquire_timeout(ACQUIRE_TIMEOUT)
            .test_before_acquire(false)
            .after_connect(move |connection, _| {
                let sessions = Arc::clone(&opening);
                Box::pin(async move { sessions.open(connection).await })
            })
            .before_acquire(move |connection, meta| {
                let may_be_replaced = acquired.may_be_replaced(meta.age);
                Box::pin(async move {
                    Ok(!may_be_replaced
                        && (meta.idle_for < RESTED || with_timeout(PONG, connection.ping()).await.is_ok()))
                })
            })
            // Without the rollback, acknowledged writes are lost. If it fails, the connection
            // closes.
            .after_release(move |connection, _| {
                let sessions = Arc::clone(&released);
                Box::pin(async move {
                    if connection.is_in_transaction() {
                        warn_outage!(static, "a user of a connection has forgotten a savepoint or a transaction (`std::mem::forget`), so it is closed");
                        return Ok(false);
                    }
                    let reset = with_timeout(STATEMENT_LIMIT, sessions.reset(connection)).await;
                    match &reset {
                        Err(error) if has_lost_statements(error) => {
                            warn_outage!(static, %error, "a user of a connection has dropped its prepared statements (`deallocate all`, `discard all`), so it is closed");
                        }
                        Err(error) if class(error) == Class::Permanent || matches!(error, sqlx::Error::Protocol(_)) => {
                            warn_outage!(static, %error, "a connection cannot be reset after its use, so it is closed");
                        }
                        Ok(()) | Err(_) => {}
                    }
                    Ok(reset.is_ok())
                })
            })
            .connect_lazy_with(options.application_name(&session_name).disable_statement_logging());
        Self {
            pool,
            inbox: Arc::default(),
            session_name: session_name.into(),
            sealer: Sealer::default(),
            sealing: None,
            era: None,
            reserve: None,
            #[cfg(all(feature = "dev", unix))]
            server: None,
        }
    }

    /// Returns the same database with a codec: it encrypts the payloads that this `Db` and its
    /// clones write, and decrypts those that they read.
    ///
    /// Use a codec in all clients and workers of a database. Earlier payloads stay readable. While
    /// such a `Db` exists, the process refuses calls and signals on bare connections and pools of
    /// the application, because they have no codec. Use [`db.on(&mut connection)`](Self::on) or a
    /// transaction of [`begin`](Self::begin). Costs nothing unless it writes; see the page
    /// `docs/guides/workflows/payloads.md` of the source.
    #[must_use]
    pub fn with_codec(self, codec: impl Codec) -> Self {
        let sealer = self.sealer.with_codec(Arc::new(codec), true);
        Self { sealer, sealing: Some(Arc::new(Sealing::begin())), ..self }
    }

    /// Like [`with_codec`](Self::with_codec), but encrypts only what must be encrypted.
    ///
    /// Decrypts payloads, and writes plain ones, except for [`Secret`](crate::Secret)s and copies
    /// of encrypted payloads. To add a codec to a running fleet, deploy this decoder first: every
    /// process must be able to decrypt before one encrypts.
    #[must_use]
    pub fn with_decoder(self, codec: impl Codec) -> Self {
        let sealer = self.sealer.with_codec(Arc::new(codec), false);
        Self { sealer, sealing: None, ..self }
    }

    /// Returns the same database with other size limits for payloads.
    #[must_use]
    pub fn with_limits(self, limits: Limits) -> Self {
        let sealer = self.sealer.with_limits(limits);
        Self { sealer, ..self }
    }

    /// Adds the codec and the limits of this database to a connection, or to the caller's open
    /// transaction: `charge(order).enqueue(db.on(&mut tx)).await?`.
    pub fn on<'c>(&self, connection: &'c mut PgConnection) -> BoundConnection<'c> {
        BoundConnection { connection, sealer: self.sealer.clone() }
    }

    pub(crate) fn sealer(&self) -> &Sealer {
        &self.sealer
    }

    pub(crate) fn home(&self) -> Home {
        Home { pool: self.pool.clone(), sealer: self.sealer.clone() }
    }

    /// The connection pool. A connection that returns to the pool is rolled back and reset, so its
    /// settings, its role and its transaction do not reach the next user.
    #[must_use]
    pub fn pool(&self) -> &PgPool {
        &self.pool
    }

    /// Begins a transaction.
    ///
    /// # Errors
    /// Same as [`sqlx::Pool::begin`], but [`sqlx::Error::PoolTimedOut`] only if the pool is
    /// exhausted and the server would accept another connection; otherwise the server's or
    /// network's error.
    pub async fn begin(&self) -> Result<Tx, sqlx::Error> {
        let begun = Box::pin(self.pool.begin()).await;
        Ok(Tx::new(with_reason(&self.pool, begun).await?, self.sealer.clone()))
    }

    /// Begins the transaction of a body, and sets its marker in the same round trip.
    pub(crate) async fn begin_marked(&self, mark: &str) -> Result<Tx, sqlx::Error> {
        let begin = sqlx::AssertSqlSafe(begin_body(mark));
        let begun = Box::pin(self.pool.begin_with(begin)).await;
        let tx = with_reason(&self.pool, begun).await?;
        self.check_era()?;
        Ok(Tx::new(tx, self.sealer.clone()))
    }

    pub(crate) fn inbox(&self) -> &Arc<Inbox> {
        &self.inbox
    }

    /// A connection. Fails if the server epoch of [`within`](Self::within) is over: the server may
    /// lack records that the claimed runs depend on.
    pub(crate) async fn acquire(&self) -> Result<PoolConnection<Postgres>, sqlx::Error> {
        let acquired = match &self.reserve {
            Some(reserve) => reserve.or_of(&self.pool).await,
            None => acquire(&self.pool).await,
        };
        let connection = with_reason(&self.pool, acquired).await.map_err(unopened)?;
        self.check_era()?;
        Ok(connection)
    }

    /// Whether a standby was promoted in place of the server that the claimed runs began on.
    pub(crate) fn is_overtaken(&self) -> bool {
        self.era.as_ref().is_some_and(|era| era.is_over())
    }

    /// Refuses a new connection if the server epoch is over.
    fn check_era(&self) -> Result<(), sqlx::Error> {
        let overtaken = "a promoted server has taken the place of the one that this worker began on; nothing more is written of what it has in hand";
        if self.is_overtaken() { Err(sqlx::Error::Io(io::Error::other(overtaken))) } else { Ok(()) }
    }
}

/// A pool to read a run from, and the sealer that decrypts its payloads.
#[derive(Clone, Debug)]
pub(crate) struct Home {
    pub(crate) pool: PgPool,
    pub(crate) sealer: Sealer,
}

/// The number of live codecs of this process that encrypt.
static SEALING: AtomicUsize = AtomicUsize::new(0);

/// Counts one such codec until it is dropped.
#[derive(Debug)]
struct Sealing;

impl Sealing {
    fn begin() -> Self {
        SEALING.fetch_add(1, Ordering::SeqCst);
        Self
    }
}

impl Drop for Sealing {
    fn drop(&mut self) {
        SEALING.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Refuses a client call between workflow steps: a replay would repeat it, and a wait holds a slot.
pub(crate) fn not_between_steps() -> Result<(), ClientError> {
    if refuses_effects() { Err(ClientError::BetweenSteps) } else { Ok(()) }
}

/// A connection, or the reason: a pool that waits for a starting server loses the server's error.
pub(crate) async fn connection(pool: &PgPool) -> Result<PoolConnection<Postgres>, ClientError> {
    not_between_steps()?;
    match acquire(pool).await {
        Err(sqlx::Error::PoolTimedOut) => Err(why_none(pool).await),
        acquired => acquired.map_err(|error| no_connection(&pool.connect_options(), error)),
    }
}

/// Why a pool had no connection in time.
pub(crate) async fn why_none(pool: &PgPool) -> ClientError {
    match without_connection::why_none(pool).await {
        sqlx::Error::PoolTimedOut => {
            ClientError::PoolExhausted { connections: pool.options().get_max_connections() }
        }
        error => no_connection(&pool.connect_options(), error),
    }
}

/// The error of a failed connection, with the database, the role and the place.
pub(crate) fn no_connection(options: &PgConnectOptions, source: sqlx::Error) -> ClientError {
    let (role, port) = (options.get_username(), options.get_port());
    let place = match socket_folder(options) {
        Some(folder) => format!("through the socket of port {port} in `{}`", folder.display()),
        None => format!("at `{}:{port}`", shown_host(options.get_host())),
    };
    let database = options.get_database().unwrap_or(role);
    ClientError::Connect { database: format!("database `{database}` as role `{role}` {place}"), source }
}

const NOT_CURRENT: &str = "the schema `runledger` is not in this database, or older than this program, and looking does not change it; nothing was \
                           written; start a worker of this version once, or connect with `Db::connect`, which brings it up to date";

/// The purpose of a pool.
#[derive(Clone, Copy, Debug)]
enum For {
    Work,
    Looking,
}

/// A target for enqueues and signals: a pool, a connection, or the caller's open transaction.
pub trait EnqueueTarget<'c>: sealed::Sealed {
    #[doc(hidden)]
    fn target(self) -> Target<'c>;
}

/// The kinds of an [`EnqueueTarget`].
#[doc(hidden)]
#[derive(Debug)]
pub enum Target<'c> {
    /// A connection of a [`Db`], without a forgotten transaction. The statement commits alone.
    Db(&'c Db),
    /// A connection of an application's pool.
    Pool(&'c PgPool),
    /// The open transaction of a [`Db`].
    Tx(&'c mut PgConnection, Sealer),
    /// An application's connection, possibly in a transaction, with its sealer if known.
    Connection(&'c mut PgConnection, Option<Sealer>),
}

impl Target<'_> {
    /// Refuses an application's connection on which functions of other schemas can replace
    /// PostgreSQL's own. Costs a round trip on such a connection, and nothing on sessions of a
    /// [`Db`].
    ///
    /// # Errors
    /// [`ClientError::UnsafeSearchPath`], or the database does not answer.
    pub(crate) async fn check_path(&mut self) -> Result<(), ClientError> {
        let path = match self {
            Self::Db(_) | Self::Tx(..) => None,
            Self::Pool(pool) => unsafe_path(&mut *connection(pool).await?).await?,
            Self::Connection(connection, _) => unsafe_path(connection).await?,
        };
        path.map_or(Ok(()), |search_path| Err(ClientError::UnsafeSearchPath { search_path }))
    }

    /// The sealer for payloads that are written to this target.
    ///
    /// # Errors
    /// [`ClientError::NoCodec`] if the process encrypts payloads and the target has no codec.
    pub(crate) fn sealer(&self) -> Result<Sealer, ClientError> {
        match self {
            Self::Db(db) => Ok(db.sealer.clone()),
            Self::Tx(_, sealer) | Self::Connection(_, Some(sealer)) => Ok(sealer.clone()),
            Self::Pool(_) | Self::Connection(_, None) if SEALING.load(Ordering::SeqCst) > 0 => {
                Err(ClientError::NoCodec)
            }
            Self::Pool(_) | Self::Connection(_, None) => Ok(Sealer::default()),
        }
    }
}

/// A connection with the codec and the limits of a database. [`Db::on`] creates it.
#[derive(Debug)]
#[must_use = "it does nothing by itself"]
pub struct BoundConnection<'c> {
    connection: &'c mut PgConnection,
    sealer: Sealer,
}

impl sealed::Sealed for BoundConnection<'_> {}
impl<'c> EnqueueTarget<'c> for BoundConnection<'c> {
    fn target(self) -> Target<'c> {
        Target::Connection(self.connection, Some(self.sealer))
    }
}

pub(crate) mod sealed {
    pub trait Sealed {}
}

impl sealed::Sealed for &Db {}
impl<'c> EnqueueTarget<'c> for &'c Db {
    fn target(self) -> Target<'c> {
        Target::Db(self)
    }
}

impl sealed::Sealed for &PgPool {}
impl<'c> EnqueueTarget<'c> for &'c PgPool {
    fn target(self) -> Target<'c> {
        Target::Pool(self)
    }
}

impl sealed::Sealed for &mut PgConnection {}
impl<'c> EnqueueTarget<'c> for &'c mut PgConnection {
    fn target(self) -> Target<'c> {
        Target::Connection(self, None)
    }
}

impl sealed::Sealed for &mut PoolConnection<Postgres> {}
impl<'c> EnqueueTarget<'c> for &'c mut PoolConnection<Postgres> {
    fn target(self) -> Target<'c> {
        Target::Connection(self, None)
    }
}

impl sealed::Sealed for &mut Transaction<'_, Postgres> {}
impl<'c> EnqueueTarget<'c> for &'c mut Transaction<'_, Postgres> {
    fn target(self) -> Target<'c> {
        Target::Connection(self, None)
    }
}

impl sealed::Sealed for &mut Tx {}
impl<'c> EnqueueTarget<'c> for &'c mut Tx {
    fn target(self) -> Target<'c> {
        let sealer = self.sealer().clone();
        Target::Tx(self, sealer)
    }
}

#[cfg(test)]
mod tests;
