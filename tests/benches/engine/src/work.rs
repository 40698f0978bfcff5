//! What all measurements share: the payload, connections, and tasks that split a number of units.

use std::future::Future;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{ConnectOptions, Connection, Executor};

use crate::Res;

/// About 100 bytes.
pub const NOTE: &str =
    "somebody@example.com hello world hello world hello world hello world hello world hello";

/// The payload of unit `n`.
pub fn payload(n: usize) -> String {
    json!({ "user_id": n, "note": NOTE }).to_string()
}

/// Opens a connection without statement logging. No parallel queries: counting must not take
/// processors from the measured work.
pub async fn connect(url: &str) -> Res<PgConnection> {
    let options = PgConnectOptions::from_str(url)?.options([("max_parallel_workers_per_gather", "0")]);
    Ok(options.disable_statement_logging().connect().await?)
}

pub async fn execute(connection: &mut PgConnection, statements: &str) -> Res<()> {
    connection.execute(sqlx::raw_sql(sqlx::AssertSqlSafe(statements.to_owned()))).await?;
    Ok(())
}

pub async fn number(connection: &mut PgConnection, query: &str) -> Res<i64> {
    Ok(sqlx::query_scalar(sqlx::AssertSqlSafe(query.to_owned())).fetch_one(connection).await?)
}

/// The database's clock, as text for later queries.
pub async fn now(connection: &mut PgConnection) -> Res<String> {
    Ok(sqlx::query_scalar("select clock_timestamp()::text").fetch_one(connection).await?)
}

/// The number of client sessions of the database, without this one.
pub async fn sessions(connection: &mut PgConnection) -> Res<i64> {
    let query = "select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend'";
    number(connection, query).await
}

/// Waits until a query returns at least `n`, so that the database confirms the work.
pub async fn until(connection: &mut PgConnection, query: &str, n: usize) -> Res<()> {
    loop {
        let began = Instant::now();
        let is = number(connection, query).await?;
        if usize::try_from(is).is_ok_and(|is| is >= n) {
            return Ok(());
        }
        // Counting costs the server time, so it takes at most a sixth of the wait.
        tokio::time::sleep((began.elapsed() * 5).max(Duration::from_millis(2))).await;
    }
}

/// The WAL bytes of the server and the transactions of one database, since the server's start.
#[derive(Clone, Copy, Debug)]
pub struct Costs {
    wal: i64,
    transactions: i64,
}

impl Costs {
    /// Reads the costs so far, from another database. A session reports its transactions when it
    /// ends, or within ten seconds.
    pub async fn of(url: &str) -> Res<Self> {
        let options = PgConnectOptions::from_str(url)?;
        let database = options.get_database().ok_or("DATABASE_URL names no database")?.to_owned();
        let mut beside = options.database("postgres").disable_statement_logging().connect().await?;
        let query = "select pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::bigint, xact_commit + xact_rollback from pg_stat_database where datname = $1";
        let (wal, transactions) = sqlx::query_as(query).bind(database).fetch_one(&mut beside).await?;
        Ok(Self { wal, transactions })
    }

    /// Reads the costs so far, once at most `left` other sessions remain. A session that has ended
    /// has reported everything.
    pub async fn when_all_have_told(url: &str, left: i64) -> Res<Self> {
        let mut connection = connect(url).await?;
        while sessions(&mut connection).await? > left {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        connection.close().await?;
        Self::of(url).await
    }

    /// WAL bytes per unit since `before`.
    pub fn wal_each(self, before: Self, n: usize) -> f64 {
        each(self.wal - before.wal, n)
    }

    /// Transactions per unit since `before`.
    pub fn transactions_each(self, before: Self, n: usize) -> f64 {
        each(self.transactions - before.transactions, n)
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts of a benchmark are far below 2^52")]
fn each(count: i64, n: usize) -> f64 {
    count as f64 / n as f64
}

/// Splits `n` units over `tasks` tasks, each of which does one unit at a time. Returns the total
/// duration.
pub async fn share<F, W, Fut>(tasks: usize, n: usize, mut worker: F) -> Res<Duration>
where
    F: FnMut(usize) -> W,
    W: FnMut(usize) -> Fut + Send + 'static,
    Fut: Future<Output = Res<()>> + Send,
{
    let next = Arc::new(AtomicUsize::new(0));
    let began = Instant::now();
    let mut handles = Vec::new();
    for task in 0..tasks {
        let (mut work, next) = (worker(task), Arc::clone(&next));
        handles.push(tokio::spawn(async move {
            loop {
                let unit = next.fetch_add(1, Ordering::Relaxed);
                if unit >= n {
                    return Ok(());
                }
                work(unit).await?;
            }
        }));
    }
    for handle in handles {
        let done: Res<()> = handle.await?;
        done?;
    }
    Ok(began.elapsed())
}
