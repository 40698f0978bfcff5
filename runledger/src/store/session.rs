//! How the sessions of the engine and of a client are set up. Settings steer plans and bound waits; no correctness rests on them, because a pooler
//! may drop them.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgConnectOptions, PgConnection, PgListener, PgPool, PgPoolOptions};
use sqlx::{ConnectOptions, Postgres, Row};

use super::failover::Address;
use super::sql;

/// For the engine's own statements: hot tables are always met through their indexes, one probe a row, whatever the statistics of an empty table say. Nor by
/// bitmaps: one gathers and sorts all that is due where a claim wants the first ten, which looks as cheap to a planner that expects one row.
/// A plan that is forced so has a forbidding cost, for which the server would compile it each time: 120 ms for a statement of 20 µs. A transaction of the
/// engine never rests: one that does has lost its client without the server's knowing, and holds rows that the same worker needs.
/// A row security policy that applies is an error: a run whose recorded steps it hides would repeat them.
/// If the network loses a client in the middle of a message, no time limit ends its transaction: the server is neither idle nor executing a statement.
/// Keepalives end it.
pub const ENGINE: &str = "set jit = off; set enable_seqscan = off; set enable_bitmapscan = off; set enable_hashjoin = off; set enable_mergejoin = off; \
                          set plan_cache_mode = force_generic_plan; set search_path = pg_catalog, pg_temp; set default_transaction_isolation = 'read committed'; set lock_timeout = '10s'; set statement_timeout = '30s'; set row_security = off; \
                          set idle_in_transaction_session_timeout = '10s'; \
                          set tcp_keepalives_idle = 10; set tcp_keepalives_interval = 5; set tcp_keepalives_count = 3";

/// For sessions that run no user statements: names resolve only in `pg_catalog`.
const PINNED: &str = "set search_path = pg_catalog, pg_temp";

/// Pins the path of a transaction that runs no user statements.
pub(crate) async fn pin_path(tx: &mut PgConnection) -> Result<(), sqlx::Error> {
    set(tx, "set local search_path = pg_catalog, pg_temp").await
}

/// Sets up a connection for the engine's own statements. It must not go back to users.
pub(crate) async fn for_engine(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    set(connection, settings(connection)).await
}

/// [`ENGINE`], and from PostgreSQL 17 on without the operator's `transaction_timeout`. A statement that reaches this limit
/// loses its session, and the writer does not know which run was at fault.
fn settings(connection: &PgConnection) -> &'static str {
    static WITHOUT_LIMIT: LazyLock<String> =
        LazyLock::new(|| format!("{ENGINE}; set transaction_timeout = 0"));
    match connection.server_version_num() {
        Some(version) if version >= 170_000 => &WITHOUT_LIMIT,
        _ => ENGINE,
    }
}

/// How long a look at the lanes may take. The dead entries that it meets are as many as an old snapshot keeps.
pub(crate) const LONGEST_LOOK: Duration = Duration::from_secs(120);

/// Lets a session of the engine take as long as [`LONGEST_LOOK`].
pub(crate) async fn for_looks(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    let set = format!("set statement_timeout = {}", LONGEST_LOOK.as_millis());
    sqlx::raw_sql(sqlx::AssertSqlSafe(set)).execute(connection).await.map(drop)
}

/// Sets up a connection for heartbeats: as [`ENGINE`], with time limits of their own. They need not survive a crash of the
/// server, so they do not wait for its disk.
///
/// The server stops waiting for a lock before the next heartbeat (`period`) is due, so a locked table blocks at most one
/// session of each worker. It may take longer than a period for a statement, but aborts it before the worker
/// gives the connection up (`suspect`).
pub(crate) async fn for_heartbeat(
    connection: &mut PgConnection,
    period: Duration,
    suspect: Duration,
) -> Result<(), sqlx::Error> {
    let others = "set synchronous_commit = off";
    for_engine_within(connection, period.mul_f64(0.8), suspect.mul_f64(0.9), others).await
}

/// Sets up a connection as [`ENGINE`], with other time limits and settings.
async fn for_engine_within(
    connection: &mut PgConnection,
    lock: Duration,
    statement: Duration,
    others: &str,
) -> Result<(), sqlx::Error> {
    let [lock, statement] = [lock, statement].map(|limit| limit.as_millis().max(1));
    let settings = settings(connection);
    let set = format!("{settings}; set lock_timeout = {lock}; set statement_timeout = {statement}; {others}");
    sqlx::raw_sql(sqlx::AssertSqlSafe(set)).execute(connection).await.map(drop)
}

/// The time that a statement of a writer waits for a lock. A batch that waits holds up the records of all runs, and the
/// writer writes it one by one after that.
pub(crate) const WAIT_OF_A_BATCH: Duration = Duration::from_secs(1);

/// As [`WAIT_OF_A_BATCH`], for the record of a single run that may be at fault. Others wait behind it.
pub(crate) const WAIT_OF_ONE: Duration = Duration::from_millis(200);

/// Sets up a connection for a writer: as [`ENGINE`], with [`WAIT_OF_A_BATCH`]. The server gives a statement up before
/// the writer gives the connection up (`patience`), because only the server's error can concern single runs.
pub(crate) async fn for_writer(connection: &mut PgConnection, patience: Duration) -> Result<(), sqlx::Error> {
    let statement = patience.mul_f64(0.8).min(Duration::from_secs(30));
    for_engine_within(connection, WAIT_OF_A_BATCH, statement, "").await
}

/// Sets how long the statements of a session wait for a lock.
pub(crate) async fn wait_for_locks(connection: &mut PgConnection, wait: Duration) -> Result<(), sqlx::Error> {
    let set = format!("set lock_timeout = {}", wait.as_millis());
    sqlx::raw_sql(sqlx::AssertSqlSafe(set)).execute(connection).await.map(drop)
}

/// For sessions that listen. A caller that checks the connection waits for at most 5 s (`runtime::answer`).
const LISTENING: &str =
    "set search_path = pg_catalog, pg_temp; set lock_timeout = '4s'; set statement_timeout = '5s'";

/// For the sessions of a client's pool.
///
/// - No warnings, because every release sends a `ROLLBACK` outside a transaction.
/// - Read committed, even if the role has another default, so that a keyed enqueue can see an existing run.
/// - No just-in-time compilation: with the statistics of an empty table the planner overestimates small
///   statements, and compiling one takes 130 ms.
pub const CLIENT: &str =
    "set client_min_messages = error; set default_transaction_isolation = 'read committed'; set jit = off";

/// Removes `pg_catalog` from a path that lists it after another schema, so that it implicitly comes first.
/// With a path such as `public, pg_catalog`, a role that may create in `public` can replace PostgreSQL's
/// operators in the engine's statements. Returns one row if it changed the path. A comma inside a quoted name,
/// as in `"public, pg_catalog"`, has an odd number of quotes behind it.
const REPAIR_PATH: &str = r#"select pg_catalog.set_config('search_path', repaired, false)
    from (
        select pg_catalog.regexp_replace(
            pg_catalog.current_setting('search_path'),
            ',(?=(?:[^"]*"[^"]*")*[^"]*$)[[:space:]]*(?:"pg_catalog"|pg_catalog)[[:space:]]*(?=,|$)', '', 'gi'
        ) as repaired
        offset 0
    ) as path
    where repaired operator(pg_catalog.<>) pg_catalog.current_setting('search_path')"#;

/// Ends a user's open transaction on a pooled connection, and resets its role, its settings and what else a
/// session keeps. The next user may be the engine, whose records must not commit with a user's
/// `synchronous_commit = off`. Prepared statements stay, because sqlx counts on those that it has made. If a
/// user dropped them (`deallocate all`, `discard all`), [`PREPARE_WITNESS`] is gone too, and the reset fails.
const RESET: &str = "rollback; set session authorization default; reset all; close all; unlisten *; discard temp; \
                     execute runledger_session; select pg_catalog.pg_advisory_unlock_all()";

/// Prepares the statement that shows at each reset that the session still has its prepared statements.
const PREPARE_WITNESS: &str = "prepare runledger_session as select 1";

/// Ends a statement within 10 s after its client has closed the connection. Otherwise a statement that waits for
/// a lock keeps its server process after the client has given up, and each further try adds one. PostgreSQL 13
/// does not have the setting, and some platforms do not support it.
const CHECK_CLIENT: &str = "set client_connection_check_interval = '10s'";

/// Sets up the connections of one client's pool, and resets them after each use.
#[derive(Debug)]
pub(crate) struct ClientSessions {
    address: Arc<Address>,
    /// Whether the role's default path needs the repair. Checking on each release would double its cost.
    repairs_path: AtomicBool,
    /// Whether the server has [`CHECK_CLIENT`].
    checks_client: AtomicBool,
}

impl ClientSessions {
    pub(crate) fn to(options: &PgConnectOptions) -> Self {
        Self {
            address: Address::of(options),
            repairs_path: AtomicBool::new(false),
            checks_client: AtomicBool::new(false),
        }
    }

    /// Sets up a new connection.
    pub(crate) async fn open(&self, connection: &mut PgConnection) -> Result<(), sqlx::Error> {
        static OPEN: LazyLock<String> = LazyLock::new(|| format!("{CLIENT}; {REPAIR_PATH}"));
        if sqlx::raw_sql(OPEN.as_str()).fetch_optional(&mut *connection).await?.is_some() {
            self.repairs_path.store(true, Ordering::Relaxed);
        }
        match set(connection, PREPARE_WITNESS).await {
            Ok(()) => {}
            // A pooler has given this session to another client before.
            Err(error) if has_code(&error, "42P05") => {}
            Err(error) => return Err(error),
        }
        match set(connection, CHECK_CLIENT).await {
            Ok(()) => self.checks_client.store(true, Ordering::Relaxed),
            // The server does not have the setting.
            Err(sqlx::Error::Database(_)) => {}
            Err(error) => return Err(error),
        }
        // Last, because the pool counts the age of the connection from here.
        self.address.admit(connection).await
    }

    /// Restores the state of a new connection, in one round trip.
    pub(crate) async fn reset(&self, connection: &mut PgConnection) -> Result<(), sqlx::Error> {
        /// By whether the server has [`CHECK_CLIENT`], and by whether the path needs its repair.
        static RESETS: LazyLock<[[String; 2]; 2]> = LazyLock::new(|| {
            [None, Some(CHECK_CLIENT)].map(|check| {
                [None, Some(REPAIR_PATH)].map(|repair| {
                    let parts = [Some(RESET), Some(CLIENT), check, repair];
                    parts.into_iter().flatten().collect::<Vec<_>>().join("; ")
                })
            })
        });
        static RESET_NUMBER: AtomicU64 = AtomicU64::new(0);
        let [checks, repairs] =
            [&self.checks_client, &self.repairs_path].map(|is| usize::from(is.load(Ordering::Relaxed)));
        let number = RESET_NUMBER.fetch_add(1, Ordering::Relaxed).to_string();
        // sqlx does not count the answer to a `COPY` whose transaction is dropped before the end. Each later
        // statement would get the answer to the one before.
        let reset = format!("{}; select '{number}'", RESETS[checks][repairs]);
        let rows = sqlx::raw_sql(sqlx::AssertSqlSafe(reset)).fetch_all(connection).await?;
        let answer = rows.last().map(|row| row.try_get::<&str, _>(0)).transpose()?;
        if answer == Some(number.as_str()) {
            return Ok(());
        }
        Err(sqlx::Error::Protocol(
            "the server has answered an earlier statement; was a transaction dropped in the middle of a `COPY`?".to_owned(),
        ))
    }

    /// Whether a connection of this age may lead to a server that a promoted standby has replaced.
    pub(crate) fn may_be_replaced(&self, age: Duration) -> bool {
        self.address.has_moved_within(age)
    }
}

/// Whether a session has no prepared statement of the name that sqlx or [`PREPARE_WITNESS`] gave it.
pub(crate) fn has_lost_statements(error: &sqlx::Error) -> bool {
    has_code(error, "26000")
}

/// Whether the server has refused a statement or a connection with this SQLSTATE.
pub(crate) fn has_code(error: &sqlx::Error, code: &str) -> bool {
    error.as_database_error().and_then(sqlx::error::DatabaseError::code).as_deref() == Some(code)
}

/// A connection of a pool.
///
/// sqlx's own future has 4 KiB, and so would have every future around it, of each body and each caller: here it is apart, as that of [`connect`].
pub(crate) async fn acquire(pool: &PgPool) -> Result<PoolConnection<Postgres>, sqlx::Error> {
    Box::pin(pool.acquire()).await
}

/// Commits a transaction with its savepoints, whatever sqlx knows of them.
pub(crate) async fn commit_whole(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    set(connection, "COMMIT").await
}

/// A connection beside a pool.
pub(crate) async fn connect(options: &PgConnectOptions) -> Result<PgConnection, sqlx::Error> {
    let mut connection = Box::pin(options.connect()).await?;
    set(&mut connection, PINNED).await?;
    Address::of(options).admit(&mut connection).await?;
    Ok(connection)
}

macro_rules! begin_restless {
    ($lock_timeout:literal) => {
        concat!(
            "begin isolation level read committed; set local idle_in_transaction_session_timeout = '10s'; set local lock_timeout = '",
            $lock_timeout,
            "'; set local statement_timeout = '30s'"
        )
    };
}

/// Begins a transaction of the engine on a connection with the user's settings. The isolation level is fixed:
/// after a wait for a lock, the engine must read the rows that others have committed in the meantime. The
/// limits are the ones of [`ENGINE`], because the transaction locks rows of runs: it must not idle, and a
/// caller that stops waiting must not leave a session that waits for a lock.
pub(crate) const BEGIN_RESTLESS: &str = begin_restless!("10s");

/// As [`BEGIN_RESTLESS`], for work that others wait behind.
pub(crate) const BEGIN_BRIEF: &str = begin_restless!("200ms");

/// As [`BEGIN_RESTLESS`], for work that little waits behind.
pub(crate) const BEGIN_QUEUED: &str = begin_restless!("1s");

/// Begins a transaction of our own on a connection of an application, or with the limits of a session of the engine.
pub(crate) const BEGIN: &str = "begin isolation level read committed";

/// Begins a transaction that reads a page in the order of an index. With the statistics of an empty table the planner
/// reads all that follows and sorts it.
pub(crate) const BEGIN_IN_ORDER: &str =
    "begin isolation level read committed; set local enable_bitmapscan = off; set local enable_seqscan = off";

/// Whether a statement of a transaction at this level sees what others have committed before it.
pub(crate) fn is_read_committed(level: &str) -> bool {
    // PostgreSQL carries out the one as the other.
    ["read committed", "read uncommitted"].contains(&level)
}

/// Rolls back the open transaction, if there is one.
pub(crate) async fn roll_back(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    set(connection, "rollback").await
}

/// Returns the `search_path` of an application's connection if another role's schema comes before
/// `pg_catalog`.
pub(crate) async fn unsafe_path(connection: &mut PgConnection) -> Result<Option<String>, sqlx::Error> {
    sqlx::query_scalar(sql::SEARCH_PATH).fetch_one(connection).await
}

/// What begins the transaction of a body: with a mark that leaves the session with it, in one round trip. `mark` is of hexadecimal digits.
pub(crate) fn begin_body(mark: &str) -> String {
    format!("begin; set local runledger.body = '{mark}'")
}

/// A listening connection of its own, not one of a caller's pool: a wait must work with a pool of one. After a loss it connects and listens again.
pub(crate) async fn listen(options: &PgConnectOptions, channels: &[&str]) -> Result<PgListener, sqlx::Error> {
    let address = Address::of(options);
    let own = PgPoolOptions::new()
        .max_connections(1)
        .after_connect(move |connection, _| {
            let address = Arc::clone(&address);
            Box::pin(async move {
                set(connection, LISTENING).await?;
                address.admit(connection).await
            })
        })
        .connect_lazy_with(options.clone());
    let mut listener = Box::pin(PgListener::connect_with(&own)).await?;
    for channel in channels {
        Box::pin(listener.listen(channel)).await?;
    }
    Ok(listener)
}

/// Asks a listening connection for a sign of life.
pub(crate) async fn answers(listener: &mut PgListener) -> Result<(), sqlx::Error> {
    sqlx::raw_sql("select 1").execute(listener).await.map(drop)
}

async fn set(connection: &mut PgConnection, text: &'static str) -> Result<(), sqlx::Error> {
    sqlx::raw_sql(text).execute(connection).await.map(drop)
}
