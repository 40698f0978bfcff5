//! A handle of a run: its state, its result, and the ways to influence it.

use std::fmt;
use std::marker::PhantomData;
use std::time::{Duration, Instant};

use sqlx::PgPool;
use uuid::Uuid;

use super::completion_listener;
use crate::connection::client_error::ClientError;
use crate::connection::db::{Db, Home, connection};
use crate::connection::db_timeout::{STATEMENT_LIMIT, with_timeout};
use crate::definition::job::Job;
use crate::definition::jobs::DefinitionOf;
use crate::model::failure::{Failure, FailureKind, words};
use crate::model::graph::GRAPH;
use crate::model::json::{self, Fields};
use crate::model::payload::{PayloadError, PayloadKind, Place, Sealer};
use crate::model::recorded::place_of_error;
use crate::model::state::RunState;
use crate::store::cancel::{self, Cancelled};
use crate::store::enqueue::existing;
use crate::store::error::{Class, class};
use crate::store::inspect::{self, AttemptInfo, End, RunInfo, StepInfo};
use crate::store::pause::{self, NotPaused, Paused};

/// How long the look at the end of a limited wait may take: enough for a busy database, and little for a silent one.
const LAST_LOOK: Duration = Duration::from_secs(1);

/// How long a wait for a result goes on without an answer of the database.
const RIDE_OUT: Duration = Duration::from_secs(30);

/// The pause before it asks again meanwhile.
const ASK_AGAIN: Duration = Duration::from_millis(200);

/// A run of the job `J`. Cheap to clone; dropping it changes nothing.
pub struct RunHandle<J> {
    run_id: Uuid,
    created: bool,
    home: Option<Home>,
    marker: PhantomData<fn() -> J>,
}

impl<J: Job> RunHandle<J> {
    pub(crate) fn new(run_id: Uuid, created: bool, home: Option<Home>) -> Self {
        Self { run_id, created, home, marker: PhantomData }
    }

    /// The handle of a run that is known by its id. The function names the job, and so the type of the result: `RunHandle::of(charge, &db, id)`.
    ///
    /// Asks the database nothing: whether there is such a run shows at the first question.
    pub fn of<Arguments, F>(function: F, db: &Db, run_id: Uuid) -> Self
    where
        F: DefinitionOf<Arguments, Job = J>,
    {
        drop(function);
        Self::new(run_id, false, Some(db.home()))
    }

    /// The same run, asked about through this database: for a handle that was made inside a transaction.
    #[must_use]
    pub fn on(&self, db: &Db) -> Self {
        Self::new(self.run_id, self.created, Some(db.home()))
    }

    /// The id of the run.
    #[must_use]
    pub fn id(&self) -> Uuid {
        self.run_id
    }

    /// Whether the enqueue made the run. False where a run with this idempotency key and an equal request existed.
    #[must_use]
    pub fn created(&self) -> bool {
        self.created
    }

    /// Where the run stands. One query.
    ///
    /// # Errors
    /// [`ClientError::NoSuchRun`], or a failure of the database.
    pub async fn state(&self) -> Result<RunState, ClientError> {
        Ok(self.end().await?.state)
    }

    /// Everything about the run but its input and output. One query.
    ///
    /// # Errors
    /// As [`state`](Self::state).
    pub async fn info(&self) -> Result<RunInfo, ClientError> {
        let mut connection = connection(self.pool()?).await?;
        inspect::run(&mut connection, self.run_id, &self.sealer())
            .await?
            .ok_or(ClientError::NoSuchRun { run_id: self.run_id })
    }

    /// The attempts of the run, and the failed tries of its steps, oldest first. One query.
    ///
    /// # Errors
    /// A failure of the database.
    pub async fn attempts(&self) -> Result<Vec<AttemptInfo>, ClientError> {
        Ok(inspect::attempts(&mut *connection(self.pool()?).await?, self.run_id, &self.sealer()).await?)
    }

    /// The recorded steps of the run, in the order of its code. One query.
    ///
    /// # Errors
    /// A failure of the database.
    pub async fn steps(&self) -> Result<Vec<StepInfo>, ClientError> {
        Ok(inspect::steps(&mut *connection(self.pool()?).await?, self.run_id, &self.sealer()).await?)
    }

    /// Waits until the run ends and gives its output. Wakes on the commit that ends the run; holds no connection while it waits, and rides out
    /// a database that is away for up to 30 seconds.
    ///
    /// # Errors
    /// [`ClientError::RunFailed`], [`RunCancelled`](ClientError::RunCancelled), [`RunBlocked`](ClientError::RunBlocked) (it may still be resumed),
    /// [`NoSuchRun`](ClientError::NoSuchRun), [`Decode`](ClientError::Decode), [`Unreadable`](ClientError::Unreadable), or a failure of the database.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing; the run goes on.
    pub async fn result(&self) -> Result<J::Output, ClientError> {
        self.wait(None).await
    }

    /// As [`result`](Self::result), for at most `limit`, whether the database answers or not: a last look at the end of `limit` has a second.
    ///
    /// # Errors
    /// As [`result`](Self::result), and [`ClientError::WaitTimedOut`] where no end is known when `limit` is over, also because the database is away.
    pub async fn result_within(&self, limit: Duration) -> Result<J::Output, ClientError> {
        let began = Instant::now();
        match tokio::time::timeout(limit.saturating_add(LAST_LOOK), self.wait(Some(limit))).await {
            Ok(result) => result,
            Err(_) => Err(self.still_going(began)),
        }
    }

    /// Cancels the run, and everything that goes on below it: the runs that it has started, and those that they have started. A run that no worker
    /// holds is cancelled at once; a running one is stopped at its next await, and starts no others meanwhile.
    ///
    /// Where steps of a [saga](crate::Saga) are recorded, what they did is taken back before the run is cancelled. A run that is parked because that failed
    /// ends by a second cancel, with the rest left undone.
    ///
    /// A run that has ended stays as it is. What it has left going on is cancelled all the same, whether it was cancelled, completed or failed.
    ///
    /// A transaction that has sent a signal locks the run until it ends. The call waits for the lock of this run for at most 10 seconds. Of a locked run
    /// below it stores the request, which a worker carries out once the run is free.
    ///
    /// Costs a transaction for each run that it cancels, and one for each page of the runs below: up to 2,000 children of up to 50 runs.
    ///
    /// # Errors
    /// [`ClientError::NoSuchRun`], or a failure of the database.
    ///
    /// # Cancel safety
    /// A dropped future may have cancelled nothing, this run, or this run and some of those below. A repetition cancels the others. Without one, a worker
    /// cancels them within about half a minute, unless this run had ended before the call or the call had stored nothing yet.
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

    /// Pauses the run until it is resumed. A run that no worker holds is paused at once; a running one leaves its worker at its next await, without
    /// spending an attempt: a body that is dropped there begins anew after the resumption, a recorded step does not. The runs that it has started go on.
    ///
    /// Nothing is lost meanwhile: what it waited for it finds when it is resumed. It can be cancelled. A paused run stays paused, with its first reason.
    ///
    /// Costs a transaction of four statements.
    ///
    /// # Errors
    /// [`ClientError::WrongState`] where the run has ended or is blocked, [`NotPausable`](ClientError::NotPausable) where it is a graph, a gate, or a node that waits for others,
    /// [`NoSuchRun`](ClientError::NoSuchRun), or a failure of the database.
    ///
    /// # Cancel safety
    /// A dropped future may or may not have paused the run. It can be repeated.
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

    /// Lets a paused run go on, or a blocked one: after a fix, it is replayed against the present code. It goes on at once; one that was paused before
    /// its instant (a delay, a retry, a sleep) waits for that. A pause that has not taken place yet does not.
    ///
    /// Costs a transaction of two statements.
    ///
    /// # Errors
    /// [`ClientError::WrongState`] where the run is neither, or a failure of the database.
    pub async fn resume(&self) -> Result<(), ClientError> {
        if pause::resume(&mut *connection(self.pool()?).await?, self.run_id).await? {
            return Ok(());
        }
        Err(ClientError::WrongState { run_id: self.run_id, state: self.state().await?, verb: "resumed" })
    }

    async fn wait(&self, limit: Option<Duration>) -> Result<J::Output, ClientError> {
        let pool = self.pool()?;
        let (began, mut answered) = (Instant::now(), Instant::now());
        let mut waiter = completion_listener::Waiter::new(pool, self.run_id);
        loop {
            let left = limit.map(|limit| limit.saturating_sub(began.elapsed()));
            let is_over = left.is_some_and(|left| left.is_zero());
            match self.end().await {
                Ok(end) if end.state.is_terminal() || end.state == RunState::Blocked => {
                    return match self.output_of(end) {
                        Err(error @ ClientError::Decode { .. }) if J::DEFINITION.name == GRAPH => {
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

    fn output_of(&self, end: End) -> Result<J::Output, ClientError> {
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

    /// An error about the type of a graph's result, if it has one.
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

    /// Where it asks, unless it was made inside a transaction.
    pub(crate) fn home(&self) -> Option<Home> {
        self.home.clone()
    }

    pub(crate) fn pool(&self) -> Result<&PgPool, ClientError> {
        self.home.as_ref().map(|home| &home.pool).ok_or(ClientError::Detached { run_id: self.run_id })
    }

    /// What opens what is stored of the run.
    pub(crate) fn sealer(&self) -> Sealer {
        self.home.as_ref().map(|home| home.sealer.clone()).unwrap_or_default()
    }

    pub(crate) fn unreadable(&self, source: PayloadError) -> ClientError {
        ClientError::Unreadable { run_id: self.run_id, source }
    }
}

impl<J: Job> Clone for RunHandle<J> {
    fn clone(&self) -> Self {
        Self::new(self.run_id, self.created, self.home.clone())
    }
}

impl<J> fmt::Debug for RunHandle<J> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunHandle").field("run_id", &self.run_id).finish_non_exhaustive()
    }
}

impl Db {
    /// Where a run stands, for programs that do not have the code of its job. One query.
    ///
    /// # Errors
    /// [`ClientError::NoSuchRun`], or a failure of the database.
    pub async fn run(&self, run_id: Uuid) -> Result<RunInfo, ClientError> {
        inspect::run(&mut *connection(self.pool()).await?, run_id, self.sealer())
            .await?
            .ok_or(ClientError::NoSuchRun { run_id })
    }

    /// The living workers, in the order in which they registered: those that hold their session lock or have had a heartbeat in the last 6 seconds (behind a
    /// pooler, where there is no lock, 30). One query.
    ///
    /// # Errors
    /// A failure of the database.
    pub async fn workers(&self) -> Result<Vec<inspect::WorkerInfo>, ClientError> {
        Ok(inspect::workers(&mut *connection(self.pool()).await?).await?)
    }

    /// Jobs that have queued runs and no living worker that serves them, each with a hint. Such runs wait; they are never failed. One query, and another
    /// where there are such.
    ///
    /// # Errors
    /// A failure of the database.
    pub async fn unserved(&self) -> Result<Vec<inspect::UnservedJob>, ClientError> {
        Ok(inspect::unserved(&mut *connection(self.pool()).await?).await?)
    }

    /// Asks another worker process to finish what it has and to stop. It learns of it at its next heartbeat. False where there is no such worker.
    ///
    /// # Errors
    /// A failure of the database.
    pub async fn drain_worker(&self, worker_id: i64) -> Result<bool, ClientError> {
        Ok(cancel::ask_drain(&mut *connection(self.pool()).await?, worker_id).await?)
    }
}
