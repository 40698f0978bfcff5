//! The database's word on what is done.

use std::time::{Duration, Instant};

use sqlx::{
    Connection, PgConnection, PgPool,
    postgres::{PgConnectOptions, PgPoolOptions},
};
use tokio::{task::JoinHandle, time::sleep};

use crate::{Result, body};

/// Between two looks at how many bodies ran, which costs the peer nothing.
const HINT: Duration = Duration::from_millis(1);
/// Between two questions to the database, once all bodies ran: so much too long can a time be.
const POLL: Duration = Duration::from_millis(5);
/// After this long without any body running, the rest will not come.
const PATIENCE: Duration = Duration::from_secs(90);

/// The peer's own tables, in SQL.
pub struct Tables {
    /// How many jobs there are, in whatever state.
    pub stored: &'static str,
    /// Whether any job is not complete.
    pub unfinished: &'static str,
    pub completed: Completed,
    /// How many steps of workflows are recorded as complete.
    pub steps: Option<&'static str>,
    /// Marks all jobs as complete, as their worker would have done; none where complete jobs are not kept, or the peer is not asked for it.
    pub finish: Option<&'static str>,
    /// When the last held step began again, and when the last workflow ended, in milliseconds of the epoch.
    pub resumed: Option<&'static str>,
}

/// How the peer tells that a job is complete.
pub enum Completed {
    /// Its row says so, and this counts them.
    Marked(&'static str),
    /// Its row is gone.
    Deleted,
}

/// A connection of the measurement's own.
pub struct Database {
    connection: PgConnection,
    tables: &'static Tables,
    /// How many jobs were made only to be there.
    ignored: u64,
}

impl Database {
    pub async fn open(url: &str, tables: &'static Tables) -> Result<Self> {
        Ok(Self { connection: PgConnection::connect(url).await?, tables, ignored: 0 })
    }

    pub async fn stored(&mut self) -> Result<u64> {
        Ok(self.count(self.tables.stored).await?.saturating_sub(self.ignored))
    }

    /// From now on so many jobs more are not counted, neither as stored nor as complete.
    pub fn ignore(&mut self, jobs: u64) {
        self.ignored += jobs;
    }

    /// Marks all jobs as complete.
    pub async fn finish_all(&mut self) -> Result<()> {
        let finish = self.tables.finish.ok_or("this peer is not asked for finished jobs")?;
        sqlx::query(finish).execute(&mut self.connection).await?;
        Ok(())
    }

    /// What a server that ran for a while would have done: no plan is made for a table that was seen empty.
    pub async fn settle(&mut self) -> Result<()> {
        sqlx::query("vacuum analyze").execute(&mut self.connection).await?;
        Ok(())
    }

    /// Waits until so many bodies ran and the database says that nothing is unfinished; gives when it was asked.
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

    /// Fails unless exactly so many jobs are complete, of as many that were enqueued.
    pub async fn expect_completed(&mut self, jobs: u64) -> Result<()> {
        let completed = match self.tables.completed {
            Completed::Marked(count) => self.count(count).await?.saturating_sub(self.ignored),
            Completed::Deleted => jobs.saturating_sub(self.stored().await?),
        };
        equal("complete jobs", completed, jobs)
    }

    /// Fails unless exactly so many steps are recorded.
    pub async fn expect_steps(&mut self, steps: u64) -> Result<()> {
        let count = self.tables.steps.ok_or("this peer records no steps")?;
        equal("complete steps", self.count(count).await?, steps)
    }

    /// Fails unless the peer holds exactly so many jobs.
    pub async fn expect_stored(&mut self, jobs: u64) -> Result<()> {
        equal("stored jobs", self.stored().await?, jobs)
    }

    /// Waits until so many of all the jobs are complete, and gives how many were complete when.
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
                // Counting a long queue is work for the server: a sixth of the time at most.
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

    /// Waits until so many jobs are complete, whose bodies run in other processes; gives when it was asked.
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
            // Counting is work for the server: a sixth of the time at most.
            sleep((asked.elapsed() * 5).max(pause)).await;
        }
    }

    /// Waits until a count of the peer's tables is so large.
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

    /// Milliseconds of the epoch.
    pub async fn now(&mut self) -> Result<u64> {
        self.count("select (extract(epoch from clock_timestamp()) * 1000)::bigint").await
    }

    /// Seconds from an instant until what was held had begun again, and until it had ended.
    pub async fn since(&mut self, instant: u64) -> Result<(f64, f64)> {
        let resumed = self.tables.resumed.ok_or("this peer is not asked for a recovery")?;
        let (began, ended): (i64, i64) = sqlx::query_as(resumed).fetch_one(&mut self.connection).await?;
        let instant = i64::try_from(instant)?;
        let seconds = |then: i64| (then - instant) as f64 / 1e3;
        Ok((seconds(began), seconds(ended)))
    }

    /// A table of the application's own.
    pub async fn make_business(&mut self) -> Result<()> {
        sqlx::query("create table business (id bigint primary key)").execute(&mut self.connection).await?;
        Ok(())
    }

    /// Bytes of WAL until now.
    pub async fn wal(&mut self) -> Result<u64> {
        self.count("select pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::bigint").await
    }

    /// Bytes of WAL, and transactions of this database until now: a session tells its own when it ends, or within ten seconds, and asks
    /// elsewhere meanwhile.
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

/// A pool whose connections are all open already, so that none is opened in the time that is measured.
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
