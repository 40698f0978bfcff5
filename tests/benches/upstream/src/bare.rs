//! No engine: the minimum cost of storing the same payloads, in one table with one index.

use std::ops::Range;

use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use uuid::Uuid;

use crate::Result;
use crate::engine::{Planned, Store, payload};

/// The engines' number of connections.
const CONNECTIONS: u32 = 10;

pub struct Bare {
    pool: PgPool,
}

impl Store for Bare {
    const RUNS: &'static str = "select count(*) from bare";
    const GRAPHS: &'static str = "select count(*) from bare where is_graph";

    async fn open(url: &str) -> Result<Self> {
        let pool = PgPoolOptions::new()
            .max_connections(CONNECTIONS)
            // A check before each insert would cost an extra round trip.
            .test_before_acquire(false)
            .connect(url)
            .await?;
        sqlx::query(
            "create table bare (id uuid primary key, is_graph boolean not null, input json not null)",
        )
        .execute(&pool)
        .await?;
        Ok(Self { pool })
    }

    async fn enqueue(&self, n: u64) -> Result<()> {
        sqlx::query("insert into bare values ($1, false, $2::text::json)")
            .bind(Uuid::now_v7())
            .bind(payload(n).to_string())
            .execute(&self.pool)
            .await?;
        Ok(())
    }

    async fn enqueue_all(&self, runs: Range<u64>) -> Result<()> {
        self.insert(runs.map(|n| payload(n).to_string()).collect(), false).await.map(drop)
    }

    async fn submit(&self, nodes: &[Planned]) -> Result<Uuid> {
        let nodes = (0..).zip(nodes).map(|(n, _)| payload(n).to_string());
        self.insert(std::iter::once("{}".to_owned()).chain(nodes).collect(), true).await
    }
}

impl Bare {
    /// Inserts all rows with one statement. Returns the id of the first, which may be a graph.
    async fn insert(&self, inputs: Vec<String>, first_is_graph: bool) -> Result<Uuid> {
        let ids: Vec<Uuid> = inputs.iter().map(|_| Uuid::now_v7()).collect();
        let first = ids.first().copied().unwrap_or_default();
        sqlx::query("insert into bare select id, $3 and id = $4, input::json from unnest($1::uuid[], $2::text[]) as item (id, input)")
            .bind(ids)
            .bind(inputs)
            .bind(first_is_graph)
            .bind(first)
            .execute(&self.pool)
            .await?;
        Ok(first)
    }
}
