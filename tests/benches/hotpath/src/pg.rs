//! Connections, and PostgreSQL's own figures for the cost of work.

use crate::Res;
use sqlx::ConnectOptions;
use sqlx::postgres::{PgConnectOptions, PgConnection};

/// Joins with the hot tables must be nested loops from the small side, regardless of statistics.
const SESSION: &str = "set enable_hashjoin = off; set enable_mergejoin = off; set enable_seqscan = off; \
    set plan_cache_mode = force_generic_plan; set jit = off";

pub async fn connect() -> Res<PgConnection> {
    let options: PgConnectOptions = std::env::var("DATABASE_URL")?.parse()?;
    let mut connection = options.disable_statement_logging().connect().await?;
    sqlx::raw_sql(SESSION).execute(&mut connection).await?;
    Ok(connection)
}

/// Holds a snapshot open, as a report or a forgotten transaction does, until the connection is
/// dropped.
pub async fn pin() -> Res<PgConnection> {
    let mut connection = connect().await?;
    sqlx::raw_sql("begin isolation level repeatable read; select count(*) from pg_class")
        .execute(&mut connection)
        .await?;
    Ok(connection)
}

pub async fn quiet(connection: &mut PgConnection) -> Res<()> {
    sqlx::raw_sql("vacuum (analyze) hp.run").execute(&mut *connection).await?;
    sqlx::raw_sql("vacuum (analyze)").execute(&mut *connection).await?;
    sqlx::raw_sql("checkpoint").execute(connection).await?;
    Ok(())
}

#[derive(Clone, Copy)]
pub struct Meter {
    wal: i64,
    dead: i64,
}

/// The cost of one unit of work.
pub struct Cost {
    pub wal: f64,
    pub dead: f64,
}

impl Meter {
    pub async fn read(connection: &mut PgConnection) -> Res<Self> {
        sqlx::query("select pg_stat_force_next_flush()").execute(&mut *connection).await?;
        let (wal, dead) = sqlx::query_as(
            "select (pg_current_wal_insert_lsn() - '0/0')::int8, \
             (select coalesce(sum(n_tup_del + n_tup_upd), 0)::int8 from pg_stat_user_tables where schemaname = 'hp')",
        )
        .fetch_one(connection)
        .await?;
        Ok(Self { wal, dead })
    }

    #[expect(clippy::cast_precision_loss, reason = "counters of a benchmark stay far below 2^52")]
    pub fn since(self, start: Self, units: usize) -> Cost {
        let each = |delta: i64| delta as f64 / units.max(1) as f64;
        Cost { wal: each(self.wal - start.wal), dead: each(self.dead - start.dead) }
    }
}
