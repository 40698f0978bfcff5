//! A handle of a run: read its state, wait for its result, cancel, pause and resume it.

use std::fmt;
use std::marker::PhantomData;
use std::time::{Duration, Instant};

use serde_json::Value;
use sqlx::PgPool;
use uuid::Uuid;

use crate::client::completion_listener;
use crate::connection::client_error::ClientError;
use crate::connection::db::{Db, Home, connection};
use crate::connection::db_timeout::{STATEMENT_LIMIT, with_timeout};
use crate::definition::Definition;
use crate::definition::job::{Job, Payload};
use crate::definition::jobs::DefinitionOf;
use crate::model::graph::GRAPH;
use crate::model::json::{self, Fields};
use crate::model::payload::{PayloadError, PayloadKind, Place, Sealer};
use crate::model::replay::recorded::place_of_error;
use crate::model::run::failure::{Failure, FailureKind, words};
use crate::model::run::state::RunState;
use crate::store::error::{Class, class};
use crate::store::operator::cancel::{self, Cancelled};
use crate::store::operator::pause::{self, NotPaused, Paused};
use crate::store::run::enqueue::existing;
use crate::store::run::inspect::{self, AttemptInfo, End, RunInfo, StepInfo};

/// How long `result_within` may poll after its limit: enough for a busy database, short for a
/// silent one.
const LAST_LOOK: Duration = Duration::from_secs(1);

/// A wait for a result fails when the database has not answered for this long.
const RIDE_OUT: Duration = Duration::from_secs(30);

/// The pause between two polls while the database does not answer.
const ASK_AGAIN: Duration = Duration::from_millis(200);

/// A handle of a run with the output `T`, such as `RunHandle<String>`. Cheap to clone; dropping it
/// does not affect the run.
///
/// [`Call::enqueue`](crate::Call::enqueue) and [`attach`](Self::attach) return a handle that knows
/// the job. [`Db::run`] returns one that does not: its [`result`](Self::result) is JSON.
///
/// ```no_run
/// # use runledger::prelude::*;
/// #[job]
/// async fn charge(cents: i64) -> Result<String> {
///     Ok(format!("receipt over {cents} cents"))
/// }
///
/// struct Order {
///     payment: RunHandle<String>,
/// }
///
/// # async fn pay(db: &Db) -> Result<Order> {
/// Ok(Order { payment: charge(4200).enqueue(db).await? })
/// # }
/// ```
pub struct RunHandle<T = Value> {
    run_id: Uuid,
    created: bool,
    /// The job, if the handle was made with its code.
    definition: Option<&'static Definition>,
    home: Option<Home>,
    marker: PhantomData<fn() -> T>,
}

impl<T> RunHandle<T> {
    pub(crate) fn new(
        run_id: Uuid,
        created: bool,
        definition: Option<&'static Definition>,
        home: Option<Home>,
    ) -> Self {
        Self { run_id, created, definition, home, marker: PhantomData }
    }

    /// A handle of another run of the same job.
    pub(crate) fn sibling(&self, run_id: Uuid, created: bool) -> Self {
        Self { run_id, created, ..self.clone() }
    }

    /// Returns a handle of the run with this id: `RunHandle::attach(charge, &db, id)`.
    ///
    /// The function names the job and so the type of the result. This call sends no query. If the
    /// run does not exist, the first query of the handle fails.
    pub fn attach<Arguments, F>(function: F, db: &Db, run_id: Uuid) -> Self
    where
        F: DefinitionOf<Arguments>,
        F::Job: Job<Output = T>,
    {
        drop(function);
        Self::new(run_id, false, Some(F::DEFINITION), Some(db.home()))
    }

    /// Returns a handle of the same run that queries `db`. Use it for a handle made inside a
    /// transaction.
    #[must_use]
    pub fn with_db(&self, db: &Db) -> Self {
        Self { home: Some(db.home()), ..self.clone() }
    }

    /// Returns the id of the run.
    #[must_use]
    pub fn id(&self) -> Uuid {
        self.run_id
    }

    /// Whether the enqueue created the run. False if a run with the same idempotency key and an
    /// equal request existed.
    #[must_use]
    pub fn created(&self) -> bool {
        self.created
    }

    /// Returns the run's state. One query.
    ///
    /// # Errors
    /// [`ClientError::NoSuchRun`], or a database error.
    pub async fn state(&self) -> Result<RunState, ClientError> {
        Ok(self.end().await?.state)
    }

    /// Returns everything about the run except its input and output. One query.
    ///
    /// # Errors
    /// As for [`state`](Self::state).
    pub async fn info(&self) -> Result<RunInfo, ClientError> {
        let mut connection = connection(self.pool()?).await?;
        inspect::run(&mut connection, self.run_id, &self.sealer())
            .await?
            .ok_or(ClientError::NoSuchRun { run_id: self.run_id })
    }

    /// Returns the attempts of the run and the failed tries of its steps, oldest first. Empty if
    /// the run does not exist. One query.
    ///
    /// # Errors
    /// A database error.
    pub async fn attempts(&self) -> Result<Vec<AttemptInfo>, ClientError> {
        Ok(inspect::attempts(&mut *connection(self.pool()?).await?, self.run_id, &self.sealer()).await?)
    }

    /// Returns the recorded steps of the run, in the order of its code. Empty if the run does not
    /// exist. One query.
    ///
    /// # Errors
    /// A database error.
    pub async fn steps(&self) -> Result<Vec<StepInfo>, ClientError> {
        Ok(inspect::steps(&mut *connection(self.pool()?).await?, self.run_id, &self.sealer()).await?)
    }

    /// Waits until the run ends and returns its output.
    ///
    /// The commit that ends the run wakes the wait. The wait holds no connection. It survives a
    /// database outage of up to 30 s.
    ///
    /// # Errors
    /// [`ClientError::RunFailed`], [`RunCancelled`](ClientError::RunCancelled),
    /// [`RunBlocked`](ClientError::RunBlocked) (you can still resume the run),
    /// [`NoSuchRun`](ClientError::NoSuchRun), [`Decode`](ClientError::Decode),
    /// [`Unreadable`](ClientError::Unreadable), or a database error. For a graph without a result
    /// node, [`NoResult`](ClientError::NoResult) if `T` does not fit.
    ///
    /// # Cancel safety
    /// Cancel safe: dropping the future does not affect the run.
    pub async fn result(&self) -> Result<T, ClientError>
    where
        T: Payload,
    {
        self.wait(None).await
    }

    /// Waits like [`result`](Self::result), for at most `limit`.
    ///
    /// The limit also holds while the database does not answer. The last poll, after `limit`, takes
    /// at most 1 s.
    ///
    /// # Errors
    /// As for [`result`](Self::result), and [`ClientError::WaitTimedOut`] if no end is known when
    /// `limit` is over, also during a database outage.
    pub async fn result_within(&self, limit: Duration) -> Result<T, ClientError>
    where
        T: Payload,
    {
        let began = Instant::now();
        match tokio::time::timeout(limit.saturating_add(LAST_LOOK), self.wait(Some(limit))).await {
            Ok(result) => result,
            Err(_) => Err(self.still_going(began)),
        }
    }

    /// Cancels the run and all its live descendants.
    ///
    /// A run that no worker holds is cancelled at once. A worker stops a running run at its next
    /// await; from the request on, the run starts no children.
    ///
    /// - **Sagas**: if steps of a [saga](crate::Saga) are recorded, a worker compensates them
    ///   before the run is cancelled. If a compensation fails, the run is blocked. A second cancel
    ///   then ends the run and leaves the remaining compensations undone.
    /// - **Ended runs** stay as they are. Their live descendants are still cancelled, whether the
    ///   run completed, failed or was cancelled.
    /// - **Locked runs**: a transaction that sent a signal locks the run until the transaction
    ///   ends. This call waits at most 10 s for the lock of this run. For a locked descendant it
    ///   stores a cancel request, which a worker carries out after the lock is released.
    ///
    /// # Errors
    /// [`ClientError::NoSuchRun`], or a database error.
    ///
    /// # Cost
    /// One transaction per cancelled run, and one per page of descendants. A page has up to 2,000
    /// children of up to 50 runs.
    ///
    /// # Cancel safety
    /// Not cancel safe: a dropped call may have cancelled nothing, this run, or this run and some
    /// of its descendants. Repeat the call to cancel the others. Without a repetition, a worker
    /// cancels them within about 30 s, unless this run had already ended or the call had not yet
    /// stored a request.
    pub async fn cancel(&self, reason: &str) -> Result<Cancelled, ClientError> {
        let reason = words(reason);
        let reason = Some(reason.as_str());
        let mut connection = connection(self.pool()?).await?;
        let done = cancel::cancel(&mut connection, self.run_id, reason, cancel::By::Person)
            .await?
            .ok_or(ClientError::NoSuchRun { run_id: self.run_id })?;
        // A worker wakes the parents that are locked.
        cancel::cancel_below(&mut connection, &[self.run_id], reason).await?;
        Ok(done)
    }

    /// Pauses the run until you resume it.
    ///
    /// A run that no worker holds is paused at once. A running run leaves its worker at its next
    /// await and spends no attempt. A body that is dropped at that await starts again after the
    /// resume; a recorded step does not. Children of the run keep running.
    ///
    /// A paused run misses nothing: it receives the events it waited for when you resume it. You
    /// can cancel a paused run. Pausing a paused run keeps its first reason.
    ///
    /// # Errors
    /// [`ClientError::WrongState`] if the run has ended or is blocked,
    /// [`NotPausable`](ClientError::NotPausable) if it is a graph, a gate, or a node that waits for
    /// its dependencies, [`NoSuchRun`](ClientError::NoSuchRun), or a database error.
    ///
    /// # Cost
    /// One transaction of four statements.
    ///
    /// # Cancel safety
    /// Not cancel safe: a dropped call may still pause the run. Repeating it is safe.
    pub async fn pause(&self, reason: &str) -> Result<Paused, ClientError> {
        let mut connection = connection(self.pool()?).await?;
        match pause::pause(&mut connection, self.run_id, &words(reason)).await? {
            Some(Ok(paused)) => Ok(paused),
            Some(Err(NotPaused::State(state))) => {
                Err(ClientError::WrongState { run_id: self.run_id, state, verb: "paused" })
            }
            Some(Err(NotPaused::Counted)) => Err(ClientError::NotPausable { run_id: self.run_id }),
            None => Err(ClientError::NoSuchRun { run_id: self.run_id }),
        }
    }

    /// Resumes a paused or blocked run.
    ///
    /// The run continues at once. A worker replays it against the current code, so you can resume a
    /// blocked run after a fix. If the run was paused before its due time (a delay, a retry, a
    /// sleep), it still waits for that time. If a requested pause has not happened yet, this call
    /// cancels the request.
    ///
    /// # Errors
    /// [`ClientError::WrongState`] if the run is neither paused nor blocked and has no pause
    /// request, [`ClientError::NoSuchRun`], or a database error.
    ///
    /// # Cancel safety
    /// Not cancel safe: a dropped call may still resume the run. A repetition is then refused.
    ///
    /// # Cost
    /// One transaction of two statements.
    pub async fn resume(&self) -> Result<(), ClientError> {
        if pause::resume(&mut *connection(self.pool()?).await?, self.run_id).await? {
            return Ok(());
        }
        Err(ClientError::WrongState { run_id: self.run_id, state: self.state().await?, verb: "resumed" })
    }

    async fn wait(&self, limit: Option<Duration>) -> Result<T, ClientError>
    where
        T: Payload,
    {
        let pool = self.pool()?;
        let (began, mut answered) = (Instant::now(), Instant::now());
        let mut waiter = completion_listener::Waiter::new(pool, self.run_id);
        loop {
            let left = limit.map(|limit| limit.saturating_sub(began.elapsed()));
            let is_over = left.is_some_and(|left| left.is_zero());
            match self.end().await {
                Ok(end) if end.state.is_terminal() || end.state == RunState::Blocked => {
                    return match self.output_of(end) {
                        Err(error @ ClientError::Decode { .. }) if self.is_of_graph() => {
                            Err(self.unless_undeclared(error).await?)
                        }
                        output => output,
                    };
                }
                Ok(_) if is_over => return Err(self.still_going(began)),
                Ok(_) => {
                    answered = Instant::now();
                    waiter.wait(left).await;
                }
                Err(ClientError::Database(error) | ClientError::Connect { source: error, .. })
                    if matches!(class(&error), Class::Transient | Class::Refused)
                        && answered.elapsed() < RIDE_OUT =>
                {
                    if is_over {
                        return Err(self.still_going(began));
                    }
                    tracing::debug!(%error, run_id = %self.run_id, "a wait for a result waits for the database");
                    tokio::time::sleep(ASK_AGAIN).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn still_going(&self, began: Instant) -> ClientError {
        ClientError::WaitTimedOut { run_id: self.run_id, waited: began.elapsed() }
    }

    fn output_of(&self, end: End) -> Result<T, ClientError>
    where
        T: Payload,
    {
        let run_id = self.run_id;
        let sealer = self.sealer();
        let failure = end.failure.map_or_else(
            || Failure::new(FailureKind::Error, "no reason was kept"),
            |failure| sealer.show_failure(&place_of_error(run_id, ""), &failure),
        );
        match end.state {
            RunState::Failed => Err(ClientError::RunFailed { run_id, failure }),
            RunState::Cancelled => Err(ClientError::RunCancelled { run_id, failure }),
            RunState::Blocked => Err(ClientError::RunBlocked { run_id, failure }),
            RunState::Completed
            | RunState::Queued
            | RunState::Running
            | RunState::Waiting
            | RunState::Paused => {
                let place = Place::new(run_id, PayloadKind::Output, "");
                let output = end.output.map(|output| sealer.open(&place, output)).transpose();
                let output = output.map_err(|source| self.unreadable(source))?;
                let output = output.unwrap_or_else(|| "null".to_owned());
                json::decode(&output).map_err(|source| ClientError::Decode { run_id, source })
            }
        }
    }

    /// The error to report if `result` cannot decode a graph's output: `NoResult` if the graph
    /// declares no result.
    async fn unless_undeclared(&self, error: ClientError) -> Result<ClientError, ClientError> {
        let run_id = self.run_id;
        let found = existing(&mut *connection(self.pool()?).await?, &[run_id]).await?;
        let Some(request) = found.into_iter().next() else { return Ok(error) };
        let request = self.sealer().open(&Place::new(run_id, PayloadKind::Input, ""), request.input);
        let request = request.map_err(|source| self.unreadable(source))?;
        let declared = Fields::parse(&request).is_ok_and(|request| request.has("result"));
        Ok(if declared { error } else { ClientError::NoResult { run_id } })
    }

    async fn end(&self) -> Result<End, ClientError> {
        let mut connection = connection(self.pool()?).await?;
        with_timeout(STATEMENT_LIMIT, inspect::end_of_run(&mut connection, self.run_id))
            .await?
            .ok_or(ClientError::NoSuchRun { run_id: self.run_id })
    }

    /// The job of the run, if the handle was made with its code.
    pub(crate) fn definition(&self) -> Option<&'static Definition> {
        self.definition
    }

    fn is_of_graph(&self) -> bool {
        self.definition.is_some_and(|definition| definition.name == GRAPH)
    }

    /// The database that the handle queries. `None` if the handle was made inside a transaction.
    pub(crate) fn home(&self) -> Option<Home> {
        self.home.clone()
    }

    pub(crate) fn pool(&self) -> Result<&PgPool, ClientError> {
        self.home.as_ref().map(|home| &home.pool).ok_or(ClientError::Detached { run_id: self.run_id })
    }

    /// The sealer that opens the run's stored payloads.
    pub(crate) fn sealer(&self) -> Sealer {
        self.home.as_ref().map(|home| home.sealer.clone()).unwrap_or_default()
    }

    pub(crate) fn unreadable(&self, source: PayloadError) -> ClientError {
        ClientError::Unreadable { run_id: self.run_id, source }
    }
}

impl<T> Clone for RunHandle<T> {
    fn clone(&self) -> Self {
        let Self { run_id, created, definition, ref home, marker } = *self;
        Self { run_id, created, definition, home: home.clone(), marker }
    }
}

impl<T> fmt::Debug for RunHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunHandle").field("run_id", &self.run_id).finish_non_exhaustive()
    }
}

impl Db {
    /// Returns a handle of the run with this id, for programs without the code of its job:
    /// `db.run(id).info().await?`.
    ///
    /// This call sends no query. If the run does not exist, the first query of the handle fails.
    /// Its [`result`](RunHandle::result) is the output as JSON. [`RunHandle::attach`] returns a
    /// handle with the type of a job's output.
    #[must_use]
    pub fn run(&self, run_id: Uuid) -> RunHandle {
        RunHandle::new(run_id, false, None, Some(self.home()))
    }

    /// Returns the live workers, in the order of their registration. One query.
    ///
    /// A worker is live if it holds its session lock, or if its last heartbeat is at most 6 s old.
    /// Behind a pooler there is no session lock, and the limit is 30 s.
    ///
    /// # Errors
    /// A database error.
    pub async fn workers(&self) -> Result<Vec<inspect::WorkerInfo>, ClientError> {
        Ok(inspect::workers(&mut *connection(self.pool()).await?).await?)
    }

    /// Returns the jobs that have queued runs but no live worker that serves them, each with a
    /// hint.
    ///
    /// Such runs wait; they do not fail. One query, and a second one if such jobs exist.
    ///
    /// # Errors
    /// A database error.
    pub async fn unserved(&self) -> Result<Vec<inspect::UnservedJob>, ClientError> {
        Ok(inspect::unserved(&mut *connection(self.pool()).await?).await?)
    }

    /// Asks another worker process to finish its claimed runs and stop.
    ///
    /// The worker receives the request at its next heartbeat. Returns false if no such worker
    /// exists.
    ///
    /// # Errors
    /// A database error.
    pub async fn drain_worker(&self, worker_id: i64) -> Result<bool, ClientError> {
        Ok(cancel::ask_drain(&mut *connection(self.pool()).await?, worker_id).await?)
    }
}
