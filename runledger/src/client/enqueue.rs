//! Enqueue: turns calls into runs, in their own transaction or in the caller's.

use std::collections::HashMap;
use std::future::Future;
use std::time::Duration;

use sqlx::{Connection, PgConnection, PgPool};
use uuid::Uuid;

use crate::client::handle::RunHandle;
use crate::connection::client_error::ClientError;
use crate::connection::db::{Db, EnqueueTarget, Home, Target, connection, not_between_steps, why_none};
use crate::connection::inbox::Delivery;
use crate::definition::call::{AnyCall, Call, Request};
use crate::definition::job::Job;
use crate::definition::registry;
use crate::model::json::{canonical, first_difference};
use crate::model::payload::{PayloadKind, Place, Sealer, Stored};
use crate::model::run::name::{check_job_name, hint};
use crate::model::run::request::ActiveKey;
use crate::model::run::version::{FIRST, listed, others, parts, stored_name};
use crate::store::error::{Class, class};
use crate::store::operator::deadline;
use crate::store::run::active::{self, Given, Holder};
use crate::store::run::enqueue::{Enqueued, NewRun, enqueue, enqueue_fresh, existing};
use crate::store::run::inspect::jobs_known;
use crate::store::session::{BEGIN, is_read_committed};
use crate::store::write::commit;

/// How often an enqueue on a pool is tried if the server or the network fails. Repeating is safe,
/// because the client creates the run ids.
const TRIES: u32 = 4;

/// The delay before the first repetition. It doubles each time.
const FIRST_DELAY: Duration = Duration::from_millis(20);

/// A run that a batch enqueued or found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct EnqueuedRun {
    /// The id of the run.
    pub run_id: Uuid,
    /// Whether the batch created the run. False if a run with the same idempotency key and an equal
    /// request existed.
    pub created: bool,
}

impl<J: Job> Call<J> {
    /// Enqueues the call and returns a handle to its run.
    ///
    /// On a [`Db`](crate::Db) or a pool, the enqueue has its own transaction. In the caller's open
    /// transaction, the run exists if and only if that transaction commits. No worker needs to be
    /// running, and this program does not need to register the job.
    ///
    /// # Errors
    /// [`ClientError`]: the input cannot be encoded; a name, key or tenant is invalid; the
    /// idempotency key was used for a different request; the call has a key and the caller's
    /// transaction is above `read committed`; or the database failed. In all these cases nothing is
    /// written.
    ///
    /// # Cost
    /// One statement on a [`Db`](crate::Db); concurrent calls without a key share it. On a pool of
    /// the application, one transaction around the statement. One more statement if the key exists.
    ///
    /// # Cancel safety
    /// Not cancel safe: a dropped call may still enqueue the run. Repeating it is safe with an
    /// idempotency key.
    pub fn enqueue<'c, V: EnqueueTarget<'c>>(
        self,
        target: V,
    ) -> impl Future<Output = Result<RunHandle<J::Output>, ClientError>> + Send + use<'c, J, V> {
        let route = target.target();
        async move {
            let home = home_of(&route);
            let submitted = submit(vec![self.request], route).await?;
            match submitted.first() {
                Some(run) => Ok(RunHandle::new(run.run_id, run.created, Some(J::DEFINITION), home)),
                None => Err(ClientError::Config("the database answered an enqueue with nothing".to_owned())),
            }
        }
    }
}

/// Enqueues many calls in one statement and returns their runs in the order of the calls.
///
/// The calls may be of different jobs. An empty batch does nothing.
///
/// # Errors
/// As for [`Call::enqueue`]. The batch is written completely or not at all.
pub fn enqueue_all<'c, C, V>(
    calls: impl IntoIterator<Item = C>,
    target: V,
) -> impl Future<Output = Result<Vec<EnqueuedRun>, ClientError>> + Send
where
    C: Into<AnyCall>,
    V: EnqueueTarget<'c>,
{
    let requests: Vec<Request> = calls.into_iter().map(|call| call.into().request).collect();
    let route = target.target();
    submit(requests, route)
}

async fn submit(mut requests: Vec<Request>, mut route: Target<'_>) -> Result<Vec<EnqueuedRun>, ClientError> {
    not_between_steps()?;
    route.check_path().await?;
    for request in requests.iter_mut().filter(|request| request.definition.is_none()) {
        match registry::named(&request.job, request.version) {
            Some((definition, stored)) => request.adopt(definition, stored),
            None => check_is_known(&request.job, request.version.unwrap_or(FIRST), &mut route).await?,
        }
    }
    if requests.is_empty() {
        return Ok(Vec::new());
    }
    let sealer = route.sealer()?;
    let sealed = |request: Request| {
        let run = request.into_new_run()?;
        let job = run.job.clone();
        run.sealed(&sealer).map_err(|source| ClientError::Encode { job, source })
    };
    let batch = Batch { runs: requests.into_iter().map(sealed).collect::<Result<_, _>>()?, sealer: &sealer };
    match route {
        Target::Tx(connection, _) | Target::Connection(connection, _) => {
            submit_on_connection(connection, &batch, true).await
        }
        Target::Db(db) => submit_on_db(db, &batch).await,
        Target::Pool(pool) => submit_on_pool(pool, &batch, false, true).await,
    }
}

/// Runs to write, and the sealer that opens existing runs with the same keys.
struct Batch<'s> {
    runs: Vec<NewRun>,
    sealer: &'s Sealer,
}

/// A single run without a key shares its commit with other enqueues of this client.
async fn submit_on_db(db: &Db, batch: &Batch<'_>) -> Result<Vec<EnqueuedRun>, ClientError> {
    let [run] = &batch.runs[..] else { return submit_on_pool(db.pool(), batch, true, true).await };
    if run.idempotency_key.is_some() || !run.options.are_of_one_statement() {
        return submit_on_pool(db.pool(), batch, true, true).await;
    }
    match db.inbox().put(db.pool(), run.clone()).await {
        Delivery::Committed => Ok(vec![EnqueuedRun { run_id: run.run_id, created: true }]),
        Delivery::NoConnection => Err(why_none(db.pool()).await),
        Delivery::Unknown => submit_on_pool(db.pool(), batch, true, false).await,
    }
}

/// On a caller's connection. A savepoint makes the batch atomic: a key conflict of one run must
/// undo the others, and a run must not exist without its deadline or its active key.
async fn submit_on_connection(
    connection: &mut PgConnection,
    batch: &Batch<'_>,
    is_first: bool,
) -> Result<Vec<EnqueuedRun>, ClientError> {
    let runs = &batch.runs;
    let is_one_statement = runs.len() == 1 || runs.iter().all(|run| run.idempotency_key.is_none());
    if is_one_statement && runs.iter().all(|run| run.options.are_of_one_statement()) {
        return submit_on(connection, batch, is_first).await;
    }
    let mut tx = connection.begin().await?;
    let submitted = submit_on(&mut tx, batch, is_first).await?;
    commit("batch", tx.commit()).await?;
    Ok(submitted)
}

async fn submit_on_pool(
    pool: &PgPool,
    batch: &Batch<'_>,
    is_clean: bool,
    is_first: bool,
) -> Result<Vec<EnqueuedRun>, ClientError> {
    let (mut tries, mut is_first) = (Tries::new(), is_first);
    loop {
        match submit_once(&mut *connection(pool).await?, batch, is_clean, is_first).await {
            Err(error) if tries.again(&error).await => is_first = false,
            answer => return answer,
        }
    }
}

/// The tries of an enqueue on a pool. Repeating is safe, because the client creates the run ids.
pub(crate) struct Tries {
    left: u32,
    delay: Duration,
}

impl Tries {
    pub(crate) fn new() -> Self {
        Self { left: TRIES - 1, delay: FIRST_DELAY }
    }

    /// Waits before the next try. Returns false if no try is left or the error is permanent.
    pub(crate) async fn again(&mut self, error: &ClientError) -> bool {
        let ClientError::Database(error) = error else { return false };
        if self.left == 0 || class(error) == Class::Permanent {
            return false;
        }
        tracing::debug!(%error, "enqueue is repeated");
        tokio::time::sleep(self.delay).await;
        (self.left, self.delay) = (self.left - 1, self.delay * 2);
        true
    }
}

async fn submit_once(
    connection: &mut PgConnection,
    batch: &Batch<'_>,
    is_clean: bool,
    is_first: bool,
) -> Result<Vec<EnqueuedRun>, ClientError> {
    if is_clean {
        return submit_on_connection(connection, batch, is_first).await;
    }
    // The application may have dropped a future inside `begin()`. Then a connection of its pool has
    // an open transaction that nobody commits. Our own transaction ends it and commits our rows.
    let mut tx = connection.begin_with(BEGIN).await?;
    let submitted = submit_on(&mut tx, batch, is_first).await?;
    commit("enqueue_on_pool", tx.commit()).await?;
    Ok(submitted)
}

async fn submit_on(
    connection: &mut PgConnection,
    batch: &Batch<'_>,
    is_first: bool,
) -> Result<Vec<EnqueuedRun>, ClientError> {
    let Batch { runs, sealer } = batch;
    if is_first && runs.iter().all(|run| run.idempotency_key.is_none()) {
        enqueue_fresh(&mut *connection, runs).await?;
        deadline::set(&mut *connection, runs.iter()).await?;
        activate_all(connection, runs.iter()).await?;
        return Ok(runs.iter().map(|run| EnqueuedRun { run_id: run.run_id, created: true }).collect());
    }
    // One statement cannot write one key twice, so a repetition is compared with the first run of
    // its key.
    let mut first: HashMap<Uuid, &NewRun> = HashMap::with_capacity(runs.len());
    let mut distinct: Vec<NewRun> = Vec::with_capacity(runs.len());
    for run in runs {
        match first.get(&run.run_id) {
            Some(twin) => same_request(sealer, run, &twin.input, &twin.options)?,
            None => {
                first.insert(run.run_id, run);
                distinct.push(run.clone());
            }
        }
    }
    // All batches use one order, so two batches with the same keys cannot deadlock.
    distinct.sort_unstable_by_key(|run| run.run_id);
    let Enqueued { created, isolation } = enqueue(&mut *connection, &distinct).await?;
    let mut created: std::collections::HashSet<Uuid> = created.into_iter().collect();
    // An existing run already has its deadline (or has passed it), and got its active key when
    // created.
    let new = distinct.iter().filter(|run| created.contains(&run.run_id));
    deadline::set(&mut *connection, new.clone()).await?;
    activate_all(&mut *connection, new).await?;
    let met: Vec<Uuid> = distinct
        .iter()
        .filter(|run| run.idempotency_key.is_some() && !created.contains(&run.run_id))
        .map(|run| run.run_id)
        .collect();
    if !met.is_empty() {
        if !is_read_committed(&isolation) {
            return Err(ClientError::Isolation { what: "a keyed enqueue", level: isolation });
        }
        for found in existing(connection, &met).await? {
            if let Some(run) = first.get(&found.run_id) {
                same_request(sealer, run, &found.input, &found.options)?;
            }
        }
    }
    Ok(runs
        .iter()
        .map(|run| EnqueuedRun {
            run_id: run.run_id,
            // An id without a key is unique to this call: if it existed, an earlier try wrote it. A
            // keyed run is created once.
            created: run.idempotency_key.is_none() || created.remove(&run.run_id),
        })
        .collect())
}

/// Stores the active keys of the runs that this transaction wrote.
async fn activate_all<'r>(
    connection: &mut PgConnection,
    runs: impl Iterator<Item = &'r NewRun>,
) -> Result<(), ClientError> {
    let mut keys = HashMap::new();
    for run in runs {
        let Some(ActiveKey { job, key }) = &run.options.active_key else { continue };
        if keys.insert((&run.tenant, job, key), run.run_id).is_some() {
            let message = format!(
                "two calls of job `{job}` in one batch have the active key `{key}`, and both would go on; nothing was written; leave one of them out"
            );
            return Err(ClientError::Config(message));
        }
    }
    let runs: Vec<Uuid> = keys.into_values().collect();
    if runs.is_empty() { Ok(()) } else { activate(connection, &runs).await }
}

/// Stores the active keys of runs. If it fails, the transaction that wrote the runs must not
/// commit.
///
/// # Errors
/// [`ClientError::Active`] if another run has one of the keys.
pub(crate) async fn activate(connection: &mut PgConnection, runs: &[Uuid]) -> Result<(), ClientError> {
    let Given { refused, isolation } = active::give(&mut *connection, runs).await?;
    let Some(refused) = refused.first() else { return Ok(()) };
    if !is_read_committed(&isolation) {
        return Err(ClientError::Isolation { what: "a call with an active key", level: isolation });
    }
    match active::holder(connection, *refused).await? {
        Some(Holder { job, key, run_id }) => Err(ClientError::Active { job, key, run_id }),
        // The holder ended and was deleted between the two statements.
        None => Err(ClientError::NoSuchRun { run_id: *refused }),
    }
}

/// Refuses a request that differs from the one stored under its key. The job is the same, because
/// the id includes it. Its name may differ if a program from before or after a renaming wrote the
/// run.
fn same_request(
    sealer: &Sealer,
    run: &NewRun,
    input: &Stored,
    options: &crate::model::run::request::RequestOptions,
) -> Result<(), ClientError> {
    let difference = match run.options.first_difference(options) {
        Some(part) => Some(part.to_owned()),
        // If the values are sealed, the error does not show the keys of maps either.
        None => stored_difference(sealer, run, input, input_difference)?
            .map(|part| if sealer.seals() { "input".to_owned() } else { part }),
    };
    match difference {
        None => Ok(()),
        Some(difference) => Err(ClientError::Conflict {
            job: run.job.clone(),
            key: run.idempotency_key.clone().unwrap_or_default(),
            run_id: run.run_id,
            difference,
        }),
    }
}

/// Returns the difference between the input of an existing run and the new one. Both are opened,
/// because equal texts seal to different bytes.
pub(crate) fn stored_difference(
    sealer: &Sealer,
    run: &NewRun,
    input: &Stored,
    difference: fn(&str, &str) -> Option<String>,
) -> Result<Option<String>, ClientError> {
    let place = Place::new(run.run_id, PayloadKind::Input, "");
    let opened = |input: &Stored| sealer.open(&place, input.clone());
    let both = opened(&run.input).and_then(|one| Ok((one, opened(input)?)));
    let (one, other) = both.map_err(|source| ClientError::Unreadable { run_id: run.run_id, source })?;
    Ok(difference(&one, &other))
}

pub(crate) fn input_difference(one: &str, other: &str) -> Option<String> {
    match (canonical(one), canonical(other)) {
        (Ok(one), Ok(other)) => first_difference(&one, &other).map(|path| format!("input `{path}`")),
        // One of them is not JSON written by this client: compare the raw texts.
        _ => (one != other).then(|| "input".to_owned()),
    }
}

/// Refuses a name and version that neither this program nor a live worker knows, if any job is
/// known.
async fn check_is_known(name: &str, version: u32, route: &mut Target<'_>) -> Result<(), ClientError> {
    unknown_job(&known_jobs(route).await?, name, version).map_or(Ok(()), Err)
}

/// Returns the stored names of all jobs that this program or a live worker knows.
pub(crate) async fn known_jobs(route: &mut Target<'_>) -> Result<Vec<String>, ClientError> {
    let mut known: Vec<String> = registry::registered()
        .flat_map(|definition| {
            definition.names().map(|its| stored_name(its, definition.version).into_owned())
        })
        .collect();
    known.extend(match route {
        Target::Db(db) => jobs_known(&mut *connection(db.pool()).await?).await?,
        Target::Pool(pool) => jobs_known(&mut *connection(pool).await?).await?,
        Target::Tx(connection, _) | Target::Connection(connection, _) => jobs_known(connection).await?,
    });
    Ok(known)
}

/// Returns the error for an unknown job in this version. `None` if the job is known or no job is
/// known.
pub(crate) fn unknown_job(known: &[String], name: &str, version: u32) -> Option<ClientError> {
    if let Err(error) = check_job_name(name) {
        return Some(error.into());
    }
    let stored = stored_name(name, version);
    if known.is_empty() || known.iter().any(|job| *job == stored) {
        return None;
    }
    let others = others(&stored, known.iter().map(String::as_str));
    let hint = if others.is_empty() {
        hint(name, known.iter().map(|known| parts(known).0))
    } else {
        format!(" in version {version}, but in {}: say which with `.version(…)`", listed(&others))
    };
    Some(ClientError::UnknownJob { name: name.to_owned(), hint })
}

pub(crate) fn home_of(route: &Target<'_>) -> Option<Home> {
    match route {
        Target::Db(db) => Some(db.home()),
        Target::Pool(pool) => Some(Home { pool: (*pool).clone(), sealer: Sealer::default() }),
        Target::Tx(..) | Target::Connection(..) => None,
    }
}
