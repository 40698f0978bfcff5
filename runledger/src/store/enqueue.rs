//! Enqueue: runs and their places in the queue, in one statement.

use sqlx::postgres::PgArguments;
use sqlx::query::Query;
use sqlx::{PgConnection, Postgres, Row};
use uuid::Uuid;

use super::write::write;
use super::{sparse, sql};
use crate::model::payload::{PayloadError, PayloadKind, Place, Plain, Sealer, Stored};
use crate::model::request::RequestOptions;

/// A run to be written; with a plain input one that is not sealed yet.
#[derive(Clone, Debug)]
pub(crate) struct NewRun<I = Stored> {
    pub(crate) run_id: Uuid,
    pub(crate) job: String,
    pub(crate) tenant: String,
    pub(crate) queue: String,
    pub(crate) priority: i16,
    pub(crate) input: I,
    pub(crate) options: RequestOptions,
    pub(crate) idempotency_key: Option<String>,
}

impl NewRun<Plain> {
    /// The same run with its input as it is stored.
    ///
    /// # Errors
    /// [`PayloadError`], where it cannot be.
    pub(crate) fn sealed(self, sealer: &Sealer) -> Result<NewRun, PayloadError> {
        self.sealed_as(|place, plain| sealer.seal(place, plain))
    }

    /// The same of a run that is put together of others: their inputs have their limits, and it has none of its own.
    pub(crate) fn sealed_whole(self, sealer: &Sealer) -> Result<NewRun, PayloadError> {
        self.sealed_as(|place, plain| sealer.seal_whole(place, plain))
    }

    fn sealed_as(
        self,
        seal: impl FnOnce(&Place<'_>, Plain) -> Result<Stored, PayloadError>,
    ) -> Result<NewRun, PayloadError> {
        let Self { run_id, job, tenant, queue, priority, input, options, idempotency_key } = self;
        let input = seal(&Place::new(run_id, PayloadKind::Input, ""), input)?;
        Ok(NewRun { run_id, job, tenant, queue, priority, input, options, idempotency_key })
    }
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
    pub(crate) input: Stored,
    pub(crate) options: RequestOptions,
}

/// Writes a batch. A run whose id is there already is left alone: a retry after an ambiguous commit is a no-op.
pub(crate) async fn enqueue(connection: &mut PgConnection, runs: &[NewRun]) -> Result<Enqueued, sqlx::Error> {
    let keys = sparse(runs.iter().map(|run| run.idempotency_key.as_deref()));
    let row =
        write(sql::ENQUEUE, |put| bind(sqlx::query(put), runs, Some(keys)).fetch_one(connection)).await?;
    Ok(Enqueued { created: row.try_get("created")?, isolation: row.try_get("isolation")? })
}

/// Writes a batch of runs that have no idempotency key, for the first time: nobody else can have made their ids.
pub(crate) async fn enqueue_fresh(connection: &mut PgConnection, runs: &[NewRun]) -> Result<(), sqlx::Error> {
    write(sql::ENQUEUE_FRESH, |put| bind(sqlx::query(put), runs, None).fetch_one(connection)).await.map(drop)
}

/// A batch by columns, as both statements take it; only one of them takes keys.
fn bind<'q>(
    query: Query<'q, Postgres, PgArguments>,
    runs: &'q [NewRun],
    keys: Option<Vec<Option<&'q str>>>,
) -> Query<'q, Postgres, PgArguments> {
    let texts = |part: fn(&NewRun) -> &str| runs.iter().map(part).collect::<Vec<_>>();
    let tenant = |run: &'q NewRun| Some(run.tenant.as_str()).filter(|tenant| !tenant.is_empty());
    let query = query
        .bind(runs.iter().map(|run| run.run_id).collect::<Vec<_>>())
        .bind(texts(|run| &run.job))
        .bind(sparse(runs.iter().map(tenant)))
        .bind(texts(|run| &run.queue))
        .bind(runs.iter().map(|run| run.priority).collect::<Vec<_>>())
        .bind(texts(|run| run.input.as_str()))
        .bind(sparse(runs.iter().map(|run| stored(&run.options))));
    let query = match keys {
        Some(keys) => query.bind(keys),
        None => query,
    };
    query
        .bind(sparse(runs.iter().map(|run| run.options.delay_us)))
        .bind(sparse(runs.iter().map(|run| run.options.start_at())))
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
                input: Stored::read(row.try_get("input")?),
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
pub(crate) fn loaded(options: Option<&str>) -> Result<RequestOptions, sqlx::Error> {
    Ok(options.map_or(Ok(RequestOptions::default()), RequestOptions::read)?)
}
