//! Measures each figure, with the same code for every peer.

mod costs;
mod processes;
mod snapshot;

use std::{
    collections::HashMap,
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::{
    sync::mpsc,
    task::{JoinHandle, JoinSet},
    time::{MissedTickBehavior, interval, sleep, timeout},
};

use crate::{
    Result,
    body::{self, Payload},
    database::Database,
    figure::{Figure, Outcome},
    peer::Peer,
};

/// The batch size and the clients that fill a queue, untimed.
const FILL_BATCH: u64 = 1_000;
const FILL_CLIENTS: u64 = 16;
/// The slots of an idle worker.
pub const IDLE_SLOTS: u64 = 16;
/// After this time every session has reported its earlier work to the server's statistics.
const TOLD: Duration = Duration::from_secs(12);
/// The pause between two jobs on an idle system.
const IDLE: Duration = Duration::from_millis(20);
/// A job that has not started after this time counts as lost.
const LOST: Duration = Duration::from_secs(60);

/// Measures one figure of one peer once. Returns the result and the peer's notes.
pub async fn measure<P: Peer>(url: String, figure: Figure) -> Result<(Outcome, String)> {
    let peer = Arc::new(P::open(&url, figure).await?);
    let mut database = Database::open(&url, const { &P::TABLES }).await?;
    if database.stored().await? != 0 {
        return Err("the database is not a fresh one: it has jobs of this peer".into());
    }
    let outcome = match figure {
        Figure::Enqueue { jobs, clients } => enqueue(&peer, &mut database, jobs, clients).await?,
        Figure::EnqueueTx { jobs, clients } => enqueue_tx(&peer, &mut database, jobs, clients).await?,
        Figure::Bulk { jobs, batch } => bulk(&peer, &mut database, jobs, batch).await?,
        Figure::Drain { jobs, concurrency } => drain(&peer, &mut database, jobs, concurrency).await?,
        Figure::Costs { jobs, .. } => costs::jobs(&peer, &mut database, &url, jobs).await?,
        Figure::Backlog { jobs, queued, finished, unknown, concurrency } => {
            beside(&peer, &mut database, finished, unknown).await?;
            backlog(&peer, &mut database, jobs, queued, concurrency).await?
        }
        Figure::OneTransaction { jobs, concurrency } => {
            let worker = listening(&peer, &mut database, concurrency).await?;
            let took = together(&peer, &mut database, jobs, &worker).await?;
            database.expect_completed(jobs + 1).await?;
            Outcome::rate(jobs, took)
        }
        Figure::Snapshot { .. } => snapshot::snapshot(&peer, &mut database, &url, figure).await?,
        Figure::Processes { processes, jobs, .. } => {
            processes::share(&peer, &mut database, processes, jobs).await?
        }
        Figure::Memory { workflows } => processes::memory(&peer, &mut database, workflows).await?,
        Figure::Recovery { workflows, restart: 1 } => {
            processes::recovery(&peer, &mut database, workflows).await?
        }
        Figure::Recovery { .. } => return Err("only a restart is measured of peers".into()),
        Figure::Idle { seconds } => idle(&peer, &mut database, &url, Duration::from_secs(seconds)).await?,
        Figure::Workflows { workflows: n, steps, concurrency } => {
            workflows(&peer, &mut database, n, steps, concurrency).await?
        }
        Figure::StepCosts { workflows: n, steps, concurrency } => {
            costs::steps(&peer, &mut database, &url, n, steps, concurrency).await?
        }
        Figure::Step { steps } => workflows(&peer, &mut database, 1, steps, 1).await?,
        Figure::Latency { rate, seconds, concurrency, .. } => {
            latency(&peer, &mut database, rate, Duration::from_secs(seconds), concurrency).await?
        }
    };
    Ok((outcome, peer.notes()))
}

/// Runs `work` for each number below `n`, in `clients` tasks that take one number after the other.
pub async fn clients<F, Fut>(n: u64, clients: u64, work: F) -> Result<()>
where
    F: Fn(u64) -> Fut + Clone + Send + 'static,
    Fut: Future<Output = Result<()>> + Send,
{
    let next = Arc::new(AtomicU64::new(0));
    let mut tasks: JoinSet<Result<()>> = JoinSet::new();
    for _ in 0..clients {
        let (next, work) = (Arc::clone(&next), work.clone());
        tasks.spawn(async move {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= n {
                    return Ok(());
                }
                work(number).await?;
            }
        });
    }
    while let Some(task) = tasks.join_next().await {
        task??;
    }
    Ok(())
}

async fn enqueue<P: Peer>(peer: &Arc<P>, database: &mut Database, jobs: u64, n: u64) -> Result<Outcome> {
    let began = Instant::now();
    fill_singly(peer, jobs, n).await?;
    let took = began.elapsed();
    database.expect_stored(jobs).await?;
    Ok(Outcome::rate(jobs, took))
}

async fn bulk<P: Peer>(peer: &Arc<P>, database: &mut Database, jobs: u64, batch: u64) -> Result<Outcome> {
    let began = Instant::now();
    if !fill_by_batches(peer, jobs, batch).await? {
        return Err(format!("{} has no bulk enqueue", P::NAME).into());
    }
    let took = began.elapsed();
    database.expect_stored(jobs).await?;
    Ok(Outcome::rate(jobs, took))
}

async fn enqueue_tx<P: Peer>(peer: &Arc<P>, database: &mut Database, jobs: u64, n: u64) -> Result<Outcome> {
    database.make_business().await?;
    let began = Instant::now();
    let entrance = Arc::clone(peer);
    clients(jobs, n, move |number| {
        let peer = Arc::clone(&entrance);
        async move { peer.enqueue_with_row(i64::try_from(number)?, Payload::new(number)).await }
    })
    .await?;
    let took = began.elapsed();
    database.expect_stored(jobs).await?;
    Ok(Outcome::rate(jobs, took))
}

async fn drain<P: Peer>(peer: &Arc<P>, database: &mut Database, jobs: u64, slots: u64) -> Result<Outcome> {
    let made = database.wal().await?;
    fill(peer, database, jobs).await?;
    let enqueued = database.wal().await? - made;
    database.settle().await?;

    let before = database.wal().await?;
    let began = Instant::now();
    let worker = peer.work(slots).await?;
    database.finished(jobs, &worker).await?;
    let took = began.elapsed();
    database.expect_completed(jobs).await?;
    let ran = database.wal().await? - before;
    let each = |bytes: u64| bytes as f64 / jobs as f64;
    Ok(Outcome::rate(jobs, took)
        .with("wal_enqueue", each(enqueued))
        .with("wal_run", each(ran))
        .with("wal_bytes", each(enqueued + ran)))
}

async fn backlog<P: Peer>(
    peer: &Arc<P>,
    database: &mut Database,
    jobs: u64,
    queued: u64,
    slots: u64,
) -> Result<Outcome> {
    fill(peer, database, jobs + queued).await?;
    database.settle().await?;
    let began = Instant::now();
    let worker = peer.work(slots).await?;
    let (completed, when) = database.part_of(jobs, jobs + queued, &worker).await?;
    Ok(Outcome::rate(completed, when - began))
}

/// Creates finished jobs and jobs that no worker serves, before any worker starts.
async fn beside<P: Peer>(peer: &Arc<P>, database: &mut Database, finished: u64, unknown: u64) -> Result<()> {
    if finished > 0 {
        fill(peer, database, finished).await?;
        database.finish_all().await?;
        database.ignore(finished);
    }
    for first in (0..unknown).step_by(usize::try_from(FILL_BATCH)?) {
        peer.enqueue_unknown(Payload::batch(first..unknown.min(first + FILL_BATCH))).await?;
    }
    database.ignore(unknown);
    Ok(())
}

/// Starts a worker and waits until it has run a job, so that it listens.
async fn listening<P: Peer>(
    peer: &Arc<P>,
    database: &mut Database,
    slots: u64,
) -> Result<JoinHandle<Result<()>>> {
    let worker = peer.work(slots).await?;
    peer.enqueue(Payload::new(0)).await?;
    database.finished(1, &worker).await?;
    Ok(worker)
}

/// The time from the commit of `jobs` jobs until all are complete.
async fn together<P: Peer>(
    peer: &Arc<P>,
    database: &mut Database,
    jobs: u64,
    worker: &JoinHandle<Result<()>>,
) -> Result<Duration> {
    let ran = body::ran();
    let began = peer.enqueue_together(jobs).await?;
    Ok(database.finished(ran + jobs, worker).await? - began)
}

async fn idle<P: Peer>(
    peer: &Arc<P>,
    database: &mut Database,
    url: &str,
    length: Duration,
) -> Result<Outcome> {
    let worker = peer.work(IDLE_SLOTS).await?;
    peer.enqueue(Payload::new(0)).await?;
    database.finished(1, &worker).await?;
    sleep(TOLD).await;
    let ((_, before), began) = (database.costs(url).await?, Instant::now());
    sleep(length).await;
    let n = database.costs(url).await?.1 - before;
    Ok(Outcome::named(n, began.elapsed()).with("queries", n as f64 / began.elapsed().as_secs_f64()))
}

async fn workflows<P: Peer>(
    peer: &Arc<P>,
    database: &mut Database,
    workflows: u64,
    steps: u64,
    concurrency: u64,
) -> Result<Outcome> {
    let all = workflows * steps;
    let began = Instant::now();
    let worker = peer.workflows(workflows, steps, concurrency).await?;
    database.finished(all, &worker).await?;
    let took = began.elapsed();
    // The worker would poll forever.
    worker.abort();
    database.expect_steps(all).await?;
    Ok(Outcome::rate(all, took))
}

async fn latency<P: Peer>(
    peer: &Arc<P>,
    database: &mut Database,
    rate: u64,
    length: Duration,
    slots: u64,
) -> Result<Outcome> {
    let expected =
        if rate == 0 { length.as_millis() / IDLE.as_millis() } else { u128::from(rate * length.as_secs()) };
    let mut starts = body::watch(usize::try_from(expected)? + 2);
    let worker = peer.work(slots).await?;

    // The worker listens once it has run a job.
    peer.enqueue(Payload::new(0)).await?;
    next_start(&mut starts, &worker).await?;

    let began = Instant::now();
    let waits = if rate == 0 {
        one_at_a_time(peer, &mut starts, &worker, length).await?
    } else {
        at_a_rate(peer, &mut starts, &worker, rate, length).await?
    };
    let took = began.elapsed();
    let jobs = waits.len() as u64 + 1;
    database.finished(jobs, &worker).await?;
    database.expect_completed(jobs).await?;
    Ok(Outcome::waits(waits, took))
}

async fn one_at_a_time<P: Peer>(
    peer: &Arc<P>,
    starts: &mut mpsc::Receiver<(u64, Instant)>,
    worker: &JoinHandle<Result<()>>,
    length: Duration,
) -> Result<Vec<Duration>> {
    let (began, mut waits) = (Instant::now(), Vec::new());
    while began.elapsed() < length {
        sleep(IDLE).await;
        let called = Instant::now();
        peer.enqueue(Payload::new(waits.len() as u64 + 1)).await?;
        let (_, started) = next_start(starts, worker).await?;
        waits.push(started - called);
    }
    Ok(waits)
}

/// Enqueues each job in its own task, so that a slow enqueue delays no other.
async fn at_a_rate<P: Peer>(
    peer: &Arc<P>,
    starts: &mut mpsc::Receiver<(u64, Instant)>,
    worker: &JoinHandle<Result<()>>,
    rate: u64,
    length: Duration,
) -> Result<Vec<Duration>> {
    let jobs = rate * length.as_secs();
    let mut calls = JoinSet::new();
    let mut ticks = interval(Duration::from_secs(1) / u32::try_from(rate)?);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    for number in 1..=jobs {
        ticks.tick().await;
        let peer = Arc::clone(peer);
        calls.spawn(async move {
            let called = Instant::now();
            peer.enqueue(Payload::new(number)).await.map(|()| (number, called))
        });
    }
    let mut called = HashMap::new();
    while let Some(call) = calls.join_next().await {
        let (number, instant) = call??;
        called.insert(number, instant);
    }
    let mut waits = Vec::new();
    for _ in 0..jobs {
        let (number, started) = next_start(starts, worker).await?;
        let called = called.remove(&number).ok_or_else(|| format!("job {number} ran twice"))?;
        waits.push(started - called);
    }
    Ok(waits)
}

async fn next_start(
    starts: &mut mpsc::Receiver<(u64, Instant)>,
    worker: &JoinHandle<Result<()>>,
) -> Result<(u64, Instant)> {
    match timeout(LOST, starts.recv()).await {
        Ok(Some(start)) => Ok(start),
        Ok(None) | Err(_) if worker.is_finished() => Err("the worker stopped".into()),
        Ok(None) | Err(_) => Err(format!("a job did not start in {LOST:?}").into()),
    }
}

async fn fill_singly<P: Peer>(peer: &Arc<P>, jobs: u64, n: u64) -> Result<()> {
    let peer = Arc::clone(peer);
    clients(jobs, n, move |number| {
        let peer = Arc::clone(&peer);
        async move { peer.enqueue(Payload::new(number)).await }
    })
    .await
}

/// Enqueues as fast as the peer can.
async fn fill<P: Peer>(peer: &Arc<P>, database: &mut Database, jobs: u64) -> Result<()> {
    if !fill_by_batches(peer, jobs, FILL_BATCH).await? {
        fill_singly(peer, jobs, FILL_CLIENTS).await?;
    }
    database.expect_stored(jobs).await
}

/// Returns false if the peer has no bulk enqueue.
async fn fill_by_batches<P: Peer>(peer: &Arc<P>, jobs: u64, batch: u64) -> Result<bool> {
    for first in (0..jobs).step_by(usize::try_from(batch)?.max(1)) {
        let Some(enqueued) = peer.enqueue_batch(Payload::batch(first..jobs.min(first + batch))) else {
            return Ok(false);
        };
        enqueued.await?;
    }
    Ok(true)
}
