//! Enqueue: writes runs and their queue entries in one statement.

use sqlx::postgres::PgArguments;
use sqlx::query::Query;
use sqlx::{PgConnection, Postgres, Row};
use uuid::Uuid;

use crate::model::payload::{PayloadError, PayloadKind, Place, Plain, Sealer, Stored};
use crate::model::run::request::RequestOptions;
use crate::store::write::write;
use crate::store::{sparse, sql};

/// A run to enqueue. A [`Plain`] input is not encrypted yet.
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
    /// Returns the same run with its input as it is stored.
    ///
    /// # Errors
    /// [`PayloadError`] if the input cannot be stored.
    pub(crate) fn sealed(self, sealer: &Sealer) -> Result<NewRun, PayloadError> {
        self.sealed_as(|place, plain| sealer.seal(place, plain))
    }

    /// Like [`sealed`](Self::sealed), for a run that combines the inputs of other runs. Their
    /// inputs have a size limit; the combined input has none.
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

/// The result of writing a batch.
#[derive(Debug)]
pub(crate) struct Enqueued {
    /// The new runs. The others existed before.
    pub(crate) created: Vec<Uuid>,
    /// The isolation level of the transaction.
    pub(crate) isolation: String,
}

/// The stored request that a keyed enqueue conflicted with.
#[derive(Debug)]
pub(crate) struct Existing {
    pub(crate) run_id: Uuid,
    pub(crate) input: Stored,
    pub(crate) options: RequestOptions,
}

/// Enqueues a batch. Skips a run whose id exists, so a retry after an ambiguous commit is a no-op.
pub(crate) async fn enqueue(connection: &mut PgConnection, runs: &[NewRun]) -> Result<Enqueued, sqlx::Error> {
    let keys = sparse(runs.iter().map(|run| run.idempotency_key.as_deref()));
    let row =
        write(sql::ENQUEUE, |put| bind(sqlx::query(put), runs, Some(keys)).fetch_one(connection)).await?;
    Ok(Enqueued { created: row.try_get("created")?, isolation: row.try_get("isolation")? })
}

/// Enqueues a batch of runs without idempotency keys for the first time. The caller has just made
/// their ids, so none can exist.
pub(crate) async fn enqueue_fresh(connection: &mut PgConnection, runs: &[NewRun]) -> Result<(), sqlx::Error> {
    write(sql::ENQUEUE_FRESH, |put| bind(sqlx::query(put), runs, None).fetch_one(connection)).await.map(drop)
}

/// Binds a batch as columns, as both statements take it. Only one of them takes keys.
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

/// Reads the stored requests of runs that existed before.
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

/// Returns the options as they are stored. Default options are null, which costs nothing; most runs
/// have them.
pub(crate) fn stored(options: &RequestOptions) -> Option<String> {
    if *options == RequestOptions::default() {
        return None;
    }
    // A struct of numbers and strings always has a JSON form.
    serde_json::to_string(options).ok()
}

/// Reads stored options.
pub(crate) fn loaded(options: Option<&str>) -> Result<RequestOptions, sqlx::Error> {
    Ok(options.map_or(Ok(RequestOptions::default()), RequestOptions::read)?)
}
