//! Enqueues with an idempotency key, stored in one of three ways: the run id derives from the key,
//! a unique index on `run`, or a table of keys.

use crate::claimer::Claimer;
use crate::cycle::rate;
use crate::pg::{self, Meter};
use crate::variant::{Variant, variant};
use crate::work::{Batch, enqueue, settle};
use crate::{Res, emit};
use serde_json::json;
use sqlx::postgres::PgConnection;
use std::time::{Duration, Instant};
use uuid::Uuid;

const KEY_TABLE: &str = "create table hp.key (tenant text, job text, key text, run_id uuid not null, primary key (tenant, job, key))";
const KEY_INDEX: &str = "alter table hp.run add key text; create unique index run_key on hp.run (tenant, job, key) where key is not null";
const TAKE_KEYS: &str = "with taken as (insert into hp.key select 'tenant', 'j', k, r from unnest($1::text[], $2::uuid[]) u(k, r) \
    on conflict do nothing returning run_id) select run_id from taken";

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    None,
    Derived,
    Table,
    Index,
}

/// Arguments: rows before, batch, seconds, rounds.
pub async fn run(args: &[String]) -> Res<()> {
    let [rows, batch, seconds, rounds] = args else {
        return Err("usage: keyed ROWS BATCH SECONDS ROUNDS".into());
    };
    for round in 0..rounds.parse::<u32>()? {
        for kind in [Kind::None, Kind::Derived, Kind::Table, Kind::Index] {
            measure(kind, rows.parse()?, batch.parse()?, seconds.parse()?, round).await?;
        }
    }
    Ok(())
}

async fn measure(kind: Kind, rows: usize, batch: usize, seconds: f64, round: u32) -> Res<()> {
    let mut variant = variant("split+no-key")?;
    let mut connection = pg::connect().await?;
    sqlx::raw_sql(variant.schema).execute(&mut connection).await?;
    if kind == Kind::Table {
        sqlx::raw_sql(KEY_TABLE).execute(&mut connection).await?;
    }
    if kind == Kind::Index {
        sqlx::raw_sql(KEY_INDEX).execute(&mut connection).await?;
        variant.enqueue = Box::leak(with_key(variant.enqueue).into_boxed_str());
    }
    let mut connection = pg::connect().await?;
    let mut claimer = Claimer::new(variant, 1, &[("q", "j")]);
    claimer.know(0, "q", "j");
    let mut next = 0;
    while next < rows {
        add(&mut connection, &variant, kind, &mut next, 1000).await?;
        let claimed = claimer.drain(&mut connection, 1000).await?;
        settle(&mut connection, &variant, &claimed).await?;
    }
    pg::quiet(&mut connection).await?;
    let start = Meter::read(&mut connection).await?;
    let (began, first, mut spent) = (Instant::now(), next, [Duration::ZERO; 2]);
    while began.elapsed().as_secs_f64() < seconds {
        let t0 = Instant::now();
        add(&mut connection, &variant, kind, &mut next, batch).await?;
        let t1 = Instant::now();
        let claimed = claimer.claim(&mut connection, i64::try_from(batch)?).await?;
        settle(&mut connection, &variant, &claimed).await?;
        spent[0] += t1 - t0;
        spent[1] += t1.elapsed();
    }
    let done = next - first;
    let cost = Meter::read(&mut connection).await?.since(start, done);
    let again = repeat(&mut connection, &variant, kind).await?;
    emit(
        &json!({"measure": "keyed", "kind": format!("{kind:?}"), "rows_before": rows, "batch": batch, "round": round,
        "jobs_per_s": rate(done, began.elapsed().as_secs_f64()), "wal_per_job": cost.wal.round(), "runs_of_a_repeated_key": again,
        "us_per_enqueue": spent[0].as_secs_f64() * 1e6 / f64::from(u32::try_from(done)?),
        "us_per_claim_settle": spent[1].as_secs_f64() * 1e6 / f64::from(u32::try_from(done)?)}),
    );
    Ok(())
}

async fn add(
    connection: &mut PgConnection,
    variant: &Variant,
    kind: Kind,
    next: &mut usize,
    count: usize,
) -> Res<usize> {
    let keys: Vec<String> = (*next..*next + count).map(key).collect();
    *next += count;
    put(connection, variant, kind, &keys).await
}

async fn put(connection: &mut PgConnection, variant: &Variant, kind: Kind, keys: &[String]) -> Res<usize> {
    let mut batch = Batch::default();
    for key in keys {
        let id = match kind {
            Kind::Derived => Uuid::new_v5(&Uuid::NAMESPACE_OID, format!("tenant\0j\0{key}").as_bytes()),
            _ => Uuid::now_v7(),
        };
        batch.push(id, "q", "j", 0, 0.0);
    }
    match kind {
        Kind::Table => {
            // Both statements run in one transaction, as a real writer would run them.
            sqlx::raw_sql("begin").execute(&mut *connection).await?;
            let ids: Vec<Uuid> =
                sqlx::query_scalar(TAKE_KEYS).bind(keys).bind(&batch.ids).fetch_all(&mut *connection).await?;
            let mut fresh = Batch::default();
            for id in ids {
                fresh.push(id, "q", "j", 0, 0.0);
            }
            let added = enqueue(connection, variant, &fresh).await?;
            sqlx::raw_sql("commit").execute(connection).await?;
            Ok(added)
        }
        Kind::Index => {
            Ok(batch.bind(sqlx::query(variant.enqueue)).bind(keys).fetch_all(connection).await?.len())
        }
        Kind::None | Kind::Derived => enqueue(connection, variant, &batch).await,
    }
}

async fn repeat(connection: &mut PgConnection, variant: &Variant, kind: Kind) -> Res<usize> {
    put(connection, variant, kind, &[key(0)]).await
}

/// Unordered keys, like an application's own ids.
fn key(at: usize) -> String {
    Uuid::new_v5(&Uuid::NAMESPACE_URL, &at.to_be_bytes()).to_string()
}

fn with_key(enqueue: &str) -> String {
    enqueue
        .replace("start_at, input)", "start_at, input, key)")
        .replace("u.input::json\n", "u.input::json, u.key\n")
        .replace("$7::text[])", "$7::text[], $8::text[])")
        .replace("delay, input)", "delay, input, key)")
        .replace(
            "on conflict (run_id) do nothing",
            "on conflict (tenant, job, key) where key is not null do nothing",
        )
}
