//! Enqueue and settle, for every measurement.

use crate::Res;
use crate::claimer::Claimed;
use crate::variant::Variant;
use sqlx::Postgres;
use sqlx::postgres::{PgArguments, PgConnection};
use sqlx::query::Query;
use uuid::Uuid;

/// About 100 bytes, as in every benchmark of the project.
pub const INPUT: &str =
    r#"{"user_id":1,"note":"somebody@example.com hello world hello world hello wor hello worl"}"#;

/// Runs to enqueue, by column.
#[derive(Default)]
pub struct Batch {
    pub ids: Vec<Uuid>,
    jobs: Vec<String>,
    tenants: Vec<&'static str>,
    queues: Vec<String>,
    priorities: Vec<i16>,
    delays: Vec<f64>,
    inputs: Vec<&'static str>,
}

impl Batch {
    pub fn of(count: usize, queue: &str, job: &str, priority: i16) -> Self {
        let mut batch = Self::default();
        for _ in 0..count {
            batch.push(Uuid::now_v7(), queue, job, priority, 0.0);
        }
        batch
    }

    pub fn push(&mut self, id: Uuid, queue: &str, job: &str, priority: i16, delay: f64) {
        self.ids.push(id);
        self.jobs.push(job.to_owned());
        self.tenants.push("tenant");
        self.queues.push(queue.to_owned());
        self.priorities.push(priority);
        self.delays.push(delay);
        self.inputs.push(INPUT);
    }

    /// Binds the seven columns of an enqueue.
    pub fn bind<'q>(&'q self, query: Query<'q, Postgres, PgArguments>) -> Query<'q, Postgres, PgArguments> {
        query
            .bind(&self.ids)
            .bind(&self.jobs)
            .bind(&self.tenants)
            .bind(&self.queues)
            .bind(&self.priorities)
            .bind(&self.delays)
            .bind(&self.inputs)
    }
}

pub async fn enqueue(connection: &mut PgConnection, variant: &Variant, batch: &Batch) -> Res<usize> {
    let done = batch.bind(sqlx::query(variant.enqueue)).fetch_all(connection).await?;
    Ok(done.len())
}

pub async fn fill(connection: &mut PgConnection, variant: &Variant, count: usize, job: &str) -> Res<()> {
    for start in (0..count).step_by(1000) {
        enqueue(connection, variant, &Batch::of(1000.min(count - start), "q", job, 0)).await?;
    }
    Ok(())
}

pub async fn settle(connection: &mut PgConnection, variant: &Variant, claimed: &[Claimed]) -> Res<usize> {
    let ids: Vec<_> = claimed.iter().map(|run| run.run_id).collect();
    let tokens: Vec<_> = claimed.iter().map(|run| run.token).collect();
    settle_owned(connection, variant, &ids, &tokens).await
}

pub async fn settle_owned(
    connection: &mut PgConnection,
    variant: &Variant,
    ids: &[Uuid],
    tokens: &[Uuid],
) -> Res<usize> {
    let done = sqlx::query(variant.settle)
        .bind(ids)
        .bind(tokens)
        .bind(vec!["completed"; ids.len()])
        .bind(vec![Some("{}"); ids.len()])
        .bind(vec![None::<&str>; ids.len()])
        .fetch_all(connection)
        .await?;
    Ok(done.len())
}
