//! Sets up the sessions of the engine and of clients. Settings influence plans and limit waits.
//! Correctness never depends on them, because a pooler may drop them.

pub(crate) mod failover;
pub(crate) mod installation;
pub(crate) mod limits;
pub(crate) mod reserve;
pub mod server;
pub(crate) mod without_connection;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgConnectOptions, PgConnection, PgListener, PgPool, PgPoolOptions};
use sqlx::{ConnectOptions, Postgres, Row};

use super::sql;
use failover::Address;

/// The settings of the engine's own sessions.
///
/// - **Index scans and nested loops only**: one index probe per row, because the statistics of an
///   empty table mislead the planner. It expects one row, so a bitmap scan looks as cheap. But a
///   bitmap scan reads and sorts all due runs when a claim needs the first ten.
/// - **No just-in-time compilation**: a forced plan has such a high cost that the server would
///   compile it each time. That takes 120 ms for a statement of 20 µs.
/// - **A limit on idle transactions**: a transaction of the engine never idles. If one does, it has
///   lost its client without the server's knowledge, and it holds rows that the same worker needs.
/// - **No row security**: a policy that applies is an error. If it hid the recorded steps of a run,
///   the run would repeat them.
/// - **Keepalives**: if the network loses a client in the middle of a message, no time limit ends
///   its transaction. The server is then neither idle nor executing a statement.
pub const ENGINE: &str = "set jit = off; set enable_seqscan = off; set enable_bitmapscan = off; set enable_hashjoin = off; set enable_mergejoin = off; \
                          set plan_cache_mode = force_generic_plan; set search_path = pg_catalog, pg_temp; set default_transaction_isolation = 'read committed'; set lock_timeout = '10s'; set statement_timeout = '30s'; set row_security = off; \
                          set idle_in_transaction_session_timeout = '10s'; \
                          set tcp_keepalives_idle = 10; set tcp_keepalives_interval = 5; set tcp_keepalives_count = 3";

/// For sessions that execute no user statements. Names resolve only in `pg_catalog`.
const PINNED: &str = "set search_path = pg_catalog, pg_temp";

/// Pins the search path of a transaction that executes no user statements.
pub(crate) async fn pin_path(tx: &mut PgConnection) -> Result<(), sqlx::Error> {
    set(tx, "set local search_path = pg_catalog, pg_temp").await
}

/// Sets up a connection for the engine's own statements. Never return it to users.
pub(crate) async fn for_engine(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    set(connection, settings(connection)).await
}

/// [`ENGINE`], and from PostgreSQL 17 on without the operator's `transaction_timeout`. A statement
/// that reaches this limit loses its session, and the writer does not know which run was the cause.
fn settings(connection: &PgConnection) -> &'static str {
    static WITHOUT_LIMIT: LazyLock<String> =
        LazyLock::new(|| format!("{ENGINE}; set transaction_timeout = 0"));
    match connection.server_version_num() {
        Some(version) if version >= 170_000 => &WITHOUT_LIMIT,
        _ => ENGINE,
    }
}

/// The time limit of a lane scan. A scan also reads the dead entries that an old snapshot keeps.
pub(crate) const LONGEST_LOOK: Duration = Duration::from_secs(120);

/// Sets the statement limit of an engine session to [`LONGEST_LOOK`].
pub(crate) async fn for_looks(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    let set = format!("set statement_timeout = {}", LONGEST_LOOK.as_millis());
    sqlx::raw_sql(sqlx::AssertSqlSafe(set)).execute(connection).await.map(drop)
}

/// Sets up a connection for heartbeats: like [`ENGINE`], with its own time limits. Heartbeats need
/// not survive a crash of the server, so they do not wait for its disk.
///
/// The server stops waiting for a lock before the next heartbeat (`period`) is due, so a locked
/// table blocks at most one session per worker. A statement may take longer than a period, but the
/// server aborts it before the worker closes the connection (`suspect`).
pub(crate) async fn for_heartbeat(
    connection: &mut PgConnection,
    period: Duration,
    suspect: Duration,
) -> Result<(), sqlx::Error> {
    let others = "set synchronous_commit = off";
    for_engine_within(connection, period.mul_f64(0.8), suspect.mul_f64(0.9), others).await
}

/// Sets up a connection like [`ENGINE`], with other time limits and settings.
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

/// How long a statement of a writer waits for a lock. A waiting batch delays the records of all
/// runs. After this limit, the writer writes the items of the batch one by one.
pub(crate) const WAIT_OF_A_BATCH: Duration = Duration::from_secs(1);

/// Like [`WAIT_OF_A_BATCH`], for the record of a single run that may be the cause. Other records
/// wait for it.
pub(crate) const WAIT_OF_ONE: Duration = Duration::from_millis(200);

/// Sets up a connection for a writer: like [`ENGINE`], with [`WAIT_OF_A_BATCH`]. The server aborts
/// a statement before the writer closes the connection (`patience`), because only an error of the
/// server can concern single runs.
pub(crate) async fn for_writer(connection: &mut PgConnection, patience: Duration) -> Result<(), sqlx::Error> {
    let statement = patience.mul_f64(0.8).min(Duration::from_secs(30));
    for_engine_within(connection, WAIT_OF_A_BATCH, statement, "").await
}

/// Sets how long the statements of a session wait for a lock.
pub(crate) async fn wait_for_locks(connection: &mut PgConnection, wait: Duration) -> Result<(), sqlx::Error> {
    let set = format!("set lock_timeout = {}", wait.as_millis());
    sqlx::raw_sql(sqlx::AssertSqlSafe(set)).execute(connection).await.map(drop)
}

/// For sessions that listen. A caller that checks the connection waits for at most 5 s
/// (`PING_LIMIT`).
const LISTENING: &str =
    "set search_path = pg_catalog, pg_temp; set lock_timeout = '4s'; set statement_timeout = '5s'";

/// For the sessions of a client's pool.
///
/// - No warnings, because every release sends a `ROLLBACK` outside a transaction.
/// - Read committed, even if the role has another default, so that a keyed enqueue can see an
///   existing run.
/// - No just-in-time compilation: with the statistics of an empty table, the planner overestimates
///   small statements. Compiling one takes 130 ms.
pub const CLIENT: &str =
    "set client_min_messages = error; set default_transaction_isolation = 'read committed'; set jit = off";

/// Removes `pg_catalog` from a path that lists it after another schema, so that it implicitly comes
/// first. With a path such as `public, pg_catalog`, a role that may create objects in `public` can
/// replace PostgreSQL's operators in the engine's statements. Returns one row if it changed the
/// path. A comma inside a quoted name, as in `"public, pg_catalog"`, is followed by an odd number
/// of quotes.
const REPAIR_PATH: &str = r#"select pg_catalog.set_config('search_path', repaired, false)
    from (
        select pg_catalog.regexp_replace(
            pg_catalog.current_setting('search_path'),
            ',(?=(?:[^"]*"[^"]*")*[^"]*$)[[:space:]]*(?:"pg_catalog"|pg_catalog)[[:space:]]*(?=,|$)', '', 'gi'
        ) as repaired
        offset 0
    ) as path
    where repaired operator(pg_catalog.<>) pg_catalog.current_setting('search_path')"#;

/// Ends a user's open transaction on a pooled connection, and resets the role, the settings and the
/// other state of the session. The next user may be the engine, and its records must not commit
/// with a user's `synchronous_commit = off`. Prepared statements stay, because sqlx relies on the
/// ones it prepared. If a user dropped them (`deallocate all`, `discard all`), [`PREPARE_WITNESS`]
/// is gone too, and the reset fails.
const RESET: &str = "rollback; set session authorization default; reset all; close all; unlisten *; discard temp; \
                     execute runledger_session; select pg_catalog.pg_advisory_unlock_all()";

/// Prepares a statement that shows at each reset that the session still has its prepared
/// statements.
const PREPARE_WITNESS: &str = "prepare runledger_session as select 1";

/// Ends a statement within 10 s after its client has closed the connection. Otherwise a statement
/// that waits for a lock keeps its server process after the client has stopped, and each further
/// try adds a process. PostgreSQL 13 does not have the setting, and some platforms do not support
/// it.
const CHECK_CLIENT: &str = "set client_connection_check_interval = '10s'";

/// Sets up the connections of one client's pool, and resets them after each use.
#[derive(Debug)]
pub(crate) struct ClientSessions {
    address: Arc<Address>,
    /// Whether the role's default path needs the repair. Checking on each release would double its
    /// cost.
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
        /// Indexed by whether the server has [`CHECK_CLIENT`], and by whether the path needs the
        /// repair.
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
        // sqlx does not count the answer to a `COPY` whose transaction is dropped before its end.
        // Each later statement would get the answer to the statement before it.
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

/// Whether the session has lost a prepared statement of sqlx, or [`PREPARE_WITNESS`].
pub(crate) fn has_lost_statements(error: &sqlx::Error) -> bool {
    has_code(error, "26000")
}

/// Whether the server refused a statement or a connection with this SQLSTATE.
pub(crate) fn has_code(error: &sqlx::Error, code: &str) -> bool {
    error.as_database_error().and_then(sqlx::error::DatabaseError::code).as_deref() == Some(code)
}

/// Returns a connection of a pool.
///
/// Boxed, like [`connect`]: sqlx's future has 4 KiB, and so would every future around it, of each
/// body and each caller.
pub(crate) async fn acquire(pool: &PgPool) -> Result<PoolConnection<Postgres>, sqlx::Error> {
    Box::pin(pool.acquire()).await
}

/// Commits a transaction with all its savepoints, including savepoints that sqlx does not know.
pub(crate) async fn commit_whole(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    set(connection, "COMMIT").await
}

/// Opens a connection outside any pool.
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
            "'; set local statement_timeout = '30s'; set local enable_bitmapscan = off; set local enable_seqscan = off"
        )
    };
}

/// Begins a transaction of the engine on a connection with the user's settings. The isolation level
/// is fixed: after a wait for a lock, the engine must read the rows that others have committed
/// since. The limits are the ones of [`ENGINE`], because the transaction locks rows of runs. It
/// must not idle, and a caller that stops waiting must not leave a session that waits for a lock.
///
/// Scans of whole tables are off. If many rows of a table have one parent, the planner expects that
/// a scan meets a child of any run at once. For a run without children, the scan reads the table.
pub const BEGIN_RESTLESS: &str = begin_restless!("10s");

/// Like [`BEGIN_RESTLESS`], for work that delays other work.
pub(crate) const BEGIN_BRIEF: &str = begin_restless!("200ms");

/// Like [`BEGIN_RESTLESS`], for work that delays little other work.
pub(crate) const BEGIN_QUEUED: &str = begin_restless!("1s");

/// Begins a transaction of the engine on a connection of an application, or with the limits of an
/// engine session.
pub(crate) const BEGIN: &str = "begin isolation level read committed";

/// Begins a transaction that reads a page in the order of an index. With the statistics of an empty
/// table, the planner would read and sort all rows that follow.
pub(crate) const BEGIN_IN_ORDER: &str =
    "begin isolation level read committed; set local enable_bitmapscan = off; set local enable_seqscan = off";

/// Whether each statement of a transaction at this level sees what others have committed before the
/// statement.
pub(crate) fn is_read_committed(level: &str) -> bool {
    // PostgreSQL treats both levels the same.
    ["read committed", "read uncommitted"].contains(&level)
}

/// Keeps the lock limit of the transaction, which its body may have set.
macro_rules! keep_lock_limit {
    () => {
        "select pg_catalog.set_config('runledger.lock_limit', pg_catalog.current_setting('lock_timeout'), true); "
    };
}

macro_rules! restore_lock_limit {
    () => {
        "select pg_catalog.set_config('lock_timeout', pg_catalog.current_setting('runledger.lock_limit'), true); "
    };
}

/// Limits each wait for a lock to 30 s, whatever the body has set. The engine gives up a statement
/// after 35 s, but the server would go on waiting for the lock, with the locks that the transaction
/// has.
pub(crate) async fn limit_locks(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    set(connection, concat!(keep_lock_limit!(), "set local lock_timeout = '30s'")).await
}

/// Sets the transaction's own lock limit again: it applies to deferred triggers at the commit.
pub(crate) async fn restore_lock_limit(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    set(connection, restore_lock_limit!()).await
}

/// Begins a savepoint in which a statement waits at most 200 ms for a lock. [`release_wake`] or
/// [`roll_back_wake`] ends it.
///
/// The savepoint has a name of its own, because a body may have left savepoints of sqlx open.
pub(crate) async fn save_wake(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    const SAVE: &str =
        concat!("savepoint runledger_wake; ", keep_lock_limit!(), "set local lock_timeout = '200ms'");
    set(connection, SAVE).await
}

/// Keeps what was done since [`save_wake`], but not its lock limit.
pub(crate) async fn release_wake(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    set(connection, concat!(restore_lock_limit!(), "release savepoint runledger_wake")).await
}

/// Undoes what was done since [`save_wake`], including the lock limit. Works after an error.
pub(crate) async fn roll_back_wake(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    set(connection, "rollback to savepoint runledger_wake; release savepoint runledger_wake").await
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

/// Returns the statement that begins the transaction of a body and sets its marker, in one round
/// trip. The marker ends with the transaction. `mark` consists of hexadecimal digits.
pub(crate) fn begin_body(mark: &str) -> String {
    format!("begin; set local runledger.body = '{mark}'")
}

/// Opens a listening connection outside the caller's pool, so that a wait works with a pool of one.
/// It reconnects and listens again after a loss.
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

/// Checks that a listening connection answers.
pub(crate) async fn answers(listener: &mut PgListener) -> Result<(), sqlx::Error> {
    sqlx::raw_sql("select 1").execute(listener).await.map(drop)
}

async fn set(connection: &mut PgConnection, text: &'static str) -> Result<(), sqlx::Error> {
    sqlx::raw_sql(text).execute(connection).await.map(drop)
}
