//! Enqueue: runs and their places in the queue, in one statement.

use sqlx::{PgConnection, Row};
use uuid::Uuid;

use super::{sparse, sql};
use crate::model::request::RequestOptions;
use crate::model::timestamp::Timestamp;

/// A run to be written.
#[derive(Clone, Debug)]
pub(crate) struct NewRun {
    pub(crate) run_id: Uuid,
    pub(crate) job: String,
    pub(crate) tenant: String,
    pub(crate) queue: String,
    pub(crate) priority: i16,
    pub(crate) input: String,
    pub(crate) options: RequestOptions,
    pub(crate) idempotency_key: Option<String>,
}

/// What the database did with a batch.
#[derive(Debug)]
pub(crate) struct Enqueued {
    /// The runs that are new; the others were there before.
    pub(crate) created: Vec<Uuid>,
    /// The isolation level of the transaction.
    pub(crate) isolation: String,
}

/// A stored request that a keyed submission met.
#[derive(Debug)]
pub(crate) struct Existing {
    pub(crate) run_id: Uuid,
    pub(crate) input: String,
    pub(crate) options: RequestOptions,
}

/// Writes a batch. A run whose id is there already is left alone: a retry after an ambiguous commit is a no-op.
pub(crate) async fn enqueue(connection: &mut PgConnection, runs: &[NewRun]) -> Result<Enqueued, sqlx::Error> {
    let columns = Columns::of(runs);
    let row = sqlx::query(sql::ENQUEUE)
        .bind(columns.run_ids)
        .bind(columns.jobs)
        .bind(columns.tenants)
        .bind(columns.queues)
        .bind(columns.priorities)
        .bind(columns.inputs)
        .bind(columns.options)
        .bind(sparse(runs.iter().map(|run| run.idempotency_key.as_deref())))
        .bind(columns.delays_us)
        .bind(columns.start_ats)
        .fetch_one(connection)
        .await?;
    Ok(Enqueued { created: row.try_get("created")?, isolation: row.try_get("isolation")? })
}

/// Writes a batch of runs that have no idempotency key, for the first time: nobody else can have made their ids.
pub(crate) async fn enqueue_fresh(connection: &mut PgConnection, runs: &[NewRun]) -> Result<(), sqlx::Error> {
    let columns = Columns::of(runs);
    sqlx::query(sql::ENQUEUE_FRESH)
        .bind(columns.run_ids)
        .bind(columns.jobs)
        .bind(columns.tenants)
        .bind(columns.queues)
        .bind(columns.priorities)
        .bind(columns.inputs)
        .bind(columns.options)
        .bind(columns.delays_us)
        .bind(columns.start_ats)
        .fetch_one(connection)
        .await?;
    Ok(())
}

/// A batch by columns, as both statements take it.
struct Columns<'a> {
    run_ids: Vec<Uuid>,
    jobs: Vec<&'a str>,
    tenants: Vec<Option<&'a str>>,
    queues: Vec<&'a str>,
    priorities: Vec<i16>,
    inputs: Vec<&'a str>,
    options: Vec<Option<String>>,
    delays_us: Vec<Option<i64>>,
    start_ats: Vec<Option<Timestamp>>,
}

impl<'a> Columns<'a> {
    fn of(runs: &'a [NewRun]) -> Self {
        Self {
            run_ids: runs.iter().map(|run| run.run_id).collect(),
            jobs: runs.iter().map(|run| run.job.as_str()).collect(),
            tenants: sparse(
                runs.iter().map(|run| Some(run.tenant.as_str()).filter(|tenant| !tenant.is_empty())),
            ),
            queues: runs.iter().map(|run| run.queue.as_str()).collect(),
            priorities: runs.iter().map(|run| run.priority).collect(),
            inputs: runs.iter().map(|run| run.input.as_str()).collect(),
            options: sparse(runs.iter().map(|run| stored(&run.options))),
            delays_us: sparse(runs.iter().map(|run| run.options.delay_us)),
            start_ats: sparse(runs.iter().map(|run| run.options.start_at())),
        }
    }
}

/// Reads the stored requests of runs that were there before.
pub(crate) async fn existing(
    connection: &mut PgConnection,
    runs: &[Uuid],
) -> Result<Vec<Existing>, sqlx::Error> {
    let rows = sqlx::query(sql::EXISTING).bind(runs).fetch_all(connection).await?;
    rows.into_iter()
        .map(|row| {
            Ok(Existing {
                run_id: row.try_get("run_id")?,
                input: row.try_get("input")?,
                options: loaded(row.try_get("options")?)?,
            })
        })
        .collect()
}

/// The options as they are stored: null where nothing was said, which is the common case and costs nothing.
pub(crate) fn stored(options: &RequestOptions) -> Option<String> {
    if *options == RequestOptions::default() {
        return None;
    }
    // A struct of numbers and strings always has a JSON form.
    serde_json::to_string(options).ok()
}

/// The options as they were stored.
pub(crate) fn loaded(options: Option<String>) -> Result<RequestOptions, sqlx::Error> {
    match options {
        None => Ok(RequestOptions::default()),
        Some(text) => serde_json::from_str(&text).map_err(|error| sqlx::Error::Decode(error.into())),
    }
}
