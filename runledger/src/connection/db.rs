//! The database as the client and the worker see it.

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
use crate::store::failover::ServerEpoch;
use crate::store::migrate::{is_current, migrate};
#[cfg(feature = "worker")]
use crate::store::reserve::Reserve;
use crate::store::server::{server, socket_folder};
use crate::store::session::{ClientSessions, acquire, begin_body, has_lost_statements, unsafe_path};
use crate::store::without_connection::{self, with_reason};

/// How many connections a [`Db`] opens at most where it is not told.
pub const DEFAULT_CONNECTIONS: u32 = 10;

/// How long a caller waits for a free connection.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(5);

/// A connection that nobody used for this long is asked whether it lives before it is given out: after a restart of the server none does, and each
/// would cost its user an error. Under load connections do not rest so long, and nothing is asked.
const RESTED: Duration = Duration::from_millis(50);

/// How long a connection that is asked whether it lives may take to answer.
const PONG: Duration = Duration::from_secs(2);

/// A pool of connections to the database, safe against dropped futures.
///
/// Its transactions begin at `read committed`, whatever the role's default; another level is said in the transaction. Connections go back to the pool
/// through a `ROLLBACK`: in sqlx 0.9 a `begin()` that is dropped in flight gives its connection back with an
/// open transaction, and the next statement on it would be acknowledged and lost. Cloning is cheap.
#[derive(Clone, Debug)]
pub struct Db {
    pool: PgPool,
    inbox: Arc<Inbox>,
    session_name: Arc<str>,
    sealer: Sealer,
    /// Held while this seals.
    #[expect(dead_code, reason = "held, not read")]
    sealing: Option<Arc<Sealing>>,
    /// Of what a worker has in hand: the time within which that may be written.
    era: Option<Arc<ServerEpoch>>,
    /// Spare connections of a worker, used while bodies hold the whole pool.
    #[cfg(feature = "worker")]
    reserve: Option<Reserve>,
    /// The embedded server, which lives as long as somebody uses it.
    #[cfg(all(feature = "dev", unix))]
    #[expect(dead_code, reason = "held, not read")]
    server: Option<Arc<crate::dev::Server>>,
}

impl Db {
    /// Connects, checks the server, and brings the schema `runledger` up to date.
    ///
    /// The sessions of the [`pool`](Self::pool) have `default_transaction_isolation = 'read committed'`,
    /// `client_min_messages = error` and `jit = off`. These settings override the defaults of the role. To
    /// compile one of your own queries, run `set local jit = on`. Sessions resolve names in `pg_catalog`
    /// first: if the role's `search_path` lists `pg_catalog` after another schema, the session removes it
    /// from the path.
    ///
    /// Connecting to a [copy](Self::adopt) of another database succeeds. If the copy has no unfinished runs,
    /// this call adopts it. Otherwise workers refuse it.
    ///
    /// # Errors
    /// [`ClientError`]: no connection; a server older than PostgreSQL 13, a standby or a read-only one; one whose place a promoted standby has taken that
    /// this process has met; a role whose `search_path` leads into the schema `runledger` (as the default does for a role of that name); a schema that a
    /// newer program has changed incompatibly.
    pub async fn connect(url: &str) -> Result<Self, ClientError> {
        Self::connect_with(parsed(url)?, DEFAULT_CONNECTIONS).await
    }

    /// As [`connect`](Self::connect), for looking only: nothing is written, and a standby or a read-only server will do.
    ///
    /// # Errors
    /// As [`connect`](Self::connect), and where the schema `runledger` is not there, or older than this program.
    pub async fn connect_read_only(url: &str) -> Result<Self, ClientError> {
        Self::connect_for(For::Looking, parsed(url)?, DEFAULT_CONNECTIONS).await
    }

    /// Connects to the address in `DATABASE_URL`, like [`connect`](Self::connect).
    ///
    /// Without the variable, a debug build with the feature `dev` uses the embedded server, like
    /// [`embedded`](Self::embedded). A release build returns an error, even with `dev`. A release build is a
    /// build without debug assertions, such as cargo's profile `release`.
    ///
    /// # Errors
    /// Same as [`connect`](Self::connect), and [`ClientError::NoDatabaseUrl`] if the variable is not set. A
    /// debug build with `dev` returns the errors of [`embedded`](Self::embedded) instead.
    pub async fn from_env() -> Result<Self, ClientError> {
        Self::of_env(For::Work).await
    }

    /// As [`from_env`](Self::from_env), for looking only: nothing is written, and a standby or a read-only server will do.
    ///
    /// # Errors
    /// As [`from_env`](Self::from_env), and where the schema `runledger` is not there, or older than this program.
    pub async fn from_env_read_only() -> Result<Self, ClientError> {
        Self::of_env(For::Looking).await
    }

    /// Connects to the embedded PostgreSQL of this project, in debug and release builds. Ignores
    /// `DATABASE_URL`.
    ///
    /// All programs of a project share the server. Its data survives restarts. This `Db` and its clones keep
    /// it running. Prints one line to standard error with the data folder, the URL and, if `psql` is installed, the command for it.
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

    /// Like [`embedded`](Self::embedded), with the data in `folder`. Creates the folder if it does not exist. An existing
    /// folder must be empty, apart from hidden files, or one that an earlier call has made. Only this user can read it afterwards.
    /// Programs that use the same folder share one server. They must run on one machine, and not in separate containers:
    /// a program that cannot reach the server is refused. Root runs the server as the account `postgres` or `nobody`, which
    /// must be able to enter the folder.
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

    /// As [`connect`](Self::connect), with the options of sqlx and the largest number of connections.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
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

    /// A pool of its own to the database of an application's pool.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub async fn connect_like(pool: &PgPool) -> Result<Self, ClientError> {
        Self::connect_with((*pool.connect_options()).clone(), DEFAULT_CONNECTIONS).await
    }

    /// A pool that opens its connections when they are needed, to a database that is known to have our schema.
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
            // Without the rollback acknowledged writes are lost; a connection that refuses it is of no more use.
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
            #[cfg(feature = "worker")]
            reserve: None,
            #[cfg(all(feature = "dev", unix))]
            server: None,
        }
    }

    /// The same database, with a codec for the payloads of runs: what this and its clones write is sealed, and what they read is opened. Give one to the
    /// clients and the workers of a database alike; what was stored before stays readable as it is.
    ///
    /// While such a `Db` is there, calls and signals are refused on bare connections and pools of the application, which do not tell how to seal:
    /// give [`db.on(&mut connection)`](Self::on), or a transaction of [`begin`](Self::begin).
    ///
    /// Costs nothing unless it writes; see the page `docs/payloads.md` of the source.
    #[must_use]
    pub fn with_codec(self, codec: impl Codec) -> Self {
        let sealer = self.sealer.with_codec(Arc::new(codec), true);
        Self { sealer, sealing: Some(Arc::new(Sealing::begin())), ..self }
    }

    /// As [`with_codec`](Self::with_codec), for reading: what is sealed is opened, and what this writes is plain but for [`Secret`](crate::Secret)s and what
    /// it takes over. The first half of switching a codec on while a fleet goes on: every process must be able to open before the first one seals.
    #[must_use]
    pub fn with_decoder(self, codec: impl Codec) -> Self {
        let sealer = self.sealer.with_codec(Arc::new(codec), false);
        Self { sealer, sealing: None, ..self }
    }

    /// The same database, with other limits for the sizes of payloads.
    #[must_use]
    pub fn with_limits(self, limits: Limits) -> Self {
        let sealer = self.sealer.with_limits(limits);
        Self { sealer, ..self }
    }

    /// A connection, or the caller's open transaction, with the codec and the limits of this database: `charge(order).enqueue(db.on(&mut tx)).await?`.
    pub fn on<'c>(&self, connection: &'c mut PgConnection) -> BoundConnection<'c> {
        BoundConnection { connection, sealer: self.sealer.clone() }
    }

    pub(crate) fn sealer(&self) -> &Sealer {
        &self.sealer
    }

    /// The same pool with the codec and the limits of another.
    #[cfg(feature = "worker")]
    pub(crate) fn sealed_by(self, sealer: &Sealer) -> Self {
        Self { sealer: sealer.clone(), ..self }
    }

    pub(crate) fn home(&self) -> Home {
        Home { pool: self.pool.clone(), sealer: self.sealer.clone() }
    }

    /// A pool that leads nowhere, for what needs one and must not use it.
    #[cfg(feature = "worker")]
    pub(crate) fn nowhere() -> Self {
        Self::lazily(PgConnectOptions::new_without_pgpass().socket("/dev/null/nowhere"), 1)
    }

    /// The application name of this pool's sessions, by which others end them when this process is declared dead.
    #[cfg(feature = "worker")]
    pub(crate) fn session_name(&self) -> &str {
        &self.session_name
    }

    /// The connection pool. A connection that returns to the pool is rolled back and reset, so its settings,
    /// its role and its transaction do not reach the next user.
    #[must_use]
    pub fn pool(&self) -> &PgPool {
        &self.pool
    }

    /// Begins a transaction.
    ///
    /// # Errors
    /// As [`sqlx::Pool::begin`]. [`sqlx::Error::PoolTimedOut`] only if all connections of the pool are in use and the server would accept another: otherwise the error
    /// of the server or the network.
    pub async fn begin(&self) -> Result<Tx, sqlx::Error> {
        let begun = Box::pin(self.pool.begin()).await;
        Ok(Tx::new(with_reason(&self.pool, begun).await?, self.sealer.clone()))
    }

    /// Begins the transaction of a body, and marks it in the same round trip.
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

    /// A connection. Of what a worker has [in hand](Self::within), none that may lead to a server which does not have all that it rests on.
    pub(crate) async fn acquire(&self) -> Result<PoolConnection<Postgres>, sqlx::Error> {
        #[cfg(feature = "worker")]
        let acquired = match &self.reserve {
            Some(reserve) => reserve.or_of(&self.pool).await,
            None => acquire(&self.pool).await,
        };
        #[cfg(not(feature = "worker"))]
        let acquired = acquire(&self.pool).await;
        let connection = with_reason(&self.pool, acquired).await.map_err(unopened)?;
        self.check_era()?;
        Ok(connection)
    }

    /// The same database for a worker: [`acquire`](Self::acquire) succeeds even while bodies hold the whole
    /// pool.
    #[cfg(feature = "worker")]
    pub(crate) fn with_reserve(self) -> Self {
        Self { reserve: Some(Reserve::beside(&self.pool)), ..self }
    }

    /// The same database for what a worker has in hand under one number: once a promoted server has taken the place of the one on which it began there are no
    /// connections any more. The promoted server may lack records that the worker knows of, and has its leases: their fence would let it write what rests on those.
    #[cfg(feature = "worker")]
    pub(crate) fn within(self, era: Arc<ServerEpoch>) -> Self {
        Self { era: Some(era), ..self }
    }

    /// Whether what is in hand rests on a server whose place a promoted one has taken.
    pub(crate) fn is_overtaken(&self) -> bool {
        self.era.as_ref().is_some_and(|era| era.is_over())
    }

    /// Refuses a new connection if another one has shown that a standby was promoted in place of this server.
    fn check_era(&self) -> Result<(), sqlx::Error> {
        let overtaken = "a promoted server has taken the place of the one that this worker began on; nothing more is written of what it has in hand";
        if self.is_overtaken() { Err(sqlx::Error::Io(io::Error::other(overtaken))) } else { Ok(()) }
    }
}

/// Where a run is asked about: a pool, and what opens what it gives.
#[derive(Clone, Debug)]
pub(crate) struct Home {
    pub(crate) pool: PgPool,
    pub(crate) sealer: Sealer,
}

/// How many codecs of this process seal.
static SEALING: AtomicUsize = AtomicUsize::new(0);

/// One that does.
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

/// Refuses what a client asks for between the steps of a workflow: a replay would do it again, and waiting there holds the slot of the run.
pub(crate) fn not_between_steps() -> Result<(), ClientError> {
    if refuses_effects() { Err(ClientError::BetweenSteps) } else { Ok(()) }
}

/// A connection of a pool, or why there is none: a pool waits for a server that may be starting, and forgets what it waited for.
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

/// The error of who could not connect, with all that tells where to.
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

/// What a pool is for.
#[derive(Clone, Copy, Debug)]
enum For {
    Work,
    Looking,
}

/// Where a statement is carried out: on a pool, on a connection, or in the caller's open transaction.
pub trait EnqueueTarget<'c>: sealed::Sealed {
    #[doc(hidden)]
    fn via(self) -> Target<'c>;
}

/// The ways that a [`EnqueueTarget`] takes.
#[doc(hidden)]
#[derive(Debug)]
pub enum Target<'c> {
    /// A connection of a [`Db`], none of which has a forgotten transaction; the statement is a transaction of its own.
    Db(&'c Db),
    /// A connection of an application's pool.
    Pool(&'c PgPool),
    /// The open transaction of a [`Db`].
    Tx(&'c mut PgConnection, Sealer),
    /// A connection of the application, possibly inside a transaction. The sealer encrypts the payloads, if
    /// it is known.
    Connection(&'c mut PgConnection, Option<Sealer>),
}

impl Target<'_> {
    /// Refuses a connection of the application if functions of other schemas can replace PostgreSQL's own on
    /// it. Costs a round trip on a connection of the application, and nothing on the sessions of a [`Db`].
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

    /// What seals what is written there.
    ///
    /// # Errors
    /// [`ClientError::NoCodec`], where nobody can tell.
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

/// A connection with the codec and the limits of a database, made by [`Db::on`].
#[derive(Debug)]
#[must_use = "it does nothing by itself"]
pub struct BoundConnection<'c> {
    connection: &'c mut PgConnection,
    sealer: Sealer,
}

impl sealed::Sealed for BoundConnection<'_> {}
impl<'c> EnqueueTarget<'c> for BoundConnection<'c> {
    fn via(self) -> Target<'c> {
        Target::Connection(self.connection, Some(self.sealer))
    }
}

pub(crate) mod sealed {
    pub trait Sealed {}
}

impl sealed::Sealed for &Db {}
impl<'c> EnqueueTarget<'c> for &'c Db {
    fn via(self) -> Target<'c> {
        Target::Db(self)
    }
}

impl sealed::Sealed for &PgPool {}
impl<'c> EnqueueTarget<'c> for &'c PgPool {
    fn via(self) -> Target<'c> {
        Target::Pool(self)
    }
}

impl sealed::Sealed for &mut PgConnection {}
impl<'c> EnqueueTarget<'c> for &'c mut PgConnection {
    fn via(self) -> Target<'c> {
        Target::Connection(self, None)
    }
}

impl sealed::Sealed for &mut PoolConnection<Postgres> {}
impl<'c> EnqueueTarget<'c> for &'c mut PoolConnection<Postgres> {
    fn via(self) -> Target<'c> {
        Target::Connection(self, None)
    }
}

impl sealed::Sealed for &mut Transaction<'_, Postgres> {}
impl<'c> EnqueueTarget<'c> for &'c mut Transaction<'_, Postgres> {
    fn via(self) -> Target<'c> {
        Target::Connection(self, None)
    }
}

impl sealed::Sealed for &mut Tx {}
impl<'c> EnqueueTarget<'c> for &'c mut Tx {
    fn via(self) -> Target<'c> {
        let sealer = self.sealer().clone();
        Target::Tx(self, sealer)
    }
}

#[cfg(test)]
mod tests;
