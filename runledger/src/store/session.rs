//! How the sessions of the engine and of a client are set up. Settings steer plans and bound waits; no correctness rests on them, because a pooler
//! may drop them.

use std::sync::Arc;
use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgConnectOptions, PgConnection, PgListener, PgPool, PgPoolOptions};
use sqlx::{ConnectOptions, Postgres};

use super::timeline::Address;

/// For the engine's own statements: hot tables are always met through their indexes, one probe a row, whatever the statistics of an empty table say. Nor by
/// bitmaps: one gathers and sorts all that is due where a claim wants the first ten, which looks as cheap to a planner that expects one row.
/// A plan that is forced so has a forbidding cost, for which the server would compile it each time: 120 ms for a statement of 20 µs. A transaction of the
/// engine never rests: one that does has lost its client without the server's knowing, and holds rows that the same worker needs.
pub const ENGINE: &str = "set jit = off; set enable_seqscan = off; set enable_bitmapscan = off; set enable_hashjoin = off; set enable_mergejoin = off; \
                          set plan_cache_mode = force_generic_plan; set default_transaction_isolation = 'read committed'; set lock_timeout = '10s'; set statement_timeout = '30s'; \
                          set idle_in_transaction_session_timeout = '10s'";

/// Sets up a connection for the engine's own statements. It must not go back to users.
pub(crate) async fn for_engine(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    set(connection, ENGINE).await
}

/// How long a look at the lanes may take. The dead entries that it meets are as many as an old snapshot keeps.
pub(crate) const LONGEST_LOOK: Duration = Duration::from_secs(120);

/// Lets a session of the engine take as long as [`LONGEST_LOOK`].
pub(crate) async fn for_looks(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    let set = format!("set statement_timeout = {}", LONGEST_LOOK.as_millis());
    sqlx::raw_sql(sqlx::AssertSqlSafe(set)).execute(connection).await.map(drop)
}

/// Sets up a connection for heartbeats: they need not survive a crash of the server, and must not wait for a slow disk.
pub(crate) async fn for_heartbeat(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    set(connection, "set synchronous_commit = off").await
}

/// For the sessions of a client's pool: no warning about the `ROLLBACK` outside a transaction that every release makes; an isolation at which a keyed
/// enqueue can tell whether its run is there, whatever the default of the role; and no compilation of plans. What looks at all that is below a run seems dear to a
/// planner whose statistics of parents are of an empty table, or of some that have thousands of children, and would be compiled each time: 130 ms for 30 µs.
pub const CLIENT: &str =
    "set client_min_messages = error; set default_transaction_isolation = 'read committed'; set jit = off";

/// Sets up a connection of a client's pool.
pub(crate) async fn for_client(connection: &mut PgConnection, address: &Address) -> Result<(), sqlx::Error> {
    set(connection, CLIENT).await?;
    // Last, so that the pool counts the age of the connection from here.
    address.admit(connection).await
}

/// A connection of a pool.
///
/// sqlx's own future has 4 KiB, and so would have every future around it, of each body and each caller: here it is apart, as that of [`connect`].
pub(crate) async fn acquire(pool: &PgPool) -> Result<PoolConnection<Postgres>, sqlx::Error> {
    Box::pin(pool.acquire()).await
}

/// A connection beside a pool.
pub(crate) async fn connect(options: &PgConnectOptions) -> Result<PgConnection, sqlx::Error> {
    let mut connection = Box::pin(options.connect()).await?;
    Address::of(options).admit(&mut connection).await?;
    Ok(connection)
}

/// Begins a transaction of the engine on a connection whose settings are its user's. It holds rows of runs and never rests, as those of [`ENGINE`] do not; and
/// what it looks at after it has waited for a lock must be what was committed meanwhile, whatever the application's default level is.
pub(crate) const BEGIN_RESTLESS: &str =
    "begin isolation level read committed; set local idle_in_transaction_session_timeout = '10s'";

/// Begins a transaction of our own on a connection of an application.
pub(crate) const BEGIN: &str = "begin isolation level read committed";

/// Whether a statement of a transaction at this level sees what others have committed before it.
pub(crate) fn is_read_committed(level: &str) -> bool {
    // PostgreSQL carries out the one as the other.
    ["read committed", "read uncommitted"].contains(&level)
}

/// Ends whatever transaction a dropped future has left open.
pub(crate) async fn roll_back(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    set(connection, "rollback").await
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
            Box::pin(async move { address.admit(connection).await })
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
