//! Upstream's crates, configured as their README describes.

use std::ops::Range;
use std::time::Duration;

use serde_json::{Value, json};
use sqlx_0_8::postgres::PgPoolOptions;
use upstream_core::jobs::{JobCompletion, JobContext, JobFailure, JobHandler, JobType, WorkflowDagBuilder};
use upstream_core::prelude::async_trait;
use upstream_postgres::jobs::{JobEnqueue, enqueue_job, enqueue_job_tx, enqueue_workflow_run};
use upstream_postgres::{DbPool, migrate_after_idempotency_cutover};
use upstream_runtime::Supervisor;
use upstream_runtime::catalog::JobCatalog;
use upstream_runtime::config::JobsConfig;
use uuid::Uuid;

use crate::Result;
use crate::engine::{Engine, Planned, Store, Tables, payload};

/// The type of every job.
const JOB: &str = "noted";

/// The tuned poll interval. On two cores a shorter one uses more processor time and starts no job
/// sooner.
const TUNED_POLL: Duration = Duration::from_millis(10);
/// The tuned concurrency and batch size: the default concurrency of Runledger's worker.
const TUNED_CONCURRENCY: usize = 128;
/// Connections of the tuned worker. Each job that ends holds a transaction open for several
/// statements.
const TUNED_CONNECTIONS: u32 = 32;

/// The limit for a worker's shutdown. After it upstream aborts the worker's tasks, which counts as
/// its error.
const STOP: Duration = Duration::from_secs(10);

/// A client of upstream's engine. Its worker has default settings, or the README's settings for
/// speed.
pub struct Upstream<const TUNED: bool> {
    url: String,
    pool: DbPool,
}

struct Noted;

#[async_trait]
impl JobHandler for Noted {
    fn job_type(&self) -> JobType<'static> {
        JobType::new(JOB)
    }

    async fn execute(&self, _context: JobContext, _payload: Value) -> Result<JobCompletion, JobFailure> {
        Ok(JobCompletion::success())
    }
}

impl<const TUNED: bool> Store for Upstream<TUNED> {
    const RUNS: &'static str = "select count(*) from job_queue";
    const GRAPHS: &'static str = "select count(*) from workflow_runs";

    async fn open(url: &str) -> Result<Self> {
        let pool = PgPoolOptions::new().connect(url).await?;
        migrate_after_idempotency_cutover(&pool).await?;
        catalog().sync_definitions(&pool).await?;
        Ok(Self { url: url.to_owned(), pool })
    }

    async fn enqueue(&self, n: u64) -> Result<()> {
        enqueue_job(&self.pool, &job(&payload(n))).await?;
        Ok(())
    }

    async fn enqueue_all(&self, runs: Range<u64>) -> Result<()> {
        let mut tx = self.pool.begin().await?;
        for n in runs {
            enqueue_job_tx(&mut tx, &job(&payload(n))).await?;
        }
        Ok(tx.commit().await?)
    }

    async fn submit(&self, nodes: &[Planned]) -> Result<Uuid> {
        let metadata = json!({});
        let payloads: Vec<Value> = (0..).zip(nodes).map(|(n, _)| payload(n)).collect();
        let mut graph = WorkflowDagBuilder::new("planned", &metadata);
        for (planned, payload) in nodes.iter().zip(&payloads) {
            graph = graph.job(&planned.name, JOB, payload)?;
            if !planned.needs.is_empty() {
                graph = graph.after_success(&planned.name, planned.needs.iter().map(String::as_str))?;
            }
        }
        Ok(enqueue_workflow_run(&self.pool, &graph.build()?).await?.id)
    }
}

impl<const TUNED: bool> Engine for Upstream<TUNED> {
    const TABLES: Tables = Tables {
        ended: "select status = 'SUCCEEDED' from workflow_runs where id = $1 and status not in ('RUNNING', 'WAITING_FOR_EXTERNAL')",
        count_ended: "select count(*), count(*) filter (where status = 'SUCCEEDED') from workflow_runs where status not in ('RUNNING', 'WAITING_FOR_EXTERNAL')",
        failed_nodes: "select count(*) from job_queue where status = 'DEAD_LETTERED'",
        repeated: "select coalesce(sum(greatest(attempt - 1, 0)), 0)::bigint from job_queue",
    };

    type Worker = (Supervisor, DbPool);

    async fn work(&self) -> Result<Self::Worker> {
        // The settings of `builder_from_env`. None of its variables is set here.
        let mut config = JobsConfig::from_env();
        let mut connections = PgPoolOptions::new();
        if TUNED {
            config.poll_interval = TUNED_POLL;
            config.claim_batch_size = i64::try_from(TUNED_CONCURRENCY)?;
            config.max_global_concurrency = TUNED_CONCURRENCY;
            connections = connections.max_connections(TUNED_CONNECTIONS);
        }
        let pool = connections.connect(&self.url).await?;
        let mut builder = Supervisor::builder(&pool, config)?.with_catalog(catalog());
        if TUNED {
            // The README advises this if nobody records intents. The promoter would also query each
            // 10 ms.
            builder = builder.disable_intent_promoter();
        }
        let supervisor = builder.build()?;
        Ok((supervisor, pool))
    }

    async fn stop((supervisor, pool): Self::Worker) -> Result<()> {
        let stopped = supervisor.shutdown_with_timeout(STOP).await;
        pool.close().await;
        Ok(stopped?)
    }
}

fn catalog() -> JobCatalog {
    JobCatalog::new().handler(Noted)
}

fn job(payload: &Value) -> JobEnqueue<'_> {
    JobEnqueue {
        job_type: JobType::new(JOB),
        organization_id: None,
        payload,
        priority: None,
        max_attempts: None,
        timeout_seconds: None,
        next_run_at: None,
        idempotency_key: None,
        stage: None,
    }
}
