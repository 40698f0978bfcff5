//! Transactional bodies: one commit for the user's writes and the record of the body.

pub(super) mod limits;

use std::future::Future;
use std::sync::Arc;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use sqlx::PgConnection;
use tokio::sync::{AcquireError, OwnedSemaphorePermit};
use uuid::Uuid;

use crate::connection::db_timeout::{STATEMENT_LIMIT, has_timed_out, with_timeout};
use crate::connection::outage::warn_outage;
use crate::connection::task::spawn_detached;
use crate::connection::tx::Tx;
use crate::definition::invocation::Finished;
use crate::engine::attempt::Attempt;
use crate::engine::attempt::stop::StopReason;
use crate::engine::step::{Unstorable, Work, checkpoint_of, note_compensation, stop_reason, unit_random};
use crate::engine::transaction::limits::{Meddling, Met, met};
use crate::model::payload::{PayloadError, Place, Plain, Stored};
use crate::model::replay::Claim;
use crate::model::replay::recorded::place_of_error;
use crate::model::run::failure::{Failure, FailureKind, Retry};
use crate::store::attempt::checkpoint::{Checkpoint, Found, body_state, checkpoint, recorded};
use crate::store::attempt::settle::{InBody, Settled, settle_in};
use crate::store::attempt::wait::Above;
use crate::store::error::{Cause, Class, Limit, Reason, class, lives, own_cause};
use crate::store::session::limits::may_write;
use crate::store::write;

/// How often a body runs if its transaction meets serialization failures or deadlocks. Then it
/// fails.
const CONFLICTS: u32 = 5;

/// How often a body runs if its connection is lost, or the server cancels one of its statements. A
/// failing network or another session's lock is no failure of the body. But the body itself may end
/// its session or take too long.
const INTERRUPTIONS: u32 = 10;

/// The pause before the body runs again. It doubles up to seven times. Jitter adds up to the same
/// again, so that two bodies that collided do not collide again.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const DOUBLINGS: u32 = 7;

/// The pause between two queries for the fate of a commit whose answer was lost.
const ASK_AGAIN: Duration = Duration::from_millis(200);

/// How long the connection of a failed body may take to answer.
const PONG: Duration = Duration::from_secs(2);

/// How long a body runs again while the server refuses writes. Then it fails. This is longer than a
/// failover, or than a full disk that an operator repairs. A body that fills the disk itself must
/// not run for ever.
const REFUSED: Duration = Duration::from_secs(60);

/// The longest pause of a body that waits for a writable server.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// The record that is written in the body's transaction before the commit.
#[derive(Clone, Copy)]
pub(crate) enum Commit<'a, 'w> {
    /// The checkpoint of a step.
    Step { claim: &'a Claim, work: &'a Work<'w> },
    /// The settlement of a run whose job is transactional.
    Run { above: Above },
}

impl Commit<'_, '_> {
    /// The ordinal of the step. `None` for a run.
    fn ordinal(self) -> Option<u64> {
        match self {
            Self::Step { claim, .. } => Some(claim.ordinal),
            Self::Run { .. } => None,
        }
    }
}

/// Runs a body in a transaction, records it there, and commits. Returns the recorded result, or the
/// failure of the body.
pub(crate) async fn perform<F>(
    attempt: &Arc<Attempt>,
    commit: Commit<'_, '_>,
    run: impl Fn(Tx) -> F,
) -> Result<Result<String, Failure>, (Failure, Retry)>
where
    F: Future<Output = Finished>,
{
    let mut tries = 1;
    let mut waited = Duration::ZERO;
    let mut meddled = false;
    loop {
        // Held until the end of this try. If the semaphore were closed, there would be no limit.
        let permit = Arc::clone(&attempt.transactions).acquire_owned().await;
        let (tx, mark) = begin(attempt).await;
        let began = Instant::now();
        let finished = run(tx).await;
        let undone = match (finished.result, finished.tx) {
            (Err(failed), tx) => match undone_by(failed.1, finished.undone, tx, &mark).await {
                Ended::Undone(cause, meddling) => {
                    drop(permit);
                    Undone { failed, cause, meddling, may_be_limit: true }
                }
                Ended::ByStatement(cause) => {
                    return Err(explained(attempt, failed, cause, began.elapsed()).await);
                }
                Ended::ByBody => return Err(failed),
            },
            (Ok(_), None) => return Err(no_transaction()),
            (Ok(output), Some(tx)) => {
                match finish(attempt, commit, (tx, permit, meddled), &mark, &output).await {
                    End::Done => return Ok(Ok(output.into_text())),
                    End::Recorded(result) => return Ok(result),
                    End::Failed(failed) => return Err(failed),
                    End::ByStatement(failed, cause) => {
                        return Err(explained(attempt, failed, cause, began.elapsed()).await);
                    }
                    End::Undone(undone) => *undone,
                    End::Halted(stop) => return stop_reason(attempt, stop).await,
                }
            }
        };
        let Undone { failed, cause, meddling, may_be_limit } = undone;
        // Fail on the second time only. A server may have been promoted between the statement and
        // the check, and the engine queries the role only before the second record.
        if let Some(meddling) = meddling.filter(|_| std::mem::replace(&mut meddled, true)) {
            return Err((meddling.failure(failed.0), Retry::Never));
        }
        if cause.class == Class::Refused && waited < REFUSED {
            warn_outage!(static, failure = %attempt.sealer().loggable(&failed.0), "a transactional body waits for a server that writes");
            // Pauses grow with the time waited so far, up to 5 s, because each try runs the body
            // again.
            let pause = (ASK_AGAIN + waited / 3).min(LONGEST_PAUSE);
            tokio::time::sleep(pause).await;
            waited += pause;
            continue;
        }
        if cause.class == Class::Refused {
            return Err(last(&format!("try of {} s", waited.as_secs()), failed));
        }
        let limit = if may_be_limit { met(attempt, cause, began.elapsed()).await } else { None };
        let most = limit.as_ref().and_then(Met::most_tries).unwrap_or_else(|| most_tries(cause.class));
        let setting = limit.as_ref().map(Met::setting);
        let failed = match &limit {
            Some(limit) => (limit.explain(failed.0), failed.1),
            None if tries >= most => last(&format!("of {tries} tries"), failed),
            None => failed,
        };
        if tries >= most {
            return Err(failed);
        }
        if cause.class != Class::Conflict {
            tracing::warn!(
                run_id = %attempt.fence.run_id, job = attempt.definition.name, tries, setting, failure = %attempt.sealer().loggable(&failed.0),
                "the transaction of a body was undone; the body runs again"
            );
        }
        let pause = FIRST_PAUSE * 2_u32.pow((tries - 1).min(DOUBLINGS));
        tokio::time::sleep(pause.mul_f64(1.0 + unit_random())).await;
        tries += 1;
    }
}

/// The failure after the last of several tries.
fn last(tries: &str, (failure, retry): (Failure, Retry)) -> (Failure, Retry) {
    let message = format!("the last {tries}: {}", failure.message);
    (Failure { message, ..failure }, retry)
}

/// A transaction that was rolled back for a reason other than its body's failure.
struct Undone {
    failed: (Failure, Retry),
    cause: Cause,
    /// Whether the body prevented the engine from recording.
    meddling: Option<Meddling>,
    /// Whether an operator's limit may be the reason. After a lost commit that is so only if the
    /// server names the limit, because the engine sets its own idle limit before it writes the
    /// record. If the engine itself stopped waiting for a statement, no limit is the reason.
    may_be_limit: bool,
}

/// Adds the limit to a body's failure, if one of its statements reached a limit.
async fn explained(
    attempt: &Attempt,
    (failure, retry): (Failure, Retry),
    cause: Cause,
    lasted: Duration,
) -> (Failure, Retry) {
    match met(attempt, cause, lasted).await.filter(Met::is_certain) {
        Some(limit) => (limit.explain(failure), retry),
        None => (failure, retry),
    }
}

fn most_tries(class: Class) -> u32 {
    match class {
        Class::Conflict => CONFLICTS,
        Class::Transient | Class::Refused | Class::Permanent => INTERRUPTIONS,
    }
}

/// How the transaction of a failed body ended.
enum Ended {
    /// The body failed for its own reasons. This includes errors of another database, and errors
    /// that the body classified.
    ByBody,
    /// A statement of the body failed.
    ByStatement(Cause),
    /// The database rolled it back, or the body changed its transaction.
    Undone(Cause, Option<Meddling>),
}

async fn undone_by(retry: Retry, cause: Option<Cause>, tx: Option<Tx>, mark: &str) -> Ended {
    let Some(cause) = cause.filter(|_| retry == Retry::Policy) else { return Ended::ByBody };
    if cause.class == Class::Conflict {
        return Ended::Undone(cause, None);
    }
    let Some(mut tx) = tx else { return Ended::ByBody };
    // In a failed transaction, the server answers with an error. On a lost connection, it does not
    // answer.
    match with_timeout(PONG, body_state(&mut tx, mark)).await {
        Ok(_) => Ended::ByBody,
        Err(error) if !is_aborted(&error) => Ended::Undone(cause, None),
        Err(_) => match cause.class {
            Class::Refused => Ended::Undone(cause, meddling(&mut tx, cause, None).await),
            Class::Conflict | Class::Transient | Class::Permanent => Ended::ByStatement(cause),
        },
    }
}

/// Finds the change by which the body made its transaction unwritable. The transaction has already
/// failed.
async fn meddling(tx: &mut PgConnection, cause: Cause, role: Option<&[u8]>) -> Option<Meddling> {
    if !Meddling::is_possible(cause) {
        return None;
    }
    let may = with_timeout(PONG, may_write(tx)).await.ok()?;
    Meddling::of(cause, &may, role)
}

enum End {
    Done,
    /// An earlier commit recorded it, but its answer was lost.
    Recorded(Result<String, Failure>),
    /// Another transaction conflicted, or the connection was lost. Nothing was written.
    Undone(Box<Undone>),
    Failed((Failure, Retry)),
    /// The commit failed as a statement of the body does.
    ByStatement((Failure, Retry), Cause),
    /// The attempt must stop.
    Halted(StopReason),
}

/// A transaction, the permit for its connection, and whether its body may have changed the
/// transaction.
type Permitted = (Tx, Result<OwnedSemaphorePermit, AcquireError>, bool);

/// Records the output of a body and commits, in a detached task.
///
/// The result of the commit must be known even if the waiting future is dropped, and the end of the
/// attempt waits for it. An earlier settlement would wait for the lease in the commit queue, and
/// delay all other runs.
async fn finish(
    attempt: &Arc<Attempt>,
    commit: Commit<'_, '_>,
    (tx, permit, suspected): Permitted,
    mark: &str,
    output: &Plain,
) -> End {
    let record = match Record::of(attempt, commit, output) {
        Ok(record) => record,
        Err(Unstorable::For(failure)) => return End::Failed((failure, Retry::Never)),
        Err(Unstorable::Now(failure)) => return End::Halted(StopReason::Sealed(failure)),
    };
    let (recording, mark) = (attempt.recording(record.key().unwrap_or_default()), mark.to_owned());
    let committed = spawn_detached("recording", |_| async move {
        let _permit = permit;
        let attempt = recording.attempt();
        tokio::select! {
            biased;
            end = write_and_commit(attempt, record, tx, &mark, suspected) => Some(end),
            // The worker has stopped, so this result has no receiver.
            () = attempt.commit_queue.closed(attempt.fence.run_id) => None,
        }
    });
    let lets_go = commit.ordinal().filter(|ordinal| attempt.lets_go_of_transaction(*ordinal));
    let Some(end) = Box::pin(committed).await else { return std::future::pending().await };
    if let (Some(ordinal), End::Undone(..)) = (lets_go, &end) {
        // The next try begins another transaction.
        attempt.holds_transaction(ordinal);
    }
    end
}

async fn write_and_commit(attempt: &Attempt, record: Record, mut tx: Tx, mark: &str, suspected: bool) -> End {
    let mut role = None;
    let write = async {
        if suspected {
            role = Some(body_state(&mut tx, mark).await?.role);
        }
        record.write(&mut tx, mark).await
    };
    match with_timeout(STATEMENT_LIMIT, write).await {
        Ok(true) => {}
        Ok(false) => return unwritten(&mut tx, mark).await,
        Err(error) if is_aborted(&error) => return End::Failed(went_on(&error)),
        Err(error) if class(&error) == Class::Permanent => {
            return End::Failed((Failure::from_chain(FailureKind::Error, &error), Retry::Never));
        }
        Err(error) if has_timed_out(&error) => return undone_by_engine(&error),
        Err(error) => {
            let meddling = meddling(&mut tx, own_cause(&error), role.as_deref()).await;
            return undone_with(&error, meddling, true);
        }
    }
    write::of_steps(record.key().into_iter());
    match with_timeout(STATEMENT_LIMIT, write::commit("body", tx.commit_whole())).await {
        Ok(()) => {
            record.acknowledge(attempt);
            End::Done
        }
        Err(error) => match (class(&error), own_cause(&error)) {
            (Class::Conflict, _) => undone(&error),
            // A deferred constraint or trigger failed, which counts as a failed statement of the
            // body.
            (Class::Permanent, cause)
            | (_, cause @ Cause { reason: Reason::Limit(Limit::Lock | Limit::Statement), .. }) => {
                End::ByStatement((Failure::from_chain(FailureKind::Error, &error), Retry::Policy), cause)
            }
            (Class::Transient | Class::Refused, _) => after_lost_commit(attempt, record, &error).await,
        },
    }
}

/// Finds why the record was not written: the body has left its transaction or changed its encoding,
/// or the lease is lost.
async fn unwritten(tx: &mut PgConnection, mark: &str) -> End {
    match with_timeout(STATEMENT_LIMIT, body_state(tx, mark)).await {
        Ok(state) if !state.in_body => End::Failed(transaction_not_found()),
        Ok(state) => match state.foreign_encoding() {
            Some(encoding) => End::Failed(encoding_changed(encoding)),
            None => End::Halted(StopReason::LeaseLost),
        },
        Err(error) => undone(&error),
    }
}

/// The record that is written in the transaction of a successful body.
enum Record {
    Step(Box<Step>),
    Run(Box<RunEnd>),
}

/// The outcome of a run, as it is recorded.
struct RunEnd {
    settled: Settled,
    /// The runs to wake after the commit.
    owed: Mutex<Vec<Uuid>>,
}

/// A step, as it is recorded.
struct Step {
    claim: Claim,
    checkpoint: Checkpoint,
    /// The step's compensation.
    compensation: Option<String>,
}

impl Record {
    fn of(attempt: &Attempt, commit: Commit<'_, '_>, output: &Plain) -> Result<Self, Unstorable> {
        match commit {
            Commit::Step { claim, work } => {
                let (checkpoint, compensation) = checkpoint_of(attempt, claim, work, output.clone())?;
                Ok(Self::Step(Box::new(Step { claim: claim.clone(), checkpoint, compensation })))
            }
            Commit::Run { above } => {
                use crate::model::payload::PayloadKind;
                use crate::model::run::settle::{Outcome, settle};
                let policy = attempt.definition.retry_policy();
                let place = Place::new(attempt.fence.run_id, PayloadKind::Output, "");
                let outcome = Outcome::Completed(attempt.sealer().seal(&place, output.clone())?);
                let settlement = settle(outcome, attempt.counters, &policy, 0.0);
                let settled = Settled::new(attempt.fence, settlement, attempt.sealer());
                Ok(Self::Run(Box::new(RunEnd { settled: settled.below(above), owed: Mutex::default() })))
            }
        }
    }

    async fn write(&self, tx: &mut PgConnection, mark: &str) -> Result<bool, sqlx::Error> {
        match self {
            Self::Step(step) => Ok(checkpoint(tx, &[&step.checkpoint], Some(mark)).await?[..] == [true]),
            Self::Run(run) => match settle_in(tx, &run.settled, mark).await? {
                InBody::Written(owed) => {
                    *run.owed.lock().unwrap_or_else(PoisonError::into_inner) = owed;
                    Ok(true)
                }
                InBody::Refused => Ok(false),
            },
        }
    }

    /// The key of the step. `None` for a run.
    fn key(&self) -> Option<&str> {
        match self {
            Self::Step(step) => Some(step.claim.key.as_str()),
            Self::Run(_) => None,
        }
    }

    fn acknowledge(self, attempt: &Attempt) {
        match self {
            Self::Step(step) => {
                attempt.acknowledge(&step.claim);
                note_compensation(attempt, &step.claim, step.compensation);
            }
            Self::Run(run) => {
                attempt.commit_queue.wakes.owe(run.owed.into_inner().unwrap_or_else(PoisonError::into_inner));
                attempt.note_end();
            }
        }
    }
}

/// Finds the result of a commit whose answer was lost. Queries until the database answers: a guess
/// would lose or repeat writes.
async fn after_lost_commit(attempt: &Attempt, record: Record, error: &sqlx::Error) -> End {
    let key = record.key().unwrap_or_default().to_owned();
    loop {
        if let Ok(mut connection) = attempt.db.acquire().await
            && let Ok(Found { held, result }) =
                with_timeout(STATEMENT_LIMIT, recorded(&mut connection, attempt.fence, &key)).await
        {
            return match (record, result, held) {
                (record @ Record::Step(_), Some(result), _) => match opened(attempt, &key, result) {
                    Ok(result) => {
                        record.acknowledge(attempt);
                        End::Recorded(result)
                    }
                    Err(error) => End::Halted(StopReason::Sealed(error.to_failure())),
                },
                (_, _, true) => {
                    let may_be_limit = own_cause(error).reason == Reason::Limit(Limit::Transaction);
                    undone_with(error, None, may_be_limit)
                }
                (Record::Step(_), None, false) => End::Halted(StopReason::LeaseLost),
                // The settlement deletes the lease. If the lease is gone, the settlement was
                // committed, or another attempt owns the run. Nothing is left to write in either
                // case.
                (record @ Record::Run(_), _, false) => {
                    record.acknowledge(attempt);
                    End::Halted(StopReason::LeaseLost)
                }
            };
        }
        tokio::time::sleep(ASK_AGAIN).await;
    }
}

/// The recorded result of a step.
fn opened(
    attempt: &Attempt,
    key: &str,
    result: Result<Stored, Stored>,
) -> Result<Result<String, Failure>, PayloadError> {
    let (run_id, sealer) = (attempt.fence.run_id, attempt.sealer());
    match result {
        Ok(output) => sealer.open(&Place::of_step(run_id, key), output).map(Ok),
        Err(error) => sealer.open_failure(&place_of_error(run_id, key), &error).map(Err),
    }
}

/// Opens a transaction and marks it. Retries while the database is unavailable.
///
/// If the body runs its own `COMMIT` or `ROLLBACK`, the mark disappears.
async fn begin(attempt: &Attempt) -> (Tx, String) {
    let mark = Uuid::now_v7().simple().to_string();
    loop {
        // Check each time: the last transaction may have failed because this worker was declared
        // dead.
        attempt.liveness.guard().await;
        match with_timeout(STATEMENT_LIMIT, attempt.db.begin_marked(&mark)).await {
            Ok(tx) if attempt.liveness.is_proven() => return (tx, mark),
            // The wait for a connection was long. Waiting for the guard here would count as idle
            // time of the body's transaction.
            Ok(tx) => drop(tx),
            Err(error) => {
                warn_outage!(static, %error, "a transactional body waits for the database");
                tokio::time::sleep(ASK_AGAIN).await;
            }
        }
    }
}

/// Whether the statement failed only because an earlier one in its transaction had failed.
fn is_aborted(error: &sqlx::Error) -> bool {
    error.as_database_error().and_then(sqlx::error::DatabaseError::code).is_some_and(|code| code == "25P02")
}

fn undone(error: &sqlx::Error) -> End {
    undone_with(error, None, true)
}

fn undone_by_engine(error: &sqlx::Error) -> End {
    undone_with(error, None, false)
}

fn undone_with(error: &sqlx::Error, meddling: Option<Meddling>, may_be_limit: bool) -> End {
    let cause = own_cause(error);
    let why = match cause.class {
        _ if cause.reason == Reason::Privilege => "its role lacks a privilege",
        Class::Conflict => "it met a serialization failure or a deadlock",
        Class::Refused => "the server refused to write",
        Class::Transient | Class::Permanent if !lives(error) => {
            "its connection was lost (a limit that the body or a proxy sets for the session ends it, too)"
        }
        Class::Transient | Class::Permanent => "a statement of it failed",
    };
    let failure = Failure::from_chain(FailureKind::Error, error);
    let message = format!(
        "the body's transaction was not committed because {why}; nothing was written: {}",
        failure.message
    );
    let failed = (Failure { message, ..failure }, Retry::Policy);
    End::Undone(Box::new(Undone { failed, cause, meddling, may_be_limit }))
}

fn went_on(error: &sqlx::Error) -> (Failure, Retry) {
    let failure = Failure::from_chain(FailureKind::Error, error);
    let message = "a statement of the body's transaction failed and the body went on as if it had not, so nothing could be committed; return the \
                   error, or run what may fail in a savepoint: `tx.begin()`";
    (Failure { message: message.to_owned(), ..failure }, Retry::Policy)
}

fn transaction_not_found() -> (Failure, Retry) {
    let message = "the engine no longer finds the transaction of the body, so the body is not recorded: it ran `COMMIT`, `ROLLBACK` or `RESET ALL`, put \
                   another transaction in the place of `tx`, or dropped the future of `tx.begin()` before that had its savepoint (`timeout`, `select!`), for which \
                   sqlx rolls the transaction back; what it committed or wrote since then stays, without a record; leave the end of `tx` to the engine, await \
                   `tx.begin()` to its end, and reset single settings";
    (Failure::new(FailureKind::Setup, message), Retry::Never)
}

fn encoding_changed(encoding: &str) -> (Failure, Retry) {
    let message = format!(
        "the body set `client_encoding` to `{encoding}`, in which the server would misread the record; nothing was written; end the body with \
         `reset client_encoding`"
    );
    (Failure::new(FailureKind::Setup, message), Retry::Never)
}

fn no_transaction() -> (Failure, Retry) {
    let message = "a transactional body gave its transaction away; nothing was committed";
    (Failure::new(FailureKind::Setup, message), Retry::Never)
}
