//! Claims and settles batches of 100, fenced and with history, and does nothing else.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sqlx::postgres::{PgListener, PgRow};
use sqlx::{Connection, PgConnection, Row};
use tokio::sync::Barrier;
use uuid::Uuid;

use super::{SESSION, WHO, check};
use crate::Res;
use crate::arguments::Arguments;
use crate::line::Line;
use crate::work::{Costs, connect, execute, now, payload};

/// The channel that announces a commit.
pub const CHANNEL: &str = "bare";

// `offset 0` forces one index probe per row, as in the engine. Without it, a plan made on the empty
// table reverses the join and then scans every dead row.
const CLAIM: &str = "
    with due as (select ctid from bare.ready where queue = 'q' and priority = 0 and (ready_at, id) > ($1::text::timestamptz, $2) and ready_at <= now()
        order by queue, priority, ready_at, id limit 100 for update skip locked),
    gone as (delete from bare.ready where ctid = any (array(select ctid from due)) returning id, ready_at),
    held as (insert into bare.lease (id, token, worker) select id, $3, 1 from gone)
    select gone.id, run.input::text as input, gone.ready_at::text as ready_at,
        case when $4 then array(select step.output::text from bare.step where step.run_id = gone.id) end as steps
    from gone cross join lateral (select input from bare.run where run.id = gone.id offset 0) as run
    order by gone.ready_at, gone.id";

const SETTLE: &str = "
    with held as (select spot.ctid from unnest($1::uuid[]) as u (id)
        cross join lateral (select lease.ctid from bare.lease where lease.id = u.id and lease.token = $2 offset 0) as spot),
    gone as (delete from bare.lease where ctid = any (array(select ctid from held)) returning id)
    insert into bare.outcome (id, state, output) select id, 'completed', '{}' from gone returning id";

/// Rows per commit when the cost of filling is not measured.
const FILL: usize = 20_000;

/// The rows of one claim.
pub struct Batch {
    pub ids: Vec<Uuid>,
    token: Uuid,
    pub rows: Vec<PgRow>,
}

impl Batch {
    pub async fn settle(self, connection: &mut PgConnection) -> Res<usize> {
        Ok(sqlx::query(SETTLE).bind(self.ids).bind(self.token).fetch_all(connection).await?.len())
    }
}

/// A connection that claims from a cursor, and settles.
pub struct Claimer {
    connection: PgConnection,
    at: String,
    last: Uuid,
    with_steps: bool,
}

impl Claimer {
    pub async fn open(url: &str) -> Res<Self> {
        let connection = session(url).await?;
        Ok(Self { connection, at: "-infinity".to_owned(), last: Uuid::nil(), with_steps: false })
    }

    pub fn with_steps(self) -> Self {
        Self { with_steps: true, ..self }
    }

    /// Resets the cursor: a row that commits late may be due before rows already claimed.
    pub fn rewind(&mut self) {
        (self.at, self.last) = ("-infinity".to_owned(), Uuid::nil());
    }

    /// Claims at most 100 rows. `None` if no row is due.
    pub async fn claim(&mut self) -> Res<Option<Batch>> {
        let token = Uuid::now_v7();
        let claim = sqlx::query(CLAIM).bind(&self.at).bind(self.last).bind(token).bind(self.with_steps);
        let rows = claim.fetch_all(&mut self.connection).await?;
        let ids: Vec<Uuid> = rows.iter().map(|row| row.try_get("id")).collect::<Result<_, _>>()?;
        let Some(row) = rows.last() else { return Ok(None) };
        (self.at, self.last) = (row.try_get("ready_at")?, row.try_get("id")?);
        Ok(Some(Batch { ids, token, rows }))
    }

    /// Claims and settles until `most` rows are done or none is left. Returns how many were
    /// settled.
    pub async fn drain(&mut self, most: usize) -> Res<usize> {
        let mut done = 0;
        while done < most {
            let Some(batch) = self.claim().await? else { break };
            done += batch.settle(&mut self.connection).await?;
        }
        Ok(done)
    }

    /// Closes the session, which then reports its cost to the statistics.
    async fn close(self) -> Res<()> {
        Ok(self.connection.close().await?)
    }
}

/// Drains over `--connections` connections.
pub async fn drain(url: &str, arguments: &Arguments) -> Res<Line> {
    match arguments.count("connections", 1) {
        1 => alone(url, "drain", arguments).await,
        connections => by_many(url, "drain", connections, arguments).await,
    }
}

/// Drains over one connection.
pub async fn alone(url: &str, figure: &str, arguments: &Arguments) -> Res<Line> {
    let jobs = arguments.count("jobs", 100_000);
    let made = Costs::of(url).await?;
    fill(url, jobs, 1000).await?;
    let enqueued = Costs::of(url).await?.wal_each(made, jobs);
    execute(&mut connect(url).await?, "vacuum analyze").await?;
    let before = Costs::when_all_have_told(url, 0).await?;
    let mut claimer = Claimer::open(url).await?;
    let began = Instant::now();
    claimer.drain(jobs).await?;
    let took = began.elapsed();
    claimer.close().await?;
    let after = Costs::when_all_have_told(url, 0).await?;
    let run = after.wal_each(before, jobs);
    check(url, "bare.outcome", jobs).await?;
    Ok(Line::rate(WHO, figure, arguments, jobs, took)
        .with("wal_enqueue", enqueued)
        .with("wal_run", run)
        .with("wal_bytes", enqueued + run)
        .with("commits", after.transactions_each(before, jobs))
        .noting("claims and settlements of 100, one connection, no bodies"))
}

/// Drains part of a longer queue over one connection, while the tables hold many other rows.
pub async fn of_backlog(url: &str, arguments: &Arguments) -> Res<Line> {
    let (jobs, queued) = (arguments.count("jobs", 50_000), arguments.count("queued", 20_000));
    let (finished, unknown) = (arguments.count("finished", 0), arguments.count("unknown", 0));
    let mut connection = session(url).await?;
    let ended = "with run as (insert into bare.run (id, job, queue, input) select id, 'j', 'q', $2::text::json from unnest($1::uuid[]) as u (id) returning id)
                 insert into bare.outcome (id, state, output) select id, 'completed', '{}' from run";
    rows(&mut connection, ended, finished, FILL).await?;
    let elsewhere = "with run as (insert into bare.run (id, job, queue, input) select id, 'u', 'u', $2::text::json from unnest($1::uuid[]) as u (id) returning id)
                     insert into bare.ready (queue, priority, id) select 'u', 0, id from run";
    rows(&mut connection, elsewhere, unknown, FILL).await?;
    fill(url, jobs + queued, FILL).await?;
    execute(&mut connection, "vacuum analyze").await?;
    let mut claimer = Claimer::open(url).await?;
    let began = Instant::now();
    let done = claimer.drain(jobs).await?;
    let took = began.elapsed();
    check(url, "bare.outcome", done + finished).await?;
    let notes = "claims and settlements of 100, one connection, no bodies; jobs that no worker serves are in another queue";
    Ok(Line::rate(WHO, "backlog", arguments, done, took).noting(notes))
}

/// One transaction inserts all rows and notifies a waiting claimer.
pub async fn one_transaction(url: &str, arguments: &Arguments) -> Res<Line> {
    let jobs = arguments.count("jobs", 10_000);
    let (mut claimer, mut listener) = (Claimer::open(url).await?, PgListener::connect(url).await?);
    listener.listen(CHANNEL).await?;
    let worker = tokio::spawn(async move {
        listener.recv().await?;
        claimer.drain(jobs).await
    });
    let mut connection = session(url).await?;
    execute(&mut connection, "begin").await?;
    rows(&mut connection, MAKE, jobs, 1000).await?;
    execute(&mut connection, &format!("notify {CHANNEL}")).await?;
    let since = now(&mut connect(url).await?).await?;
    execute(&mut connection, "commit").await?;
    worker.await??;
    let span = "select (extract(epoch from min(finished_at) - $1::timestamptz) * 1000)::float8,
                    extract(epoch from max(finished_at) - $1::timestamptz)::float8
                from bare.outcome";
    let (began, took): (f64, f64) = sqlx::query_as(span).bind(&since).fetch_one(&mut connection).await?;
    check(url, "bare.outcome", jobs).await?;
    Ok(Line::rate(WHO, "one-transaction", arguments, jobs, Duration::from_secs_f64(took))
        .with("began_ms", began)
        .noting("a notification, then claims and settlements of 100, one connection, no bodies; from the commit until the first is settled, and the last"))
}

/// Drains over as many connections as the engine's figure has processes.
pub async fn processes(url: &str, arguments: &Arguments) -> Res<Line> {
    by_many(url, "processes", arguments.count("processes", 4), arguments).await
}

async fn by_many(url: &str, figure: &str, connections: usize, arguments: &Arguments) -> Res<Line> {
    let jobs = arguments.count("jobs", 100_000);
    fill(url, jobs, 1000).await?;
    execute(&mut connect(url).await?, "vacuum analyze").await?;
    let start = Arc::new(Barrier::new(connections + 1));
    let mut tasks = Vec::new();
    for _ in 0..connections {
        let (mut claimer, start) = (Claimer::open(url).await?, Arc::clone(&start));
        tasks.push(tokio::spawn(async move {
            start.wait().await;
            claimer.drain(usize::MAX).await
        }));
    }
    start.wait().await;
    let began = Instant::now();
    for task in tasks {
        task.await??;
    }
    let took = began.elapsed();
    check(url, "bare.outcome", jobs).await?;
    Ok(Line::rate(WHO, figure, arguments, jobs, took)
        .noting("claims and settlements of 100, one connection each, in one process, no bodies"))
}

/// Opens a connection with the session settings of the limits.
pub async fn session(url: &str) -> Res<PgConnection> {
    let mut connection = connect(url).await?;
    execute(&mut connection, SESSION).await?;
    Ok(connection)
}

const MAKE: &str = "with run as (insert into bare.run (id, job, queue, input) select id, 'j', 'q', $2::text::json from unnest($1::uuid[]) as u (id) returning id)
                    insert into bare.ready (queue, priority, id) select 'q', 0, id from run";

async fn fill(url: &str, jobs: usize, batch: usize) -> Res<()> {
    let mut connection = session(url).await?;
    rows(&mut connection, MAKE, jobs, batch).await?;
    Ok(connection.close().await?)
}

/// Runs a statement that inserts rows for the ids `$1` with the payload `$2`.
pub async fn rows(connection: &mut PgConnection, statement: &'static str, n: usize, batch: usize) -> Res<()> {
    for first in (0..n).step_by(batch) {
        let ids: Vec<Uuid> = (first..(first + batch).min(n)).map(|_| Uuid::now_v7()).collect();
        sqlx::query(statement).bind(ids).bind(payload(first)).execute(&mut *connection).await?;
    }
    Ok(())
}
