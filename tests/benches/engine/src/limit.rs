//! The limits: the bare SQL of the same work through the same driver, without an engine.

mod drain;
mod due;
mod latency;

use std::sync::Arc;
use std::time::Instant;

use sqlx::postgres::PgPoolCopyExt;
use sqlx::{Connection, PgConnection, PgPool};
use tokio::sync::{Mutex, mpsc, oneshot};
use uuid::Uuid;

use crate::Res;
use crate::arguments::Arguments;
use crate::line::Line;
use crate::work::{Costs, connect, execute, number, payload, share};

pub const FIGURES: &[&str] = &[
    "enqueue",
    "enqueue-tx",
    "bulk",
    "drain",
    "costs",
    "workflows",
    "step-costs",
    "step",
    "latency",
    "backlog",
    "one-transaction",
    "snapshot",
    "sleepers",
    "processes",
];

const WHO: &str = "limit";

/// A queue with history: immutable runs, and narrow rows that are inserted and deleted.
const SCHEMA: &str = "
    create schema bare;
    create table bare.run (id uuid primary key, job text not null, queue text not null, input json, created_at timestamptz not null default now());
    create table bare.outcome (id uuid primary key, state text not null, output json, finished_at timestamptz not null default now());
    create table bare.ready (queue text not null, priority smallint not null, ready_at timestamptz not null default now(), id uuid not null);
    create index on bare.ready (queue, priority, ready_at, id);
    create table bare.lease (id uuid primary key, token uuid not null, worker bigint not null, claimed_at timestamptz not null default now());
    create table bare.step (run_id uuid, key text, output json, created_at timestamptz not null default now(), primary key (run_id, key))";

const INSERT: &str = "insert into bare.run (id, job, queue, input) values ($1, 'j', 'q', $2::text::json)";

const SESSION: &str = "set enable_hashjoin = off; set enable_mergejoin = off; set enable_seqscan = off; set enable_bitmapscan = off; set plan_cache_mode = force_generic_plan";

pub async fn measure(figure: &str, url: &str, arguments: &Arguments) -> Res<Line> {
    execute(&mut connect(url).await?, SCHEMA).await?;
    match figure {
        "enqueue" => enqueue(url, arguments).await,
        "enqueue-tx" => enqueue_tx(url, arguments).await,
        "bulk" => bulk(url, arguments).await,
        "drain" => drain::drain(url, arguments).await,
        "costs" => drain::alone(url, figure, arguments).await,
        "backlog" => drain::of_backlog(url, arguments).await,
        "processes" => drain::processes(url, arguments).await,
        "workflows" | "step-costs" => workflows(url, figure, arguments).await,
        "latency" => latency::measure(url, arguments).await,
        "one-transaction" => drain::one_transaction(url, arguments).await,
        "snapshot" => due::snapshot(url, arguments).await,
        "sleepers" => due::sleepers(url, arguments).await,
        "step" => step(url, arguments).await,
        other => Err(format!("there is no limit of `{other}`; there are {FIGURES:?}").into()),
    }
}

/// Opens one connection per client.
async fn connections(url: &str, clients: usize) -> Res<Vec<Arc<Mutex<PgConnection>>>> {
    let mut connections = Vec::new();
    for _ in 0..clients {
        connections.push(Arc::new(Mutex::new(connect(url).await?)));
    }
    Ok(connections)
}

/// Inserts one row per commit into one table, each client on its own connection.
async fn enqueue(url: &str, arguments: &Arguments) -> Res<Line> {
    let (jobs, clients) = (arguments.count("jobs", 20_000), arguments.count("clients", 32));
    let connections = connections(url, clients).await?;
    let took = share(clients, jobs, |task| {
        let connection = Arc::clone(&connections[task]);
        move |n| {
            let connection = Arc::clone(&connection);
            async move {
                let insert = sqlx::query(INSERT);
                insert.bind(Uuid::now_v7()).bind(payload(n)).execute(&mut *connection.lock().await).await?;
                Ok(())
            }
        }
    })
    .await?;
    check(url, "bare.run", jobs).await?;
    Ok(Line::rate(WHO, "enqueue", arguments, jobs, took).noting("one insert into one table a commit"))
}

/// Inserts an application row and a queue row per commit.
async fn enqueue_tx(url: &str, arguments: &Arguments) -> Res<Line> {
    let (jobs, clients) = (arguments.count("jobs", 20_000), arguments.count("clients", 32));
    execute(&mut connect(url).await?, "create table business (id bigint primary key)").await?;
    let connections = connections(url, clients).await?;
    let took = share(clients, jobs, |task| {
        let connection = Arc::clone(&connections[task]);
        move |n| {
            let connection = Arc::clone(&connection);
            async move {
                let mut connection = connection.lock().await;
                let mut tx = connection.begin().await?;
                let row = sqlx::query("insert into business values ($1)").bind(i64::try_from(n)?);
                row.execute(&mut *tx).await?;
                sqlx::query(INSERT).bind(Uuid::now_v7()).bind(payload(n)).execute(&mut *tx).await?;
                Ok(tx.commit().await?)
            }
        }
    })
    .await?;
    check(url, "bare.run", jobs).await?;
    Ok(Line::rate(WHO, "enqueue-tx", arguments, jobs, took)
        .noting("two inserts into one table each, one commit"))
}

/// Copies (`COPY`) into one table from one connection.
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
    let took = began.elapsed();
    check(url, "bare.run", jobs).await?;
    Ok(Line::rate(WHO, "bulk", arguments, jobs, took).noting("copy into one table, one commit a batch"))
}

/// A step on its way to the database.
struct Checkpoint {
    run_id: Uuid,
    key: String,
    output: String,
    acknowledge: oneshot::Sender<()>,
}

/// Measures group commit alone: every step awaits its commit, and `--writers` writers each commit
/// what has queued. No claims, no outcomes.
async fn workflows(url: &str, figure: &str, arguments: &Arguments) -> Res<Line> {
    let (workflows, concurrency) = (arguments.count("workflows", 5000), arguments.count("concurrency", 256));
    let (steps, writers) = (arguments.count("steps", 10), arguments.count("writers", 2));
    let token = Uuid::now_v7();
    let runs: Arc<[Uuid]> = (0..workflows).map(|_| Uuid::now_v7()).collect();
    let mut connection = connect(url).await?;
    let lease =
        "insert into bare.lease (id, token, worker) select id, $2, 1 from unnest($1::uuid[]) as u (id)";
    sqlx::query(lease).bind(runs.to_vec()).bind(token).execute(&mut connection).await?;
    connection.close().await?;
    let before = Costs::when_all_have_told(url, 0).await?;
    let (sender, receiver) = mpsc::channel::<Checkpoint>(4096);
    let receiver = Arc::new(Mutex::new(receiver));
    let mut tasks = Vec::new();
    for _ in 0..writers {
        tasks.push(tokio::spawn(write(connect(url).await?, Arc::clone(&receiver), token)));
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
    check(url, "bare.step", workflows * steps).await?;
    drop(sender);
    for task in tasks {
        task.await??;
    }
    let after = Costs::when_all_have_told(url, 0).await?;
    Ok(Line::rate(WHO, figure, arguments, workflows * steps, took)
        .with("wal_bytes", after.wal_each(before, workflows * steps))
        .with("commits", after.transactions_each(before, workflows * steps))
        .noting("fenced checkpoints only: no enqueue, claim or settlement"))
}

async fn write(
    mut connection: PgConnection,
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
    Ok(connection.close().await?)
}

/// Inserts one row per commit, one after the other.
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
    let took = began.elapsed();
    check(url, "bare.step", steps).await?;
    Ok(Line::rate(WHO, "step", arguments, steps, took).noting("one insert a commit, no fence"))
}

/// Fails unless the table has exactly `n` rows.
async fn check(url: &str, table: &str, n: usize) -> Res<()> {
    let found = number(&mut connect(url).await?, &format!("select count(*) from {table}")).await?;
    if usize::try_from(found)? == n {
        Ok(())
    } else {
        Err(format!("{found} of {n} rows are in {table}").into())
    }
}
