//! The statements of a transaction, each with its input from earlier ones.

use runledger::Failure;
use runledger::FailureKind;
use runledger::model::payload::Stored;
use runledger::model::run::backoff::Backoff;
use runledger::model::run::failure::Retry;
use runledger::model::run::settle::{Blame, Counters, Outcome, RetryPolicy, settle};
use sqlx::PgConnection;
use sqlx::error::DatabaseError;

use super::roll_back;
use super::scene::{Scene, node};
use crate::statements::{Claimed, Fence, Lease, Node, Statements, Submission, Waits};

/// How an attempt ends.
#[derive(Clone, Copy, Debug)]
pub enum Ending {
    /// It completes with an output.
    Completes,
    /// It fails and is retried.
    Fails,
    /// It is cancelled.
    IsCancelled,
    /// It stops for a pause of its run.
    Pauses,
}

/// One statement. The first one opens the transaction. Runs, workers and tokens are numbers in the
/// scene.
#[derive(Clone, Copy, Debug)]
pub enum Step {
    /// Enqueues run 0 with an idempotency key.
    Enqueue,
    /// Enqueues a run with an active key.
    EnqueueActive(usize),
    /// Gives the run its active key, unless another run has it.
    Activate(usize),
    /// Reads the run that already has the key, if there is one.
    Existing,
    /// A worker claims one due run with its token.
    Claim(usize),
    /// Like `Claim`, for runs that need a permit.
    ClaimWithPermit(usize),
    /// The attempt of a token records a step of run 0 for the first time.
    CheckpointFresh(usize),
    /// The attempt of a token records a step of run 0 that may be recorded already.
    Checkpoint(usize),
    /// The attempt of token 0 records a step of run 0 with a compensation.
    CheckpointToUndo,
    /// Waits for concurrent writes of token 0's attempt.
    LockLease,
    /// The attempt of token 0 continues run 0 as new.
    ContinueRun,
    /// The attempt of a token ends a run.
    Settle(usize, usize, Ending),
    /// Locks a run.
    LockRun(usize),
    /// Locks a run, unless another transaction has locked it. Then the following statements do
    /// without the lock, and the run is owed a wake-up.
    LockFreeRun(usize),
    /// Locks a run that is owed a wake-up.
    LockOwed(usize),
    /// Wakes a run that is owed a wake-up, if something that it waits for has come.
    WakeMet(usize),
    /// The attempt of token 0 suspends run 0 until run 1 ends.
    Suspend,
    /// The attempt of token 0 suspends run 0 until a signal comes.
    SuspendForSignal,
    /// Sends run 0 a signal.
    SendSignal,
    /// The attempt of a token takes a signal of run 0 for the step of this number.
    TakeSignal(usize, usize),
    /// Wakes the parents of a run that this transaction has settled.
    WakeParents(usize),
    /// Requests the cancellation of run 0.
    CancelAsk,
    /// Cancels run 0 if no worker holds it.
    CancelTake,
    /// Requests the pause of run 0.
    PauseAsk,
    /// Pauses run 0 if no worker holds it.
    PauseTake,
    /// Resumes run 0.
    Resume,
    /// Locks a node of the graph and its dependencies, if they are live.
    AppendLock(usize),
    /// Reads how that node ended, if it did.
    AppendLook(usize),
    /// Adds run 4 to the graph, with a dependency on the success of that node. Does nothing if a
    /// live dependency was not locked.
    Append(usize),
    /// Starts and cancels nodes after the end of a node that this transaction has settled.
    ReleaseNodes(usize),
    /// Completes run 3, a gate, through a link that is older than any revocation.
    GateDecide,
    /// Revokes the links to run 3, a gate.
    GateRevoke,
    /// Reads whether run 3, a gate, is open.
    GateLook,
    /// The attempt of token 0 records that it starts run 1, a graph.
    NoteGraph,
    /// Creates that graph, with run 2 as its node.
    WriteGraph,
    /// Counts the descendants of run 0 to cancel.
    Below,
    /// Pins run 0 to another version of its code.
    Pin,
    /// Wakes the runs whose timeout has passed.
    WakeDue,
    /// Worker 0 reads its leases.
    Held,
    /// Worker 0 returns the leases that it read and does not know.
    Release,
    /// A worker reads and locks the leases of dead workers.
    Orphans,
    /// It settles these runs as crashed.
    Adopt,
    /// Commits.
    Commit,
    /// Rolls back.
    Rollback,
}

/// The answers to the statements of one transaction.
#[derive(Debug, Default)]
pub struct Said {
    /// The result of an enqueue.
    pub submission: Option<Submission>,
    /// Whether the existing run of an enqueue was found.
    pub existing: Option<bool>,
    /// The claimed runs.
    pub claimed: Vec<Claimed>,
    /// Whether the fence of a write held.
    pub held: Option<bool>,
    /// The state of a run that a cancellation or a pause could not affect.
    pub ended: Option<String>,
    /// Whether a signal was sent.
    pub sent: Option<bool>,
    /// Whether a cancellation or a pause took the run, a step took a signal, or a run got its
    /// active key.
    pub taken: Option<bool>,
    /// Whether a resume had an effect.
    pub resumed: Option<bool>,
    /// Whether a run was pinned to another version.
    pub moved: Option<bool>,
    /// How many descendants of run 0 are to be cancelled.
    pub n_below: Option<usize>,
    /// How the dependency of an addition ended, if it did.
    pub needed: Option<String>,
    /// Whether a gate was open.
    pub is_open: Option<bool>,
    held_nodes: Vec<uuid::Uuid>,
    is_steady: bool,
    is_locked_by_another: bool,
    /// Why the server refused a statement. The transaction is then rolled back.
    pub error: Option<String>,
    /// Whether the transaction committed.
    pub committed: bool,
    leases: Vec<Lease>,
    open: bool,
    over: bool,
}

impl Step {
    /// Executes the statement, unless the transaction has ended early.
    pub(super) async fn perform(
        self,
        db: &mut PgConnection,
        statements: Statements,
        scene: &Scene,
        said: &mut Said,
    ) {
        if said.over {
            return;
        }
        if let Err(error) = self.once(db, statements, scene, said).await {
            let code = error.as_database_error().and_then(DatabaseError::code);
            // A defect that is invalid SQL would show nothing.
            assert!(!code.is_some_and(|code| code.starts_with("42")), "{self:?}: {error}");
            said.error = Some(error.to_string());
            said.over = true;
        }
        if said.over {
            roll_back(db).await;
        }
    }

    async fn once(
        self,
        db: &mut PgConnection,
        statements: Statements,
        scene: &Scene,
        said: &mut Said,
    ) -> Result<(), sqlx::Error> {
        if !said.open {
            sqlx::raw_sql("begin").execute(&mut *db).await?;
            said.open = true;
        }
        let fence = |run: usize, token: usize| Fence { run_id: scene.runs[run], token: scene.tokens[token] };
        match self {
            Self::Enqueue => {
                said.submission = Some(statements.enqueue(db, scene.runs[0], &scene.job).await?);
            }
            Self::EnqueueActive(run) => {
                said.submission = Some(statements.enqueue_active(db, scene.runs[run], &scene.job).await?);
            }
            Self::Activate(run) => {
                let is_given = statements.activate(db, scene.runs[run]).await?;
                (said.taken, said.over) = (Some(is_given), !is_given);
            }
            Self::Existing => {
                if said.submission == Some(Submission::Existing) {
                    said.existing = Some(statements.existing(db, scene.runs[0]).await?);
                }
            }
            Self::Claim(worker) => {
                let (worker_id, token) = (scene.workers[worker], scene.tokens[worker]);
                said.claimed = statements.claim(db, worker_id, token, 1, &scene.job).await?;
            }
            Self::ClaimWithPermit(worker) => {
                let (worker_id, token) = (scene.workers[worker], scene.tokens[worker]);
                said.claimed = statements.claim_with_permit(db, worker_id, token, &scene.job).await?;
            }
            Self::CheckpointFresh(token) => {
                said.held = Some(statements.checkpoint_fresh(db, fence(0, token), "step").await?);
            }
            Self::Checkpoint(token) => {
                said.held = Some(statements.checkpoint(db, fence(0, token), "step").await?);
            }
            Self::CheckpointToUndo => {
                said.held = Some(statements.checkpoint_to_undo(db, fence(0, 0), "step").await?);
            }
            Self::LockLease => statements.lock_lease(db, fence(0, 0)).await?,
            Self::ContinueRun => said.held = Some(statements.continue_run(db, fence(0, 0)).await?),
            Self::Settle(run, token, ending) => {
                let counters = Counters { attempt: 1, crashes: scene.crashes };
                let settlement = settle(ending.outcome(), counters, &POLICY, 0.0);
                said.held = Some(statements.settle(db, fence(run, token), &settlement).await?);
            }
            Self::LockRun(run) => statements.lock_runs(db, scene.runs[run]).await?,
            Self::LockFreeRun(run) => {
                said.is_locked_by_another = !statements.lock_free_run(db, scene.runs[run]).await?;
            }
            Self::LockOwed(run) => {
                if said.is_locked_by_another {
                    statements.lock_runs(db, scene.runs[run]).await?;
                }
            }
            Self::WakeMet(run) => {
                if said.is_locked_by_another {
                    statements.wake_met(db, scene.runs[run]).await?;
                }
            }
            Self::Suspend => {
                let counters = Counters { attempt: 1, crashes: scene.crashes };
                let waits = Waits { any: vec![scene.runs[1]], ..Waits::default() };
                let is_locked = !said.is_locked_by_another;
                let parked = statements.suspend(db, fence(0, 0), &waits, counters, is_locked).await?;
                said.held = Some(parked.is_some());
            }
            Self::SuspendForSignal => {
                let counters = Counters { attempt: 1, crashes: scene.crashes };
                let waits = Waits { signals: vec![SIGNAL.to_owned()], ..Waits::default() };
                let is_locked = !said.is_locked_by_another;
                let parked = statements.suspend(db, fence(0, 0), &waits, counters, is_locked).await?;
                said.held = Some(parked.is_some());
            }
            Self::SendSignal => {
                let key = uuid::Uuid::now_v7().to_string();
                said.sent = Some(statements.send_signal(db, scene.runs[0], SIGNAL, &key).await?);
            }
            Self::TakeSignal(token, step) => {
                let key = format!("signal#{step}");
                let taken = statements.take_signal(db, fence(0, token), SIGNAL, &key).await?;
                (said.held, said.taken) = (Some(taken.is_some()), taken);
            }
            Self::WakeParents(run) => {
                if said.held == Some(true) && !said.is_locked_by_another {
                    statements.wake_parents(db, scene.runs[run]).await?;
                }
            }
            Self::CancelAsk => {
                said.ended = statements.cancel_ask(db, scene.runs[0]).await?;
                said.over = said.ended.is_some();
            }
            Self::CancelTake => said.taken = Some(statements.cancel_take(db, scene.runs[0]).await?),
            Self::PauseAsk => {
                let before = statements.pause_ask(db, scene.runs[0]).await?;
                said.over =
                    ["completed", "failed", "cancelled", "blocked", "paused"].contains(&before.as_str());
                said.ended = said.over.then_some(before);
            }
            Self::PauseTake => said.taken = Some(statements.pause_take(db, scene.runs[0]).await?),
            Self::Resume => said.resumed = Some(statements.resume(db, scene.runs[0]).await?),
            Self::AppendLock(needed) => {
                said.held_nodes = statements.append_lock(db, scene.runs[needed]).await?;
            }
            Self::AppendLook(needed) => {
                let nodes = statements.append_look(db, scene.runs[needed]).await?;
                let stays = |(run_id, ended): &(uuid::Uuid, Option<String>)| {
                    ended.is_some() || said.held_nodes.contains(run_id)
                };
                said.is_steady = nodes.iter().all(stays);
                let its = nodes.into_iter().find(|(run_id, _)| *run_id == scene.runs[needed]);
                said.needed = its.and_then(|(_, ended)| ended);
            }
            Self::Append(needed) => {
                if !said.is_steady {
                    said.over = true;
                    return Ok(());
                }
                let goes_on = said.needed.is_none();
                let hopeless = said.needed.clone().filter(|ended| ended != "completed");
                let (run_id, job) = (scene.runs[4], scene.job.clone());
                let node = Node { run_id, name: "added", job, n_waits: i32::from(goes_on), hopeless };
                let edge = (run_id, scene.runs[needed]);
                statements.submit_graph(db, scene.runs[0], None, None, &[node], &[edge]).await?;
            }
            Self::ReleaseNodes(run) => {
                if said.held == Some(true) {
                    statements.release(db, scene.runs[run]).await?;
                }
            }
            Self::GateDecide => said.held = Some(statements.gate_decide(db, scene.runs[3]).await?),
            Self::GateRevoke => statements.gate_revoke(db, scene.runs[3]).await?,
            Self::GateLook => {
                let open = "select exists (select from runledger.waiting where run_id = $1)";
                said.is_open = sqlx::query_scalar(open).bind(scene.runs[3]).fetch_one(db).await?;
            }
            Self::NoteGraph => {
                let is_noted = statements.note_graph(db, fence(0, 0), scene.runs[1]).await?;
                (said.held, said.over) = (Some(is_noted), !is_noted);
            }
            Self::WriteGraph => {
                let [parent, graph, run_id, ..] = scene.runs;
                let node = node(run_id, "node", &format!("{}-node", scene.job), 0);
                statements.submit_graph(db, graph, Some("graph"), Some(parent), &[node], &[]).await?;
            }
            Self::Below => said.n_below = Some(statements.n_below(db, scene.runs[0]).await?),
            Self::Pin => said.moved = Some(statements.pin(db, scene.runs[0], &scene.job).await?),
            Self::WakeDue => statements.wake_due(db).await?,
            Self::Held => said.leases = statements.held(db, scene.workers[0]).await?,
            Self::Orphans => {
                said.leases = statements.orphans(db).await?;
            }
            Self::Release => {
                for lease in said.leases.clone() {
                    let settlement = settle(Outcome::Released, lease.counters, &POLICY, 0.0);
                    said.held = Some(statements.settle(db, lease.fence, &settlement).await?);
                }
            }
            // Two statements: nobody sees the locked leases between them.
            Self::Adopt => {
                for lease in said.leases.clone() {
                    let progressed = statements.progressed(db, lease.fence.run_id).await?;
                    let outcome = if lease.cancel_requested {
                        Outcome::Cancelled(failure(FailureKind::Cancelled))
                    } else {
                        Outcome::Crashed { progressed, blame: Blame::Alone }
                    };
                    let settlement = settle(outcome, lease.counters, &POLICY, 0.0);
                    said.held = Some(statements.settle(db, lease.fence, &settlement).await?);
                }
            }
            Self::Commit => {
                sqlx::raw_sql("commit").execute(db).await?;
                (said.committed, said.open) = (true, false);
            }
            Self::Rollback => said.over = true,
        }
        Ok(())
    }
}

impl Ending {
    fn outcome(self) -> Outcome {
        match self {
            Self::Completes => Outcome::Completed(Stored::read("1".to_owned())),
            Self::Pauses => Outcome::Paused,
            Self::Fails => Outcome::Failed(failure(FailureKind::Error), Retry::Policy),
            Self::IsCancelled => Outcome::Cancelled(failure(FailureKind::Cancelled)),
        }
    }
}

/// The name of every signal.
const SIGNAL: &str = "signal";

const POLICY: RetryPolicy = RetryPolicy { max_attempts: 2, backoff: Backoff::DEFAULT };

fn failure(kind: FailureKind) -> Failure {
    Failure::new(kind, "no")
}
