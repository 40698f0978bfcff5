//! `graphile_worker`: stores jobs in `graphile_worker._private_jobs` and deletes complete ones.

use std::{
    future::Future,
    time::{Duration, Instant},
};

use graphile_worker::{
    IntoTaskHandlerResult, JobSpec, LocalQueueConfig, TaskHandler, Worker, WorkerContext, WorkerOptions,
    WorkerUtils,
};
use serde::{Deserialize, Serialize};
use sqlx::PgPool;
use tokio::{sync::Mutex, task::JoinHandle};

use crate::{
    Result,
    body::{self, Payload},
    database::{Completed, Database, Tables, pool},
    figure::Figure,
    peer::Peer,
};

/// Beside the slots: the listener, the fetches of the local queues, the completions.
/// `docs/src/operations/deployment.md`, "Pool and Concurrency": "Keep enough pool capacity for
/// polling, job updates, LISTEN/NOTIFY handling".
const WORKER_CONNECTIONS: u64 = 16;
/// The connections of one of up to 16 processes: sqlx's default.
const PROCESS_CONNECTIONS: u64 = 10;
/// "Multiple queues can improve throughput for very small high-volume jobs"
/// (`LocalQueueConfig::queue_count`). Its example has 4 queues of 1,250 jobs.
const LOCAL_QUEUE: usize = 1_250;
const LOCAL_QUEUES: usize = 4;
/// "A small value like 1-5ms is recommended" (`WorkerOptions::complete_job_batch_delay`). Of these,
/// 1 ms was the fastest.
const COMPLETE_BATCH_DELAY: Duration = Duration::from_millis(1);

/// Jobs per statement within one transaction.
const BATCH: usize = 1_000;

impl TaskHandler for Payload {
    const IDENTIFIER: &'static str = "job";

    async fn run(self, _context: WorkerContext) -> impl IntoTaskHandlerResult {
        body::started(&self);
        Ok::<(), String>(())
    }
}

/// A job that no worker serves.
#[derive(Clone, Serialize, Deserialize)]
#[serde(transparent)]
struct Unknown(Payload);

impl TaskHandler for Unknown {
    const IDENTIFIER: &'static str = "unknown";

    async fn run(self, _context: WorkerContext) -> impl IntoTaskHandlerResult {
        Ok::<(), String>(())
    }
}

/// A job that never ends in a process with [`hold`](crate::body::hold).
#[derive(Clone, Serialize, Deserialize)]
#[serde(transparent)]
struct Held(Payload);

impl TaskHandler for Held {
    const IDENTIFIER: &'static str = "held";

    async fn run(self, _context: WorkerContext) -> impl IntoTaskHandlerResult {
        body::held().await;
        Ok::<(), String>(())
    }
}

pub struct GraphileWorker {
    utils: WorkerUtils,
    clients: PgPool,
    figure: Figure,
    /// Created in advance, because its creation runs the migrations.
    worker: Mutex<Option<Worker>>,
}

impl Peer for GraphileWorker {
    const NAME: &'static str = "graphile_worker";
    const FIGURES: &'static [Figure] = &[
        Figure::Enqueue { jobs: 10_000, clients: 32 },
        Figure::Bulk { jobs: 100_000, batch: 1_000 },
        Figure::Drain { jobs: 50_000, concurrency: 64 },
        Figure::Backlog { jobs: 50_000, queued: 1_000_000, finished: 0, unknown: 0, concurrency: 64 },
        Figure::EnqueueTx { jobs: 10_000, clients: 32 },
        Figure::Idle { seconds: 30 },
        Figure::Costs { jobs: 20_000, concurrency: 64 },
        Figure::OneTransaction { jobs: 10_000, concurrency: 64 },
        Figure::Snapshot { jobs: 50_000, windows: 3, rate: 2_000, seconds: 60, concurrency: 64 },
        Figure::Processes { processes: 4, jobs: 100_000, concurrency: 64 },
        Figure::Memory { workflows: 512 },
        Figure::Latency { rate: 0, seconds: 10, concurrency: 16, queued: true, local: 0 },
    ];
    const TABLES: Tables = Tables {
        stored: "select count(*) from graphile_worker._private_jobs",
        unfinished: "select exists (select from graphile_worker._private_jobs)",
        completed: Completed::Deleted,
        steps: None,
        finish: None,
        resumed: None,
    };

    async fn open(url: &str, figure: Figure) -> Result<Self> {
        let clients = if let Figure::Enqueue { clients, .. } | Figure::EnqueueTx { clients, .. } = figure {
            clients
        } else if let Figure::Processes { .. } = figure {
            1
        } else {
            16
        };
        let own =
            if let Figure::Processes { .. } = figure { PROCESS_CONNECTIONS } else { WORKER_CONNECTIONS };
        let worker = options(figure).pg_pool(pool(url, own).await?).init().await?;
        let clients = pool(url, clients).await?;
        let utils = WorkerUtils::new(clients.clone(), "graphile_worker");
        Ok(Self { utils, clients, figure, worker: Mutex::new(Some(worker)) })
    }

    fn notes(&self) -> String {
        match self.figure {
            Figure::Drain { .. }
            | Figure::Costs { .. }
            | Figure::Backlog { .. }
            | Figure::OneTransaction { .. }
            | Figure::Snapshot { .. }
            | Figure::Processes { .. }
            | Figure::Latency { local: 1, .. } => format!(
                "{LOCAL_QUEUES} local queues of {}, completions batched for {COMPLETE_BATCH_DELAY:?}, no recovery of dead workers; a complete job is deleted",
                local_queue(self.figure)
            ),
            Figure::Latency { .. } | Figure::Idle { .. } => {
                "default settings: notifications, no local queue".to_owned()
            }
            Figure::Memory { .. } => "a job each, without recorded steps; the direct fetch".to_owned(),
            Figure::Enqueue { .. } => "WorkerUtils::add_job".to_owned(),
            Figure::EnqueueTx { .. } => "WorkerUtils::with_executor, add_job".to_owned(),
            _ => "WorkerUtils::add_jobs".to_owned(),
        }
    }

    async fn enqueue(&self, job: Payload) -> Result<()> {
        self.utils.add_job(job, JobSpec::default()).await?;
        Ok(())
    }

    async fn enqueue_with_row(&self, number: i64, job: Payload) -> Result<()> {
        let mut tx = self.clients.begin().await?;
        sqlx::query("insert into business values ($1)").bind(number).execute(&mut *tx).await?;
        self.utils.clone().with_executor(&mut *tx).add_job(job, JobSpec::default()).await?;
        Ok(tx.commit().await?)
    }

    fn enqueue_batch(&self, jobs: Vec<Payload>) -> Option<impl Future<Output = Result<()>>> {
        Some(async {
            let spec = JobSpec::default();
            let jobs: Vec<_> = jobs.into_iter().map(|job| (job, &spec)).collect();
            self.utils.add_jobs(&jobs).await?;
            Ok(())
        })
    }

    async fn enqueue_together(&self, jobs: u64) -> Result<Instant> {
        let (mut tx, spec) = (self.clients.begin().await?, JobSpec::default());
        for first in (0..jobs).step_by(BATCH) {
            let batch = Payload::batch(first..jobs.min(first + BATCH as u64));
            let batch: Vec<_> = batch.into_iter().map(|job| (job, &spec)).collect();
            self.utils.clone().with_executor(&mut *tx).add_jobs(&batch).await?;
        }
        let began = Instant::now();
        tx.commit().await?;
        Ok(began)
    }

    async fn enqueue_unknown(&self, jobs: Vec<Payload>) -> Result<()> {
        let spec = JobSpec::default();
        let jobs: Vec<_> = jobs.into_iter().map(|job| (Unknown(job), &spec)).collect();
        self.utils.add_jobs(&jobs).await?;
        Ok(())
    }

    async fn enqueue_held(&self, n: u64, database: &mut Database) -> Result<()> {
        let spec = JobSpec::default();
        let jobs: Vec<_> = Payload::batch(0..n).into_iter().map(|job| (Held(job), &spec)).collect();
        self.utils.add_jobs(&jobs).await?;
        let held = "select count(*) from graphile_worker._private_jobs where locked_at is not null";
        database.until(held, n).await
    }

    async fn work(&self, _concurrency: u64) -> Result<JoinHandle<Result<()>>> {
        let worker = self.worker.lock().await.take().ok_or("there is one worker")?;
        Ok(tokio::spawn(async move { Ok(worker.run().await?) }))
    }
}

/// Divides the example's size by the number of processes. Otherwise the first ones would claim
/// every job.
fn local_queue(figure: Figure) -> usize {
    let Figure::Processes { processes, .. } = figure else { return LOCAL_QUEUE };
    LOCAL_QUEUE / (processes as usize).max(1)
}

fn options(figure: Figure) -> WorkerOptions {
    // The program does not need the worker's shutdown signals (`docs/src/operations/deployment.md`,
    // "Shutdown Signals").
    let options = WorkerOptions::default().define_job::<Payload>().listen_os_shutdown_signals(false);
    match figure {
        // `docs/src/configuration/worker-options.md`, "Throughput-oriented worker".
        Figure::Drain { concurrency, .. }
        | Figure::Costs { concurrency, .. }
        | Figure::Backlog { concurrency, .. }
        | Figure::OneTransaction { concurrency, .. }
        | Figure::Snapshot { concurrency, .. }
        | Figure::Processes { concurrency, .. }
        | Figure::Latency { concurrency, local: 1, .. } => options
            .concurrency(concurrency as usize)
            .complete_job_batch_delay(COMPLETE_BATCH_DELAY)
            .fail_job_batch_delay(COMPLETE_BATCH_DELAY)
            .local_queue(
                LocalQueueConfig::default().with_size(local_queue(figure)).with_queue_count(LOCAL_QUEUES),
            ),
        // `docs/src/guides/local-queue.md`: "For slow or rare jobs, the default direct database
        // fetch path is usually simpler".
        Figure::Latency { concurrency, .. } => options.concurrency(concurrency as usize),
        Figure::Memory { workflows } => options.define_job::<Held>().concurrency(workflows as usize),
        _ => options,
    }
}
