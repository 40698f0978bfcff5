//! `apalis-postgres`: stores jobs in `apalis.jobs`.

use std::{future::Future, time::Duration};

use ::apalis::prelude::{BackendExt, BoxDynError, TaskSink, WorkerBuilder, WorkerBuilderExt};
use apalis_postgres::{Config, PostgresStorage};
use sqlx::PgPool;
use tokio::task::JoinHandle;

use crate::{
    Result,
    body::{self, Payload},
    database::{Completed, Tables, pool},
    figure::Figure,
    peer::Peer,
};

/// The default is 10. "Larger batches can improve throughput by reducing the number of queue
/// operations" (`Config::batch_size`).
const BATCH: usize = 5_000;
const POLLING: Duration = Duration::from_millis(10);

pub struct Apalis {
    pool: PgPool,
    storage: PostgresStorage<Payload>,
    figure: Figure,
}

impl Peer for Apalis {
    const NAME: &'static str = "apalis-postgres";
    const FIGURES: &'static [Figure] = &[
        Figure::Enqueue { jobs: 20_000, clients: 32 },
        Figure::Bulk { jobs: 100_000, batch: 1_000 },
        Figure::Drain { jobs: 50_000, concurrency: 1_000 },
        Figure::Costs { jobs: 10_000, concurrency: 1_000 },
        Figure::Idle { seconds: 30 },
        Figure::Backlog { jobs: 2_000, queued: 1_000_000, finished: 0, unknown: 0, concurrency: 1_000 },
        Figure::Latency { rate: 0, seconds: 10, concurrency: 16, queued: true, local: 0 },
    ];
    const TABLES: Tables = Tables {
        stored: "select count(*) from apalis.jobs",
        unfinished: "select exists (select from apalis.jobs where status <> 'Done')",
        completed: Completed::Marked("select count(*) from apalis.jobs where status = 'Done'"),
        steps: None,
        finish: Some("update apalis.jobs set status = 'Done', done_at = now()"),
        resumed: None,
    };

    async fn open(url: &str, figure: Figure) -> Result<Self> {
        let clients = if let Figure::Enqueue { clients, .. } = figure { clients } else { 16 };
        let pool = pool(url, clients).await?;
        PostgresStorage::setup(&pool).await?;
        // `Config::lock_tasks` ("Whether tasks should be locked while being processed") costs one
        // more write per job, although the fetch has already written `lock_by`.
        // `Config::persist_results` stays on: without it no completion is ever written.
        let config = Config::default().queue("jobs");
        let config = match figure {
            Figure::Idle { .. } => config,
            _ => config.batch_size(BATCH).lock_tasks(false),
        };
        let storage = PostgresStorage::new(&pool).with_config(config);
        Ok(Self { pool, storage, figure })
    }

    fn notes(&self) -> String {
        if let Figure::Idle { .. } = self.figure {
            return "default settings: notifications".to_owned();
        }
        format!(
            "batches of {BATCH}, lock_tasks off, polled each {POLLING:?} beside the notifications; {} connections",
            self.pool.size()
        )
    }

    async fn enqueue(&self, job: Payload) -> Result<()> {
        self.storage.clone().push(job).await?;
        Ok(())
    }

    fn enqueue_batch(&self, jobs: Vec<Payload>) -> Option<impl Future<Output = Result<()>>> {
        Some(async move {
            self.storage.clone().push_bulk(jobs).await?;
            Ok(())
        })
    }

    async fn work(&self, concurrency: u64) -> Result<JoinHandle<Result<()>>> {
        // Polls beside the notifications, as README.md does in "Pubsub listener example". Without
        // polling, a job was occasionally found only by the next heartbeat, 30 s later.
        let backend = self.storage.clone().with_pubsub();
        if let Figure::Idle { .. } = self.figure {
            let worker =
                WorkerBuilder::new("worker").backend(backend).concurrency(concurrency as usize).build(job);
            return Ok(tokio::spawn(async move { Ok(worker.run().await?) }));
        }
        let backend = backend.poll_with_interval(POLLING);
        // Without `parallelize(tokio::spawn)`: a task per empty body only adds cost.
        let worker =
            WorkerBuilder::new("worker").backend(backend).concurrency(concurrency as usize).build(job);
        Ok(tokio::spawn(async move { Ok(worker.run().await?) }))
    }
}

async fn job(job: Payload) -> std::result::Result<(), BoxDynError> {
    body::started(&job);
    Ok(())
}
