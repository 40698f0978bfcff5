//! `riverqueue`: stores jobs in `river_job`.

use std::{
    future::Future,
    time::{Duration, Instant},
};

use riverqueue::{
    BoxError, Client, FETCH_COOLDOWN_MIN, Job, JobArgs, QueueConfig, WorkContext, WorkOutcome, Workers,
    database::begin_postgres, migrate::PostgresMigrator,
};
use serde::{Deserialize, Serialize};
use sqlx::PgPool;
use tokio::task::JoinHandle;

use crate::{
    Result,
    body::{self, Payload},
    database::{Completed, Tables, pool},
    figure::Figure,
    peer::Peer,
};

/// For the fetches, two batches of completions at a time, the listener and the leader's services.
const WORKER_CONNECTIONS: u64 = 16;
/// "How often the queue polls for jobs when no insert notification arrives", by default each second
/// (`QueueConfig::with_fetch_poll_interval`).
const POLLING: Duration = Duration::from_millis(10);

#[derive(Serialize, Deserialize)]
#[serde(transparent)]
struct NoOp(Payload);

impl JobArgs for NoOp {
    const KIND: &'static str = "job";
}

pub struct River {
    /// Inserts and has no workers.
    entrance: Client,
    clients: PgPool,
    worker_pool: PgPool,
    figure: Figure,
}

impl Peer for River {
    const NAME: &'static str = "riverqueue";
    const FIGURES: &'static [Figure] = &[
        Figure::Enqueue { jobs: 10_000, clients: 32 },
        Figure::Bulk { jobs: 50_000, batch: 1_000 },
        Figure::Drain { jobs: 10_000, concurrency: 1_000 },
        Figure::EnqueueTx { jobs: 10_000, clients: 32 },
        Figure::Costs { jobs: 10_000, concurrency: 1_000 },
        Figure::OneTransaction { jobs: 10_000, concurrency: 1_000 },
        Figure::Idle { seconds: 30 },
        Figure::Latency { rate: 0, seconds: 10, concurrency: 100, queued: true, local: 0 },
    ];
    const TABLES: Tables = Tables {
        stored: "select count(*) from river_job",
        unfinished: "select exists (select from river_job where state <> 'completed')",
        completed: Completed::Marked("select count(*) from river_job where state = 'completed'"),
        steps: None,
        finish: None,
        resumed: None,
    };

    async fn open(url: &str, figure: Figure) -> Result<Self> {
        let clients = if let Figure::Enqueue { clients, .. } | Figure::EnqueueTx { clients, .. } = figure {
            clients
        } else {
            16
        };
        let worker_pool = pool(url, WORKER_CONNECTIONS).await?;
        PostgresMigrator::new(worker_pool.clone()).migrate_up().await?;
        let clients = pool(url, clients).await?;
        let entrance = Client::builder(clients.clone());
        let entrance = match figure {
            // Notifications of inserts "are skipped until the cooldown has passed"
            // (`ClientBuilder::fetch_cooldown`).
            Figure::Latency { .. } => entrance.fetch_cooldown(FETCH_COOLDOWN_MIN),
            _ => entrance,
        };
        Ok(Self { entrance: entrance.build()?, clients, worker_pool, figure })
    }

    fn notes(&self) -> String {
        match self.figure {
            Figure::Idle { .. } => "default settings: notifications, polled each second".to_owned(),
            Figure::Enqueue { .. } => "Client::insert, without workers".to_owned(),
            Figure::EnqueueTx { .. } => "Client::insert with tx, without workers".to_owned(),
            Figure::Bulk { .. } => "Client::insert_many, without workers".to_owned(),
            _ => format!(
                "fetch cooldown {FETCH_COOLDOWN_MIN:?}, polled each {POLLING:?} beside the notifications"
            ),
        }
    }

    async fn enqueue(&self, job: Payload) -> Result<()> {
        self.entrance.insert(NoOp(job)).await?;
        Ok(())
    }

    async fn enqueue_with_row(&self, number: i64, job: Payload) -> Result<()> {
        let mut tx = begin_postgres(&self.clients).await?;
        sqlx::query("insert into business values ($1)").bind(number).execute(&mut *tx).await?;
        self.entrance.insert(NoOp(job)).tx(&mut tx).await?;
        Ok(tx.commit().await?)
    }

    fn enqueue_batch(&self, jobs: Vec<Payload>) -> Option<impl Future<Output = Result<()>>> {
        Some(async move {
            self.entrance.insert_many(jobs.into_iter().map(NoOp)).await?;
            Ok(())
        })
    }

    async fn enqueue_together(&self, jobs: u64) -> Result<Instant> {
        let mut tx = begin_postgres(&self.clients).await?;
        self.entrance.insert_many(Payload::batch(0..jobs).into_iter().map(NoOp)).tx(&mut tx).await?;
        let began = Instant::now();
        tx.commit().await?;
        Ok(began)
    }

    async fn work(&self, concurrency: u64) -> Result<JoinHandle<Result<()>>> {
        let mut workers = Workers::new();
        workers.add_fn(job)?;
        // "Throughput is limited by this value" (`QueueConfig::with_fetch_cooldown`).
        let queue = QueueConfig::new(concurrency as usize);
        let queue = match self.figure {
            Figure::Idle { .. } => queue,
            _ => queue.with_fetch_cooldown(FETCH_COOLDOWN_MIN).with_fetch_poll_interval(POLLING),
        };
        let client =
            Client::builder(self.worker_pool.clone()).workers(workers).queue("default", queue).build()?;
        Ok(tokio::spawn(async move { Ok(client.start()?.wait().await?) }))
    }
}

async fn job(_context: WorkContext, job: Job<NoOp>) -> std::result::Result<WorkOutcome, BoxError> {
    body::started(&job.args.0);
    Ok(WorkOutcome::Complete)
}
