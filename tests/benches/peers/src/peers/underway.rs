//! `underway`: stores tasks in `underway.task`. A job is a task of a queue. A workflow is a `Job`
//! of steps, each with its own task.

use std::{future::Future, sync::Arc, time::Instant};

use jiff::{Span, ToSpan};
use serde_json::Value;
use sqlx_0_8::{PgPool, Postgres, Transaction, postgres::PgPoolOptions};
use tokio::task::JoinHandle;
use underway::{Job, Queue, Task, To, Worker, task::Result as TaskResult};

use crate::{
    Result,
    body::{self, Payload},
    database::{Completed, Tables},
    figure::Figure,
    measure::{IDLE_SLOTS, clients},
    peer::Peer,
};

/// Without a notification, a worker starts one more loop per poll, up to its slots
/// (`Worker::run_every`). `Worker::run` polls each minute.
const POLLING_MS: i64 = 10;
/// Per slot: the task's transaction and its heartbeat.
const CONNECTIONS_A_SLOT: u64 = 2;

struct NoOp;

impl Task for NoOp {
    type Input = Payload;
    type Output = ();

    async fn execute(&self, transaction: Transaction<'_, Postgres>, job: Payload) -> TaskResult<()> {
        body::started(&job);
        transaction.commit().await?;
        Ok(())
    }
}

pub struct Underway {
    pool: PgPool,
    queue: Arc<Queue<NoOp>>,
    figure: Figure,
}

impl Peer for Underway {
    const NAME: &'static str = "underway";
    const FIGURES: &'static [Figure] = &[
        Figure::Enqueue { jobs: 5_000, clients: 32 },
        Figure::EnqueueTx { jobs: 5_000, clients: 32 },
        Figure::Bulk { jobs: 50_000, batch: 1_000 },
        Figure::Drain { jobs: 2_000, concurrency: 16 },
        Figure::Workflows { workflows: 200, steps: 10, concurrency: 16 },
        Figure::Step { steps: 500 },
        Figure::Idle { seconds: 30 },
        Figure::Costs { jobs: 1_000, concurrency: 16 },
        Figure::StepCosts { workflows: 100, steps: 10, concurrency: 16 },
        Figure::OneTransaction { jobs: 1_000, concurrency: 16 },
        Figure::Snapshot { jobs: 1_000, windows: 3, rate: 100, seconds: 60, concurrency: 16 },
        Figure::Latency { rate: 0, seconds: 10, concurrency: 16, queued: true, local: 0 },
    ];
    const TABLES: Tables = Tables {
        stored: "select count(*) from underway.task",
        unfinished: "select exists (select from underway.task where state <> 'succeeded')",
        completed: Completed::Marked("select count(*) from underway.task where state = 'succeeded'"),
        steps: Some("select count(*) from underway.task where state = 'succeeded'"),
        finish: None,
        resumed: None,
    };

    async fn open(url: &str, figure: Figure) -> Result<Self> {
        let connections = match figure {
            Figure::Enqueue { clients, .. } | Figure::EnqueueTx { clients, .. } => clients,
            Figure::Drain { concurrency, .. }
            | Figure::Costs { concurrency, .. }
            | Figure::StepCosts { concurrency, .. }
            | Figure::OneTransaction { concurrency, .. }
            | Figure::Snapshot { concurrency, .. }
            | Figure::Workflows { concurrency, .. }
            | Figure::Latency { concurrency, .. } => CONNECTIONS_A_SLOT * concurrency + 16,
            Figure::Idle { .. } => CONNECTIONS_A_SLOT * IDLE_SLOTS + 16,
            _ => 16,
        };
        let connections = u32::try_from(connections)?;
        let pool = PgPoolOptions::new().max_connections(connections).min_connections(connections);
        let pool = pool.connect(url).await?;
        let mut open = Vec::new();
        for _ in 0..connections {
            open.push(pool.acquire().await?);
        }
        drop(open);
        underway::run_migrations(&pool).await?;
        let queue = Queue::builder().name("jobs").pool(pool.clone()).build().await?;
        Ok(Self { pool, queue: Arc::new(queue), figure })
    }

    fn notes(&self) -> String {
        match self.figure {
            Figure::Enqueue { .. } | Figure::EnqueueTx { .. } => "Queue::enqueue".to_owned(),
            Figure::Bulk { .. } => "Queue::enqueue_multi".to_owned(),
            Figure::Idle { .. } => "default settings: notifications, polled each minute".to_owned(),
            _ => format!(
                "polled each {POLLING_MS} ms beside the notifications, {CONNECTIONS_A_SLOT} connections a slot"
            ),
        }
    }

    async fn enqueue(&self, job: Payload) -> Result<()> {
        self.queue.enqueue(&self.pool, &NoOp, &job).await?;
        Ok(())
    }

    async fn enqueue_with_row(&self, number: i64, job: Payload) -> Result<()> {
        let mut tx = self.pool.begin().await?;
        sqlx_0_8::query("insert into business values ($1)").bind(number).execute(&mut *tx).await?;
        self.queue.enqueue(&mut *tx, &NoOp, &job).await?;
        Ok(tx.commit().await?)
    }

    fn enqueue_batch(&self, jobs: Vec<Payload>) -> Option<impl Future<Output = Result<()>>> {
        Some(async move {
            self.queue.enqueue_multi(&self.pool, &NoOp, &jobs).await?;
            Ok(())
        })
    }

    async fn enqueue_together(&self, jobs: u64) -> Result<Instant> {
        let mut tx = self.pool.begin().await?;
        self.queue.enqueue_multi(&mut *tx, &NoOp, &Payload::batch(0..jobs)).await?;
        let began = Instant::now();
        tx.commit().await?;
        Ok(began)
    }

    async fn work(&self, concurrency: u64) -> Result<JoinHandle<Result<()>>> {
        let worker = Worker::new(Arc::clone(&self.queue), NoOp);
        if let Figure::Idle { .. } = self.figure {
            return Ok(tokio::spawn(async move { Ok(worker.run().await?) }));
        }
        Ok(work(worker, concurrency))
    }

    /// Enqueues through a second `Job`, because a `Job` enqueues at the step that it executed last.
    async fn workflows(
        &self,
        workflows: u64,
        steps: u64,
        concurrency: u64,
    ) -> Result<JoinHandle<Result<()>>> {
        let queue = Queue::builder().name("steps").pool(self.pool.clone()).build().await?;
        let (entrance, job) = (job(queue.clone(), steps), job(queue, steps));
        let entrance = Arc::new(entrance);
        clients(workflows, concurrency, move |_| {
            let entrance = Arc::clone(&entrance);
            async move {
                entrance.enqueue(&Value::Null).await?;
                Ok(())
            }
        })
        .await?;
        Ok(work(job.worker(), concurrency))
    }
}

fn work<T: Task + Sync>(mut worker: Worker<T>, concurrency: u64) -> JoinHandle<Result<()>> {
    worker.set_concurrency_limit(concurrency as usize);
    let polling: Span = POLLING_MS.milliseconds();
    tokio::spawn(async move { Ok(worker.run_every(polling).await?) })
}

fn job(queue: Queue<Job<Value, ()>>, steps: u64) -> Job<Value, ()> {
    let mut builder = Job::builder().step(|_, _: Value| async { To::next(body::step(0)) });
    for index in 1..steps.saturating_sub(1) {
        builder = builder.step(move |_, _: Value| async move { To::next(body::step(index)) });
    }
    builder
        .step(move |_, _: Value| async move {
            body::step(steps);
            To::done()
        })
        .queue(queue)
        .build()
}
