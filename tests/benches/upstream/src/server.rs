//! The server that all systems share, with a fresh database for each measurement.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use runledger::dev;
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tokio::task::spawn_blocking;
use tokio::time::sleep;
use uuid::Uuid;

use crate::Result;
use crate::engine::Tables;

/// Upstream's schema generates ids with a function that is new in PostgreSQL 18.
const OLDEST_VERSION: i32 = 180_000;

/// The role of the measured systems, which separates their statements from the measurement's own.
const MEASURED: &str = "measured";
/// The role of the embedded server.
const OWNER: &str = "runledger";

/// How long sessions may take to end. A session reports its statistics when it ends.
const SESSIONS_END: Duration = Duration::from_secs(5);

/// A private embedded server. [`end`](Self::end) deletes its data.
pub struct Server {
    server: dev::Server,
    options: dev::Options,
    folder: PathBuf,
    admin: PgConnection,
}

impl Server {
    /// Starts a server that counts statements.
    pub async fn start() -> Result<Self> {
        let folder = PathBuf::from(format!("/var/tmp/runledger-upstream-{}", std::process::id()));
        let mut options = dev::Options::dev();
        options.base_dir = Some(folder.clone());
        let first = dev::Server::start(options.clone()).await?;
        let mut admin = PgConnection::connect(&first.url("postgres")).await?;
        let version: i32 = sqlx::query_scalar("select current_setting('server_version_num')::integer")
            .fetch_one(&mut admin)
            .await?;
        if version < OLDEST_VERSION {
            dev::reset(&options)?;
            return Err(
                "upstream needs PostgreSQL 18: `.ci/fault-tools` fetches it, and RUNLEDGER_PG_BIN names the folder with its programs"
                    .into(),
            );
        }
        run(&mut admin, "alter system set shared_preload_libraries = 'pg_stat_statements'").await?;
        drop(admin);
        let stopped = options.clone();
        spawn_blocking(move || dev::stop_now(&stopped)).await??;
        let server = dev::Server::start(options.clone()).await?;
        drop(first);
        let mut admin = PgConnection::connect(&server.url("postgres")).await?;
        run(&mut admin, "create extension pg_stat_statements; create extension pg_walinspect").await?;
        run(&mut admin, &format!("create role {MEASURED} login superuser")).await?;
        Ok(Self { server, options, folder, admin })
    }

    /// Creates a fresh database.
    pub async fn place(&mut self, name: &str) -> Result<Place> {
        let name = name.replace('-', "_");
        run(&mut self.admin, &format!("create database {name}")).await?;
        // Writes the pages of earlier work, and starts each measurement at the same distance from
        // the next checkpoint.
        run(&mut self.admin, "checkpoint").await?;
        let url = self.server.url(&name);
        let beside = PgConnection::connect(&self.server.url("postgres")).await?;
        let look = PgConnection::connect(&url).await?;
        let url = url.replacen(&format!("//{OWNER}@"), &format!("//{MEASURED}@"), 1);
        Ok(Place { name, url, look, beside })
    }

    /// Drops a database.
    pub async fn clear(&mut self, place: Place) -> Result<()> {
        let Place { name, look, beside, .. } = place;
        look.close().await?;
        beside.close().await?;
        run(&mut self.admin, &format!("drop database {name} with (force)")).await
    }

    /// A connection for queries about the server.
    pub fn admin(&mut self) -> &mut PgConnection {
        &mut self.admin
    }

    /// Stops the server and deletes its data.
    pub async fn end(self) -> Result<()> {
        let Self { server, options, folder, admin } = self;
        admin.close().await?;
        spawn_blocking(move || dev::reset(&options)).await??;
        drop(server);
        // Only the lock is left in the folder, so a failure does not matter.
        let _ = std::fs::remove_dir_all(folder);
        Ok(())
    }
}

/// The database of one measurement.
pub struct Place {
    name: String,
    /// The address for the measured system.
    pub url: String,
    /// A connection to the database, with another role than the measured system.
    look: PgConnection,
    /// A connection to another database.
    beside: PgConnection,
}

/// The counters at one instant.
pub struct Mark {
    at: Instant,
    statements: i64,
    wal: String,
}

/// The work since a [`Mark`].
pub struct Costs {
    pub seconds: f64,
    /// Statements of the engine, including those that begin and end transactions.
    pub statements: f64,
    /// Transactions that wrote.
    pub commits: f64,
    /// WAL bytes of the whole server.
    pub wal: f64,
    /// Bytes of page images in it. PostgreSQL writes a whole page at its first change after a
    /// checkpoint.
    pub images: f64,
}

impl Place {
    pub async fn number(&mut self, query: &'static str) -> Result<i64> {
        Ok(sqlx::query_scalar(query).fetch_one(&mut self.look).await?)
    }

    /// Fails unless a count is `n`.
    pub async fn expect(&mut self, what: &str, query: &'static str, n: u64) -> Result<()> {
        let is = self.number(query).await?;
        if u64::try_from(is)? == n { Ok(()) } else { Err(format!("{is} {what} are stored, not {n}").into()) }
    }

    /// Whether a graph completed. `None` while it runs.
    pub async fn ended(&mut self, tables: &Tables, graph: Uuid) -> Result<Option<bool>> {
        Ok(sqlx::query_scalar(tables.ended).bind(graph).fetch_optional(&mut self.look).await?)
    }

    /// The number of ended graphs, and of completed ones.
    pub async fn count_ended(&mut self, tables: &Tables) -> Result<(i64, i64)> {
        Ok(sqlx::query_as(tables.count_ended).fetch_one(&mut self.look).await?)
    }

    /// Vacuums and analyses, so that no query is planned for an empty table.
    pub async fn settle(&mut self) -> Result<()> {
        run(&mut self.look, "vacuum analyze").await
    }

    /// Reads the counters.
    pub async fn mark(&mut self) -> Result<Mark> {
        let (statements, wal) = sqlx::query_as(
            "select coalesce(sum(calls), 0)::bigint, pg_current_wal_insert_lsn()::text from pg_stat_statements \
             where dbid = (select oid from pg_database where datname = $1) and userid = (select oid from pg_roles where rolname = $2)",
        )
        .bind(&self.name)
        .bind(MEASURED)
        .fetch_one(&mut self.beside)
        .await?;
        Ok(Mark { at: Instant::now(), statements, wal })
    }

    /// The work since a mark.
    pub async fn since(&mut self, mark: &Mark) -> Result<Costs> {
        let now = self.mark().await?;
        let seconds = now.at.duration_since(mark.at).as_secs_f64();
        // `pg_walinspect` fails on an empty range, so it is called only if something was written.
        let (wal, is_written): (i64, bool) = sqlx::query_as(
            "select pg_wal_lsn_diff($2::pg_lsn, $1::pg_lsn)::bigint, $1::pg_lsn < least($2::pg_lsn, pg_current_wal_flush_lsn())",
        )
        .bind(&mark.wal)
        .bind(&now.wal)
        .fetch_one(&mut self.beside)
        .await?;
        let (commits, images): (i64, i64) = if is_written {
            sqlx::query_as(
                "select coalesce(sum(count) filter (where \"resource_manager/record_type\" = 'Transaction/COMMIT'), 0)::bigint, \
                 coalesce(sum(fpi_size), 0)::bigint from pg_get_wal_stats($1::pg_lsn, $2::pg_lsn, true)",
            )
            .bind(&mark.wal)
            .bind(&now.wal)
            .fetch_one(&mut self.beside)
            .await?
        } else {
            (0, 0)
        };
        Ok(Costs {
            seconds,
            statements: (now.statements - mark.statements) as f64,
            commits: commits as f64,
            wal: wal as f64,
            images: images as f64,
        })
    }

    /// The number of deadlocks in the database. Waits up to 5 s until the engine's sessions have
    /// ended, because sessions report deadlocks when they end.
    pub async fn deadlocks(&mut self) -> Result<i64> {
        let began = Instant::now();
        let sessions = "select count(*) from pg_stat_activity where datname = $1 and usename = $2";
        let mut left = 1_i64;
        while left > 0 && began.elapsed() < SESSIONS_END {
            sleep(Duration::from_millis(50)).await;
            left = sqlx::query_scalar(sessions)
                .bind(&self.name)
                .bind(MEASURED)
                .fetch_one(&mut self.beside)
                .await?;
        }
        let query = "select deadlocks from pg_stat_database where datname = $1";
        Ok(sqlx::query_scalar(query).bind(&self.name).fetch_one(&mut self.beside).await?)
    }
}

async fn run(connection: &mut PgConnection, statement: &str) -> Result<()> {
    sqlx::raw_sql(AssertSqlSafe(statement.to_owned())).execute(connection).await?;
    Ok(())
}
