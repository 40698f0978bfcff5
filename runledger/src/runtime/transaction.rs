//! Transactional bodies: the user's writes and the record of the body in one commit.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use sqlx::PgConnection;

use super::attempt::{Attempt, Halt};
use super::step::halted;
use crate::api::invocation::Finished;
use crate::api::tx::Tx;
use crate::model::failure::{Failure, FailureKind, Retry};
use crate::model::replay::Claim;
use crate::store::checkpoint::{Found, checkpoint, recorded};
use crate::store::error::{Class, class};

/// How often a body whose transaction met a serialization failure or a deadlock is run again before the failure counts as its own.
const CONFLICT_TRIES: u32 = 5;

/// The pause between questions about the fate of a commit whose acknowledgement was lost.
const ASK_AGAIN: Duration = Duration::from_millis(200);

/// What is written in the body's transaction before it is committed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Commit<'a> {
    /// The checkpoint of a step.
    Step { claim: &'a Claim, fingerprint: i64 },
    /// The settlement of a run whose job is transactional.
    #[cfg(feature = "worker")]
    Run { parent_id: Option<uuid::Uuid> },
}

/// Runs a body in a transaction, records it there, and commits. The recorded result, or the failure of the body.
pub(crate) async fn perform<F>(
    attempt: &Arc<Attempt>,
    commit: Commit<'_>,
    run: impl Fn(Tx) -> F,
) -> Result<Result<String, Failure>, (Failure, Retry)>
where
    F: Future<Output = Finished>,
{
    for tries in 1.. {
        let tx = begin(attempt).await;
        // Each time, and after the wait for a connection: the last transaction may have failed because this worker was declared dead.
        attempt.liveness.guard().await;
        let finished = run(tx).await;
        match finished.result {
            Err((failure, retry)) => {
                if finished.conflict && tries < CONFLICT_TRIES {
                    continue;
                }
                return Err((failure, retry));
            }
            Ok(output) => {
                let Some(tx) = finished.tx else { return Err(no_transaction()) };
                match finish(attempt, commit, tx, &output).await {
                    End::Done => return Ok(Ok(output)),
                    End::Recorded(result) => return Ok(result),
                    End::Again if tries < CONFLICT_TRIES => {}
                    End::Again => return Err(too_many_conflicts()),
                    End::Failed(failure) => return Err((failure, Retry::Never)),
                }
            }
        }
    }
    Err(too_many_conflicts())
}

enum End {
    Done,
    /// It had been recorded before: the acknowledgement of an earlier commit was lost.
    Recorded(Result<String, Failure>),
    /// Another transaction was in the way; nothing was written.
    Again,
    Failed(Failure),
}

async fn finish(attempt: &Attempt, commit: Commit<'_>, mut tx: Tx, output: &str) -> End {
    match write(attempt, commit, &mut tx, output).await {
        Ok(true) => {}
        Ok(false) => return halted(attempt, Halt::LeaseLost).await,
        Err(error) if class(&error) == Class::Permanent => return End::Failed(refused(&error)),
        Err(_) => return End::Again,
    }
    match tx.commit().await {
        Ok(()) => {
            acknowledge(attempt, commit);
            End::Done
        }
        Err(error) => match class(&error) {
            Class::Conflict => End::Again,
            Class::Permanent => End::Failed(refused(&error)),
            Class::Transient => after_lost_commit(attempt, commit, output).await,
        },
    }
}

async fn write(
    attempt: &Attempt,
    commit: Commit<'_>,
    tx: &mut PgConnection,
    output: &str,
) -> Result<bool, sqlx::Error> {
    match commit {
        Commit::Step { claim, fingerprint } => {
            let step = attempt.checkpoint(claim, fingerprint, Ok(output.to_owned()));
            Ok(!checkpoint(tx, &[&step]).await?.is_empty())
        }
        #[cfg(feature = "worker")]
        Commit::Run { parent_id } => {
            use crate::model::settle::{Outcome, settle};
            use crate::store::settle::{Settled, settle_in};
            let policy = attempt.definition.retry_policy();
            let settlement = settle(Outcome::Completed(output.to_owned()), attempt.counters, &policy, 0.0);
            settle_in(tx, &Settled { fence: attempt.fence, settlement, parent_id }).await
        }
    }
}

fn acknowledge(attempt: &Attempt, commit: Commit<'_>) {
    match commit {
        Commit::Step { claim, .. } => attempt.acknowledge(claim),
        #[cfg(feature = "worker")]
        Commit::Run { .. } => {}
    }
}

/// Finds out what became of a commit whose acknowledgement was lost. It asks until the database answers: guessing would lose or repeat writes.
async fn after_lost_commit(attempt: &Attempt, commit: Commit<'_>, output: &str) -> End {
    let key = match commit {
        Commit::Step { claim, .. } => claim.key.as_str(),
        #[cfg(feature = "worker")]
        Commit::Run { .. } => "",
    };
    loop {
        if let Ok(mut connection) = attempt.db.acquire().await
            && let Ok(Found { held, result }) = recorded(&mut connection, attempt.fence, key).await
        {
            return match (commit, result, held) {
                (Commit::Step { .. }, Some(result), _) => {
                    acknowledge(attempt, commit);
                    End::Recorded(result)
                }
                (_, _, true) => End::Again,
                (Commit::Step { .. }, None, false) => halted(attempt, Halt::LeaseLost).await,
                // The settlement deletes the lease: gone, it was committed, or somebody else has the run. Either way nothing is left to write.
                #[cfg(feature = "worker")]
                (Commit::Run { .. }, _, false) => End::Recorded(Ok(output.to_owned())),
            };
        }
        let _ = output;
        tokio::time::sleep(ASK_AGAIN).await;
    }
}

/// Opens a transaction, however long the database is away.
async fn begin(attempt: &Attempt) -> Tx {
    loop {
        match attempt.db.begin().await {
            Ok(tx) => return tx,
            Err(error) => tracing::warn!(%error, "a transactional step waits for the database"),
        }
        tokio::time::sleep(ASK_AGAIN).await;
    }
}

fn refused(error: &sqlx::Error) -> Failure {
    Failure::from_chain(FailureKind::Error, error)
}

fn no_transaction() -> (Failure, Retry) {
    let message = "a transactional body gave its transaction away; nothing was committed";
    (Failure::new(FailureKind::Setup, message), Retry::Never)
}

fn too_many_conflicts() -> (Failure, Retry) {
    let message = format!(
        "its transaction met serialization failures or deadlocks {CONFLICT_TRIES} times in a row; nothing was committed"
    );
    (Failure::new(FailureKind::Error, message), Retry::Policy)
}
