//! Asks the peer's database which work is done.

use std::time::{Duration, Instant};

use sqlx::{
    Connection, PgConnection, PgPool,
    postgres::{PgConnectOptions, PgPoolOptions},
};
use tokio::{task::JoinHandle, time::sleep};

use crate::{Result, body};

/// The pause between two reads of the body count, which cost the peer nothing.
const HINT: Duration = Duration::from_millis(1);
/// The pause between two queries once all bodies have run. A measured time is too long by up to
/// this pause.
const POLL: Duration = Duration::from_millis(5);
/// If no body runs for this long, the measurement fails.
const PATIENCE: Duration = Duration::from_secs(90);

/// Queries on the peer's own tables.
pub struct Tables {
    /// Counts the jobs in any state.
    pub stored: &'static str,
    /// Whether any job is incomplete.
    pub unfinished: &'static str,
    pub completed: Completed,
    /// Counts the completed steps of workflows.
    pub steps: Option<&'static str>,
    /// Marks all jobs as complete, as a worker would. `None` if the peer deletes complete jobs or
    /// the figure does not exist for it.
    pub finish: Option<&'static str>,
    /// When the last held step started again, and when the last workflow ended, in milliseconds
    /// since the epoch.
    pub resumed: Option<&'static str>,
}

/// How the peer shows that a job is complete.
pub enum Completed {
    /// The job's row says so, and this query counts the complete jobs.
    Marked(&'static str),
    /// The peer deletes the row.
    Deleted,
}

pub struct Database {
    connection: PgConnection,
    tables: &'static Tables,
    /// Filler jobs, which no count includes.
    ignored: u64,
}

impl Database {
    pub async fn open(url: &str, tables: &'static Tables) -> Result<Self> {
        Ok(Self { connection: PgConnection::connect(url).await?, tables, ignored: 0 })
    }

    pub async fn stored(&mut self) -> Result<u64> {
        Ok(self.count(self.tables.stored).await?.saturating_sub(self.ignored))
    }

    /// Excludes `jobs` more jobs from the stored and complete counts.
    pub fn ignore(&mut self, jobs: u64) {
        self.ignored += jobs;
    }

    pub async fn finish_all(&mut self) -> Result<()> {
        let finish = self.tables.finish.ok_or("this peer is not asked for finished jobs")?;
        sqlx::query(finish).execute(&mut self.connection).await?;
        Ok(())
    }

    /// Vacuums and analyses, so that no query is planned for an empty table.
    pub async fn settle(&mut self) -> Result<()> {
        sqlx::query("vacuum analyze").execute(&mut self.connection).await?;
        Ok(())
    }

    /// Waits until `bodies` bodies have run and the database has no unfinished work. Returns when
    /// the deciding query started.
    pub async fn finished(&mut self, bodies: u64, worker: &JoinHandle<Result<()>>) -> Result<Instant> {
        let (mut seen, mut since) = (body::ran(), Instant::now());
        loop {
            let (ran, asked) = (body::ran(), Instant::now());
            if ran >= bodies && !self.unfinished().await? {
                return Ok(asked);
            }
            if worker.is_finished() {
                return Err("the worker stopped before everything was done".into());
            }
            if ran != seen {
                (seen, since) = (ran, Instant::now());
            } else if since.elapsed() > PATIENCE {
                return Err(format!(
                    "{ran} of {bodies} bodies ran, but {PATIENCE:?} later there is unfinished work"
                )
                .into());
            }
            sleep(if ran < bodies { HINT } else { POLL }).await;
        }
    }

    /// Fails unless exactly `jobs` jobs are complete.
    pub async fn expect_completed(&mut self, jobs: u64) -> Result<()> {
        let completed = match self.tables.completed {
            Completed::Marked(count) => self.count(count).await?.saturating_sub(self.ignored),
            Completed::Deleted => jobs.saturating_sub(self.stored().await?),
        };
        equal("complete jobs", completed, jobs)
    }

    /// Fails unless exactly `steps` steps are recorded.
    pub async fn expect_steps(&mut self, steps: u64) -> Result<()> {
        let count = self.tables.steps.ok_or("this peer records no steps")?;
        equal("complete steps", self.count(count).await?, steps)
    }

    /// Fails unless the peer stores exactly `jobs` jobs.
    pub async fn expect_stored(&mut self, jobs: u64) -> Result<()> {
        equal("stored jobs", self.stored().await?, jobs)
    }

    /// Waits until `jobs` of `all` jobs are complete. Returns how many were complete, and when.
    pub async fn part_of(
        &mut self,
        jobs: u64,
        all: u64,
        worker: &JoinHandle<Result<()>>,
    ) -> Result<(u64, Instant)> {
        let (mut seen, mut since) = (body::ran(), Instant::now());
        loop {
            let (ran, asked) = (body::ran(), Instant::now());
            if ran >= jobs {
                let completed = match self.tables.completed {
                    Completed::Marked(count) => self.count(count).await?.saturating_sub(self.ignored),
                    Completed::Deleted => all.saturating_sub(self.stored().await?),
                };
                if completed >= jobs {
                    return Ok((completed, asked));
                }
                // Counting a long queue costs the server time, so it takes at most a sixth of the
                // wait.
                sleep(asked.elapsed() * 5).await;
            }
            if worker.is_finished() {
                return Err("the worker stopped before so much was done".into());
            }
            if ran != seen {
                (seen, since) = (ran, Instant::now());
            } else if since.elapsed() > PATIENCE {
                return Err(format!("{ran} of {jobs} bodies ran, and no other in {PATIENCE:?}").into());
            }
            sleep(HINT).await;
        }
    }

    /// Waits until `jobs` jobs are complete whose bodies run in other processes. Returns when the
    /// deciding query started.
    pub async fn completed_elsewhere(&mut self, jobs: u64, pause: Duration) -> Result<Instant> {
        let began = Instant::now();
        loop {
            let asked = Instant::now();
            let completed = match self.tables.completed {
                Completed::Marked(count) => self.count(count).await?,
                Completed::Deleted => jobs.saturating_sub(self.stored().await?),
            };
            if completed >= jobs {
                return Ok(asked);
            }
            if began.elapsed() > PATIENCE {
                return Err(format!("{completed} of {jobs} jobs are complete after {PATIENCE:?}").into());
            }
            // Counting costs the server time, so it takes at most a sixth of the wait.
            sleep((asked.elapsed() * 5).max(pause)).await;
        }
    }

    /// Waits until a count reaches `n`.
    pub async fn until(&mut self, count: &'static str, n: u64) -> Result<()> {
        let began = Instant::now();
        while self.count(count).await? < n {
            if began.elapsed() > PATIENCE {
                return Err(format!("less than {n} after {PATIENCE:?}").into());
            }
            sleep(POLL).await;
        }
        Ok(())
    }

    /// The database's clock, in milliseconds since the epoch.
    pub async fn now(&mut self) -> Result<u64> {
        self.count("select (extract(epoch from clock_timestamp()) * 1000)::bigint").await
    }

    /// Seconds from `instant` until the held steps had started again, and until the workflows had
    /// ended.
    pub async fn since(&mut self, instant: u64) -> Result<(f64, f64)> {
        let resumed = self.tables.resumed.ok_or("this peer is not asked for a recovery")?;
        let (began, ended): (i64, i64) = sqlx::query_as(resumed).fetch_one(&mut self.connection).await?;
        let instant = i64::try_from(instant)?;
        let seconds = |then: i64| (then - instant) as f64 / 1e3;
        Ok((seconds(began), seconds(ended)))
    }

    /// Creates the application's own table.
    pub async fn make_business(&mut self) -> Result<()> {
        sqlx::query("create table business (id bigint primary key)").execute(&mut self.connection).await?;
        Ok(())
    }

    /// WAL bytes so far.
    pub async fn wal(&mut self) -> Result<u64> {
        self.count("select pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::bigint").await
    }

    /// The WAL bytes and the transactions of this database so far, read from another database. A
    /// session reports its transactions when it ends, or within ten seconds.
    pub async fn costs(&self, url: &str) -> Result<(u64, u64)> {
        let options: PgConnectOptions = url.parse()?;
        let database = options.get_database().ok_or("DATABASE_URL names no database")?.to_owned();
        let mut beside = PgConnection::connect_with(&options.database("postgres")).await?;
        let query = "select pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::bigint, xact_commit + xact_rollback from pg_stat_database where datname = $1";
        let (wal, transactions): (i64, i64) =
            sqlx::query_as(query).bind(database).fetch_one(&mut beside).await?;
        Ok((u64::try_from(wal)?, u64::try_from(transactions)?))
    }

    async fn unfinished(&mut self) -> Result<bool> {
        Ok(sqlx::query_scalar(self.tables.unfinished).fetch_one(&mut self.connection).await?)
    }

    async fn count(&mut self, sql: &'static str) -> Result<u64> {
        let count: i64 = sqlx::query_scalar(sql).fetch_one(&mut self.connection).await?;
        Ok(u64::try_from(count)?)
    }
}

/// A pool with all connections open, so that none opens during the measured time.
pub async fn pool(url: &str, connections: u64) -> Result<PgPool> {
    let connections = u32::try_from(connections)?;
    let pool =
        PgPoolOptions::new().max_connections(connections).min_connections(connections).connect(url).await?;
    let mut open = Vec::new();
    for _ in 0..connections {
        open.push(pool.acquire().await?);
    }
    Ok(pool)
}

fn equal(what: &str, found: u64, expected: u64) -> Result<()> {
    if found == expected {
        return Ok(());
    }
    Err(format!("the database has {found} {what} where {expected} were expected").into())
}
