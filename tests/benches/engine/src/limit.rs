//! The limits: the bare SQL of the same work, through the same driver, without an engine around it.

use std::sync::Arc;
use std::time::Instant;

use sqlx::postgres::PgPoolCopyExt;
use sqlx::{PgPool, Row};
use tokio::sync::{Mutex, mpsc, oneshot};
use uuid::Uuid;

use crate::Res;
use crate::arguments::Arguments;
use crate::line::Line;
use crate::work::{connect, execute, number, payload, share};

/// What can be measured.
pub const FIGURES: &[&str] = &["enqueue", "bulk", "drain", "workflows", "step"];

const WHO: &str = "limit";

/// The shape of a queue with history: an immutable run, and narrow rows that come and go.
const SCHEMA: &str = "
    create schema bare;
    create table bare.run (id uuid primary key, job text not null, queue text not null, input json, created_at timestamptz not null default now());
    create table bare.outcome (id uuid primary key, state text not null, output json, finished_at timestamptz not null default now());
    create table bare.ready (queue text not null, priority smallint not null, ready_at timestamptz not null default now(), id uuid not null);
    create index on bare.ready (queue, priority, ready_at, id);
    create table bare.lease (id uuid primary key, token uuid not null, worker bigint not null, claimed_at timestamptz not null default now());
    create table bare.step (run_id uuid, key text, output json, created_at timestamptz not null default now(), primary key (run_id, key))";

const SESSION: &str = "set enable_hashjoin = off; set enable_mergejoin = off; set enable_seqscan = off; set plan_cache_mode = force_generic_plan";

/// Measures one figure.
pub async fn measure(figure: &str, url: &str, arguments: &Arguments) -> Res<Line> {
    execute(&mut connect(url).await?, SCHEMA).await?;
    match figure {
        "enqueue" => enqueue(url, arguments).await,
        "bulk" => bulk(url, arguments).await,
        "drain" => drain(url, arguments).await,
        "workflows" => workflows(url, arguments).await,
        "step" => step(url, arguments).await,
        other => Err(format!("there is no limit of `{other}`; there are {FIGURES:?}").into()),
    }
}

/// One row into one table, one commit, from connections of their own.
async fn enqueue(url: &str, arguments: &Arguments) -> Res<Line> {
    let (jobs, clients) = (arguments.count("jobs", 20_000), arguments.count("clients", 32));
    let mut connections = Vec::new();
    for _ in 0..clients {
        connections.push(Arc::new(Mutex::new(connect(url).await?)));
    }
    let took = share(clients, jobs, |task| {
        let connection = Arc::clone(&connections[task]);
        move |n| {
            let connection = Arc::clone(&connection);
            async move {
                let insert = sqlx::query(
                    "insert into bare.run (id, job, queue, input) values ($1, 'j', 'q', $2::text::json)",
                );
                insert.bind(Uuid::now_v7()).bind(payload(n)).execute(&mut *connection.lock().await).await?;
                Ok(())
            }
        }
    })
    .await?;
    Ok(Line::rate(WHO, "enqueue", arguments, jobs, took).noting("one insert into one table a commit"))
}

/// `COPY` into one table from one connection.
async fn bulk(url: &str, arguments: &Arguments) -> Res<Line> {
    let (jobs, batch) = (arguments.count("jobs", 100_000), arguments.count("batch", 1000));
    let pool = PgPool::connect(url).await?;
    let began = Instant::now();
    for first in (0..jobs).step_by(batch) {
        let mut rows = String::new();
        for n in first..(first + batch).min(jobs) {
            let line = payload(n);
            rows.push_str(&format!("{}\tj\tq\t{line}\n", Uuid::now_v7()));
        }
        let mut copy = pool.copy_in_raw("copy bare.run (id, job, queue, input) from stdin").await?;
        copy.send(rows.as_bytes()).await?;
        copy.finish().await?;
    }
    Ok(Line::rate(WHO, "bulk", arguments, jobs, began.elapsed())
        .noting("copy into one table, one commit a batch"))
}

/// One process claims a hundred from a remembered position and settles a hundred, with fences and history.
async fn drain(url: &str, arguments: &Arguments) -> Res<Line> {
    let jobs = arguments.count("jobs", 100_000);
    let mut connection = connect(url).await?;
    execute(&mut connection, SESSION).await?;
    let fill = "with run as (insert into bare.run (id, job, queue, input) select id, 'j', 'q', $2::text::json from unnest($1::uuid[]) as u (id) returning id)
                insert into bare.ready (queue, priority, id) select 'q', 0, id from run";
    for first in (0..jobs).step_by(1000) {
        let ids: Vec<Uuid> = (first..(first + 1000).min(jobs)).map(|_| Uuid::now_v7()).collect();
        sqlx::query(fill).bind(ids).bind(payload(first)).execute(&mut connection).await?;
    }
    execute(&mut connection, "analyze").await?;
    let claim = "with due as (select ctid from bare.ready where queue = 'q' and priority = 0 and (ready_at, id) > ($1::text::timestamptz, $2) and ready_at <= now()
                     order by queue, priority, ready_at, id limit 100 for update skip locked),
                 gone as (delete from bare.ready using due where ready.ctid = due.ctid returning ready.id, ready.ready_at),
                 held as (insert into bare.lease (id, token, worker) select id, $3, 1 from gone)
                 select gone.id, run.input::text as input, gone.ready_at::text as ready_at from gone join bare.run on run.id = gone.id order by gone.ready_at, gone.id";
    let settle = "with gone as (delete from bare.lease using unnest($1::uuid[]) as u (id) where lease.id = u.id and lease.token = $2 returning lease.id)
                  insert into bare.outcome (id, state, output) select id, 'completed', '{}' from gone returning id";
    let (mut at, mut last, mut done) = ("-infinity".to_owned(), Uuid::nil(), 0);
    let began = Instant::now();
    while done < jobs {
        let token = Uuid::now_v7();
        let rows = sqlx::query(claim).bind(&at).bind(last).bind(token).fetch_all(&mut connection).await?;
        let ids: Vec<Uuid> = rows.iter().map(|row| row.try_get("id")).collect::<Result<_, _>>()?;
        if let Some(row) = rows.last() {
            (at, last) = (row.try_get("ready_at")?, row.try_get("id")?);
        }
        done += sqlx::query(settle).bind(ids).bind(token).fetch_all(&mut connection).await?.len();
    }
    Ok(Line::rate(WHO, "drain", arguments, jobs, began.elapsed())
        .noting("claims and settlements of 100, one connection, no bodies"))
}

/// A checkpoint under way.
struct Checkpoint {
    run_id: Uuid,
    key: String,
    output: String,
    acknowledge: oneshot::Sender<()>,
}

/// The journal alone: every step awaits its own commit; two writers send what gathers meanwhile. No claims, no settlements.
async fn workflows(url: &str, arguments: &Arguments) -> Res<Line> {
    let (workflows, concurrency) = (arguments.count("workflows", 5000), arguments.count("concurrency", 256));
    let (steps, writers) = (arguments.count("steps", 10), arguments.count("writers", 2));
    let token = Uuid::now_v7();
    let runs: Arc<[Uuid]> = (0..workflows).map(|_| Uuid::now_v7()).collect();
    let mut connection = connect(url).await?;
    let lease =
        "insert into bare.lease (id, token, worker) select id, $2, 1 from unnest($1::uuid[]) as u (id)";
    sqlx::query(lease).bind(runs.to_vec()).bind(token).execute(&mut connection).await?;
    let (sender, receiver) = mpsc::channel::<Checkpoint>(4096);
    let receiver = Arc::new(Mutex::new(receiver));
    for _ in 0..writers {
        tokio::spawn(write(connect(url).await?, Arc::clone(&receiver), token));
    }
    let took = share(concurrency, workflows, |_| {
        let (sender, runs) = (sender.clone(), Arc::clone(&runs));
        move |n| {
            let (sender, run_id) = (sender.clone(), runs[n]);
            async move {
                for step in 0..steps {
                    let output = payload(step);
                    let (acknowledge, acknowledged) = oneshot::channel();
                    let key = format!("step#{step}");
                    sender
                        .send(Checkpoint { run_id, key, output, acknowledge })
                        .await
                        .map_err(|_| "the writers are gone")?;
                    acknowledged.await?;
                }
                Ok(())
            }
        }
    })
    .await?;
    let written = number(&mut connection, "select count(*) from bare.step").await?;
    if usize::try_from(written)? != workflows * steps {
        return Err(format!("{written} steps are recorded").into());
    }
    Ok(Line::rate(WHO, "workflows", arguments, workflows * steps, took)
        .noting("fenced checkpoints only: no enqueue, claim or settlement"))
}

async fn write(
    mut connection: sqlx::PgConnection,
    items: Arc<Mutex<mpsc::Receiver<Checkpoint>>>,
    token: Uuid,
) -> Res<()> {
    execute(&mut connection, SESSION).await?;
    let insert = "insert into bare.step (run_id, key, output)
                  select u.run_id, u.key, u.output::json from unnest($1::uuid[], $2::text[], $3::text[]) as u (run_id, key, output)
                  where exists (select from bare.lease where lease.id = u.run_id and lease.token = $4)
                  on conflict do nothing";
    let mut batch = Vec::with_capacity(512);
    while items.lock().await.recv_many(&mut batch, 512).await > 0 {
        let query = sqlx::query(insert)
            .bind(batch.iter().map(|item| item.run_id).collect::<Vec<_>>())
            .bind(batch.iter().map(|item| item.key.as_str()).collect::<Vec<_>>())
            .bind(batch.iter().map(|item| item.output.as_str()).collect::<Vec<_>>())
            .bind(token);
        query.execute(&mut connection).await?;
        for item in batch.drain(..) {
            let _ = item.acknowledge.send(());
        }
    }
    Ok(())
}

/// One row a commit, one after the other.
async fn step(url: &str, arguments: &Arguments) -> Res<Line> {
    let steps = arguments.count("steps", 2000);
    let mut connection = connect(url).await?;
    let run_id = Uuid::now_v7();
    let began = Instant::now();
    for n in 0..steps {
        let insert =
            sqlx::query("insert into bare.step (run_id, key, output) values ($1, $2, $3::text::json)");
        insert.bind(run_id).bind(format!("step#{n}")).bind(payload(n)).execute(&mut connection).await?;
    }
    Ok(Line::rate(WHO, "step", arguments, steps, began.elapsed()).noting("one insert a commit, no fence"))
}
