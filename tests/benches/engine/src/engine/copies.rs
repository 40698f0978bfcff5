//! Fills tables fast: copies the rows of a run that the engine made, under new ids.

use std::time::Duration;

use sqlx::{AssertSqlSafe, PgConnection};
use uuid::Uuid;

use crate::Res;
use crate::work::execute;

const BATCH: usize = 20_000;

/// Calls [`rows`], then vacuums and analyses.
pub async fn make(connection: &mut PgConnection, run: Uuid, tables: &[&str], n: usize) -> Res<()> {
    rows(connection, run, tables, n).await?;
    execute(connection, "vacuum analyze").await
}

/// Copies the rows of a run in `tables` `n` times. List the table that makes a run visible to
/// workers last.
pub async fn rows(connection: &mut PgConnection, run: Uuid, tables: &[&str], n: usize) -> Res<()> {
    let mut statements = Vec::new();
    for table in tables {
        statements.push(statement(connection, table).await?);
    }
    for first in (0..n).step_by(BATCH) {
        let ids: Vec<Uuid> = (first..(first + BATCH).min(n)).map(|_| Uuid::now_v7()).collect();
        execute(connection, "begin").await?;
        for statement in &statements {
            let insert = sqlx::query(AssertSqlSafe(statement.clone()));
            let done = insert.bind(&ids).bind(run).execute(&mut *connection).await?;
            if done.rows_affected() == 0 || done.rows_affected() % ids.len() as u64 != 0 {
                return Err(format!("{} rows came of `{statement}`", done.rows_affected()).into());
            }
        }
        execute(connection, "commit").await?;
    }
    Ok(())
}

/// Returns when the first copy falls due, as database text, and how long until then. Fails if that
/// time has passed.
pub async fn due(connection: &mut PgConnection) -> Res<(String, Duration)> {
    let query = "select min(ready_at)::text, (extract(epoch from min(ready_at) - clock_timestamp()) * 1000)::bigint from runledger.ready";
    let (due, left): (String, i64) = sqlx::query_as(query).fetch_one(connection).await?;
    match u64::try_from(left) {
        Ok(left) => Ok((due, Duration::from_millis(left))),
        Err(_) => Err("the runs fell due before all was ready: `--ahead` more seconds".into()),
    }
}

async fn statement(connection: &mut PgConnection, table: &str) -> Res<String> {
    let query = "select string_agg(quote_ident(attname), ', ' order by attnum) from pg_attribute
                 where attrelid = ('runledger.' || $1)::regclass and attnum > 0 and not attisdropped and attname <> 'run_id'";
    let columns: String = sqlx::query_scalar(query).bind(table).fetch_one(connection).await?;
    Ok(format!(
        "insert into runledger.{table} (run_id, {columns}) select copy.id, {columns} from runledger.{table} cross join unnest($1::uuid[]) as copy (id) where run_id = $2"
    ))
}
