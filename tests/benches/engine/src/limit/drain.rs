//! Claims and settlements of a hundred, with fences and history, and nothing else.

use std::sync::Arc;
use std::time::Instant;

use sqlx::{PgConnection, Row};
use tokio::sync::Barrier;
use uuid::Uuid;

use super::{SESSION, WHO, check};
use crate::Res;
use crate::arguments::Arguments;
use crate::line::Line;
use crate::work::{Costs, connect, execute, payload};

const CLAIM: &str = "
    with due as (select ctid from bare.ready where queue = 'q' and priority = 0 and (ready_at, id) > ($1::text::timestamptz, $2) and ready_at <= now()
        order by queue, priority, ready_at, id limit 100 for update skip locked),
    gone as (delete from bare.ready using due where ready.ctid = due.ctid returning ready.id, ready.ready_at),
    held as (insert into bare.lease (id, token, worker) select id, $3, 1 from gone)
    select gone.id, run.input::text as input, gone.ready_at::text as ready_at from gone join bare.run on run.id = gone.id order by gone.ready_at, gone.id";

const SETTLE: &str = "
    with gone as (delete from bare.lease using unnest($1::uuid[]) as u (id) where lease.id = u.id and lease.token = $2 returning lease.id)
    insert into bare.outcome (id, state, output) select id, 'completed', '{}' from gone returning id";

/// Everything by one connection.
pub async fn alone(url: &str, arguments: &Arguments) -> Res<Line> {
    let jobs = arguments.count("jobs", 100_000);
    let made = Costs::of(url).await?;
    fill(url, jobs).await?;
    let enqueued = Costs::of(url).await?.wal_each(made, jobs);
    execute(&mut connect(url).await?, "vacuum analyze").await?;
    let before = Costs::of(url).await?;
    let began = Instant::now();
    work(session(url).await?, jobs).await?;
    let took = began.elapsed();
    let run = Costs::of(url).await?.wal_each(before, jobs);
    check(url, "bare.outcome", jobs).await?;
    Ok(Line::rate(WHO, "drain", arguments, jobs, took)
        .with("wal_enqueue", enqueued)
        .with("wal_run", run)
        .with("wal_bytes", enqueued + run)
        .noting("claims and settlements of 100, one connection, no bodies"))
}

/// Part of a longer queue by one connection.
pub async fn of_backlog(url: &str, arguments: &Arguments) -> Res<Line> {
    let (jobs, queued) = (arguments.count("jobs", 50_000), arguments.count("queued", 20_000));
    fill(url, jobs + queued).await?;
    execute(&mut connect(url).await?, "vacuum analyze").await?;
    let began = Instant::now();
    let done = work(session(url).await?, jobs).await?;
    let took = began.elapsed();
    check(url, "bare.outcome", done).await?;
    Ok(Line::rate(WHO, "backlog", arguments, done, took)
        .noting("claims and settlements of 100, one connection, no bodies"))
}

/// Everything by as many connections as there are processes elsewhere.
pub async fn by_many(url: &str, arguments: &Arguments) -> Res<Line> {
    let (processes, jobs) = (arguments.count("processes", 4), arguments.count("jobs", 100_000));
    fill(url, jobs).await?;
    execute(&mut connect(url).await?, "vacuum analyze").await?;
    let start = Arc::new(Barrier::new(processes + 1));
    let mut tasks = Vec::new();
    for _ in 0..processes {
        let (connection, start) = (session(url).await?, Arc::clone(&start));
        tasks.push(tokio::spawn(async move {
            start.wait().await;
            work(connection, usize::MAX).await
        }));
    }
    start.wait().await;
    let began = Instant::now();
    for task in tasks {
        task.await??;
    }
    let took = began.elapsed();
    check(url, "bare.outcome", jobs).await?;
    Ok(Line::rate(WHO, "processes", arguments, jobs, took)
        .noting("claims and settlements of 100, one connection each, in one process, no bodies"))
}

async fn session(url: &str) -> Res<PgConnection> {
    let mut connection = connect(url).await?;
    execute(&mut connection, SESSION).await?;
    Ok(connection)
}

async fn fill(url: &str, jobs: usize) -> Res<()> {
    let mut connection = session(url).await?;
    let fill = "with run as (insert into bare.run (id, job, queue, input) select id, 'j', 'q', $2::text::json from unnest($1::uuid[]) as u (id) returning id)
                insert into bare.ready (queue, priority, id) select 'q', 0, id from run";
    for first in (0..jobs).step_by(1000) {
        let ids: Vec<Uuid> = (first..(first + 1000).min(jobs)).map(|_| Uuid::now_v7()).collect();
        sqlx::query(fill).bind(ids).bind(payload(first)).execute(&mut connection).await?;
    }
    Ok(())
}

/// Claims from a remembered position and settles, until that many are done or nothing is left; gives how many were.
async fn work(mut connection: PgConnection, most: usize) -> Res<usize> {
    let (mut at, mut last, mut done) = ("-infinity".to_owned(), Uuid::nil(), 0);
    while done < most {
        let token = Uuid::now_v7();
        let rows = sqlx::query(CLAIM).bind(&at).bind(last).bind(token).fetch_all(&mut connection).await?;
        let ids: Vec<Uuid> = rows.iter().map(|row| row.try_get("id")).collect::<Result<_, _>>()?;
        let Some(row) = rows.last() else { break };
        (at, last) = (row.try_get("ready_at")?, row.try_get("id")?);
        done += sqlx::query(SETTLE).bind(ids).bind(token).fetch_all(&mut connection).await?.len();
    }
    Ok(done)
}
