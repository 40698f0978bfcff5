//! A database on which the engine's statements follow the model.

use std::collections::BTreeMap;

use protocol::ownership::{Action, Attempt, Claim, Life, Place, State, Stray, Write, ticks};
use protocol::statements::{Fence, Statements};
use runledger::model::payload::Stored;
use runledger::model::run::backoff::Backoff;
use runledger::model::run::failure::Retry;
use runledger::model::run::settle::{Blame, Counters, Outcome, RetryPolicy, Settlement, settle};
use runledger::{Failure, FailureKind};
use runledger_tests::Fixture;
use sqlx::error::DatabaseError;
use sqlx::{PgConnection, Row};
use uuid::Uuid;

use super::traces::{MODEL, Sent, written};

/// The seconds of a tick: so long that a slow test never causes one.
const TICK: f64 = 1000.0;

pub struct Follower {
    db: PgConnection,
    /// A session for each worker's lock, by the worker's number in the model.
    sessions: BTreeMap<u8, PgConnection>,
    fixture: Fixture,
    statements: Statements,
    run_id: Uuid,
    tokens: BTreeMap<u8, Uuid>,
    workers: BTreeMap<u8, i64>,
    sent: Sent,
}

impl Follower {
    pub async fn new(statements: Statements) -> Self {
        let fixture = Fixture::new().await;
        let db = fixture.database.connect().await.unwrap();
        Self {
            db,
            sessions: BTreeMap::new(),
            fixture,
            statements,
            run_id: Uuid::nil(),
            tokens: BTreeMap::new(),
            workers: BTreeMap::new(),
            sent: Sent::default(),
        }
    }

    /// Starts with a queued run and without workers.
    pub async fn begin(&mut self) {
        self.end_sessions().await;
        sqlx::raw_sql("delete from runledger.lease; delete from runledger.worker")
            .execute(&mut self.db)
            .await
            .unwrap();
        self.run_id = Uuid::now_v7();
        (self.tokens, self.workers, self.sent) = (BTreeMap::new(), BTreeMap::new(), Sent::default());
        let job = self.job();
        self.statements.enqueue(&mut self.db, self.run_id, &job).await.unwrap();
    }

    fn job(&self) -> String {
        self.run_id.simple().to_string()
    }

    fn fence(&self, token: u8) -> Fence {
        Fence { run_id: self.run_id, token: self.tokens[&token] }
    }

    /// The end of a session releases its lock.
    async fn unlock(&mut self, worker: u8) {
        if let Some(session) = self.sessions.get_mut(&worker) {
            sqlx::query("select pg_advisory_unlock_all()").execute(session).await.unwrap();
        }
    }

    async fn end_sessions(&mut self) {
        for worker in self.sessions.keys().copied().collect::<Vec<_>>() {
            self.unlock(worker).await;
        }
    }

    /// Executes an action as the engine does, and compares the answers.
    pub async fn follow(&mut self, before: &State, action: Action, after: &State) {
        match action {
            Action::Tick => {
                let pass = "update runledger.worker set heartbeat_at = heartbeat_at - make_interval(secs => $1) where state = 'active'";
                sqlx::query(pass).bind(TICK).execute(&mut self.db).await.unwrap();
            }
            Action::Crash(at) | Action::LoseLock(at) => {
                if let Some(worker) = before.processes[at].worker {
                    self.unlock(worker).await;
                }
            }
            Action::Down => {
                self.end_sessions().await;
                sqlx::raw_sql("delete from runledger.incarnation").execute(&mut self.db).await.unwrap();
            }
            Action::Register(at) => self.register(at, after.processes[at].worker.unwrap()).await,
            Action::Relock(at) => {
                let worker = before.processes[at].worker.unwrap();
                let session = self.sessions.get_mut(&worker).unwrap();
                assert!(self.statements.worker_lock(session, self.workers[&worker]).await.unwrap());
                self.statements.worker_locked(session, self.workers[&worker]).await.unwrap();
            }
            Action::Beat(at) => {
                let worker = before.processes[at].worker.unwrap();
                let pulse = self.statements.heartbeat(&mut self.db, self.workers[&worker]).await.unwrap();
                assert_eq!(pulse.alive, before.lives(worker));
            }
            Action::Claim(at) => {
                let Some(Claim::Sent(token)) = after.processes[at].claim else { unreachable!() };
                self.tokens.insert(token, Uuid::now_v7());
                self.sent.forget(token);
            }
            Action::ExecuteClaim(at) => {
                let Some(Claim::Answered(token, given)) = after.processes[at].claim else { unreachable!() };
                self.claim(token, before.processes[at].worker.unwrap(), given).await;
            }
            Action::Reconcile(at) => self.reconcile(before, at).await,
            Action::Bury(_, other) => self.bury(before, u8::try_from(other).unwrap()).await,
            Action::Adopt(_) => self.adopt().await,
            Action::Stray(number) if matches!(before.strays[number], Stray::Claim(..)) => {
                let Stray::Claim(token, worker) = before.strays[number] else { unreachable!() };
                let claimed = self.claim_as(token, worker).await;
                assert_eq!(claimed.is_some(), after.db.place != before.db.place);
            }
            Action::Write(..) | Action::Stray(_) => {
                let (attempt, write) = written(before, action).unwrap();
                self.write(before, attempt, write).await;
            }
            // Actions inside a process, or in the network.
            Action::Pause(_)
            | Action::Cut(_)
            | Action::GoOn(_)
            | Action::PowerLoss(_)
            | Action::Start(_)
            | Action::LoseClaim(_)
            | Action::LoseReply(..)
            | Action::Linger(..)
            | Action::Up
            | Action::Pulse(_)
            | Action::Claimed(_)
            | Action::Guard(..)
            | Action::Body(..)
            | Action::Send(..)
            | Action::Fail(..)
            | Action::Written(..) => {}
            Action::Lag | Action::Promote => unreachable!("there is no standby here"),
        }
    }

    /// `serve::register`
    async fn register(&mut self, at: usize, worker: u8) {
        let name = format!("process-{at}");
        let worker_id = self.statements.worker_register(&mut self.db, &name).await.unwrap();
        let mut session = self.fixture.database.connect().await.unwrap();
        assert!(self.statements.worker_lock(&mut session, worker_id).await.unwrap());
        self.statements.worker_locked(&mut session, worker_id).await.unwrap();
        for (predecessor, is_evidence) in
            self.statements.predecessors(&mut self.db, &name, worker_id).await.unwrap()
        {
            if is_evidence {
                self.bury_if_unlocked(predecessor, 0.0).await;
            }
        }
        // A reused number belonged to a worker of which nothing is left.
        self.unlock(worker).await;
        self.sessions.insert(worker, session);
        self.workers.insert(worker, worker_id);
    }

    async fn claim_as(&mut self, token: u8, worker: u8) -> Option<(Counters, Vec<String>)> {
        let (worker_id, token, job) = (self.workers[&worker], self.tokens[&token], self.job());
        let claimed = self.statements.claim(&mut self.db, worker_id, token, 1, &job).await.unwrap();
        claimed.into_iter().next().map(|run| (run.counters, run.steps))
    }

    async fn claim(&mut self, token: u8, worker: u8, given: Option<Attempt>) {
        let claimed = self.claim_as(token, worker).await;
        let expected = given.map(|attempt| {
            let (attempts, crashes) = attempt.counters;
            (Counters { attempt: attempts, crashes }, keys(attempt.steps))
        });
        assert_eq!(claimed, expected);
    }

    /// `Maintenance::reconcile`
    async fn reconcile(&mut self, before: &State, at: usize) {
        let process = &before.processes[at];
        let worker_id = self.workers[&process.worker.unwrap()];
        for lease in self.statements.held(&mut self.db, worker_id).await.unwrap() {
            let known = self
                .tokens
                .iter()
                .any(|(token, uuid)| *uuid == lease.fence.token && process.knows(*token, true));
            if !known {
                let settlement = settle(Outcome::Released, lease.counters, &POLICY, 0.0);
                assert!(self.settle(lease.fence, &settlement).await);
            }
        }
    }

    /// `Maintenance::examine`. Only the model knows what the process remembers.
    async fn bury(&mut self, before: &State, other: u8) {
        let (worker_id, row) = (self.workers[&other], before.db.workers[usize::from(other)]);
        let is_evidence = self.statements.suspect(&mut self.db, worker_id).await.unwrap();
        assert_eq!(is_evidence, Some(row.lock_incarnation == Some(before.server.incarnation)));
        let suspect = f64::from(ticks::SUSPECT) * TICK;
        let buried = is_evidence == Some(true) && self.bury_if_unlocked(worker_id, suspect).await;
        if !buried {
            let lease = f64::from(ticks::LEASE) * TICK;
            assert!(self.statements.worker_bury(&mut self.db, worker_id, lease).await.unwrap());
        }
    }

    /// `store::worker::bury_if_unlocked`
    async fn bury_if_unlocked(&mut self, worker_id: i64, seconds: f64) -> bool {
        sqlx::raw_sql("begin").execute(&mut self.db).await.unwrap();
        let free = self.statements.lock_is_free(&mut self.db, worker_id).await.unwrap();
        let buried = free && self.statements.worker_bury(&mut self.db, worker_id, seconds).await.unwrap();
        sqlx::raw_sql("commit").execute(&mut self.db).await.unwrap();
        buried
    }

    /// `maintenance::adopt_orphans`
    async fn adopt(&mut self) {
        for orphan in self.statements.orphans(&mut self.db).await.unwrap() {
            let progressed = self.statements.progressed(&mut self.db, orphan.fence.run_id).await.unwrap();
            let outcome = Outcome::Crashed { progressed, blame: Blame::Alone };
            let settlement = settle(outcome, orphan.counters, &POLICY, 0.0);
            assert!(self.settle(orphan.fence, &settlement).await);
        }
    }

    /// `writer.rs`: the store must accept a write exactly if the model does.
    async fn write(&mut self, before: &State, attempt: Attempt, write: Write) {
        let (attempts, crashes) = attempt.counters;
        let counters = Counters { attempt: attempts, crashes };
        let fence = self.fence(attempt.token);
        let held = match write {
            Write::Checkpoint => {
                let key = key(attempt.steps.trailing_ones());
                if self.sent.is_repeated(attempt) {
                    self.statements.checkpoint(&mut self.db, fence, &key).await.unwrap()
                } else {
                    self.first_checkpoint(fence, &key).await
                }
            }
            Write::Complete => {
                let settlement =
                    settle(Outcome::Completed(Stored::read("1".to_owned())), counters, &POLICY, 0.0);
                self.settle(fence, &settlement).await
            }
            Write::Fail => {
                let failure = Failure::new(FailureKind::Error, "no");
                let settlement = settle(Outcome::Failed(failure, Retry::Policy), counters, &POLICY, 0.0);
                self.settle(fence, &settlement).await
            }
        };
        assert_eq!(held, MODEL.passes(&before.db, &attempt, 0));
    }

    async fn first_checkpoint(&mut self, fence: Fence, key: &str) -> bool {
        match self.statements.checkpoint_fresh(&mut self.db, fence, key).await {
            Ok(held) => held,
            // A delayed statement of the same attempt came first.
            Err(error) => {
                assert!(error.as_database_error().is_some_and(DatabaseError::is_unique_violation));
                self.statements.checkpoint(&mut self.db, fence, key).await.unwrap()
            }
        }
    }

    async fn settle(&mut self, fence: Fence, settlement: &Settlement) -> bool {
        self.statements.settle(&mut self.db, fence, settlement).await.unwrap()
    }

    /// The database's state of everything that the model knows.
    pub async fn observed(&mut self, state: &State) -> Observed {
        let row = sqlx::query(OBSERVE).bind(self.run_id).fetch_one(&mut self.db).await.unwrap();
        let mut workers = BTreeMap::new();
        for worker in known_workers(state) {
            let row = sqlx::query(OBSERVE_WORKER)
                .bind(self.workers[&worker])
                .bind(TICK)
                .fetch_one(&mut self.db)
                .await
                .unwrap();
            let lives: bool = row.get("lives");
            let silence: Option<i32> = lives.then(|| row.get("silence"));
            workers.insert(worker, (lives, silence, row.get("locked")));
        }
        Observed {
            place: row.get("place"),
            token: row.get("token"),
            worker_id: row.get("worker_id"),
            attempt: row.get("attempt"),
            crashes: row.get("crashes"),
            steps: row.get("steps"),
            workers,
        }
    }

    /// The model's state of the same.
    pub fn expected(&self, state: &State) -> Observed {
        let (place, lease) = match state.db.place {
            Place::Ready => ("ready", None),
            Place::Lease { token, worker } => ("lease", Some((token, worker))),
            Place::Blocked => ("blocked", None),
            Place::Completed => ("completed", None),
            Place::Failed => ("failed", None),
        };
        let workers = known_workers(state).into_iter().map(|worker| {
            let row = state.db.workers[usize::from(worker)];
            let lives = row.state == Life::Active;
            let locked = state.server.locked[usize::from(worker)];
            (worker, (lives, lives.then_some(i32::from(row.silence)), locked))
        });
        Observed {
            place: place.to_owned(),
            token: lease.map(|(token, _)| self.tokens[&token]),
            worker_id: lease.map(|(_, worker)| self.workers[&worker]),
            attempt: state.db.attempt,
            crashes: if state.db.place.is_terminal() { 0 } else { state.db.crashes },
            steps: keys(state.db.steps),
            workers: workers.collect(),
        }
    }
}

/// The state after an action, by the model or by the database.
#[derive(Debug, PartialEq)]
pub struct Observed {
    place: String,
    token: Option<Uuid>,
    worker_id: Option<i64>,
    attempt: i32,
    crashes: i32,
    steps: Vec<String>,
    /// Whether each worker lives, for how many ticks it has been silent, and whether its lock is
    /// held.
    workers: BTreeMap<u8, (bool, Option<i32>, bool)>,
}

const OBSERVE: &str = "
    select
        coalesce(outcome.state, waiting.state, case when lease.run_id is not null then 'lease' when ready.run_id is not null then 'ready' end) as place,
        lease.token,
        lease.worker_id,
        coalesce(outcome.attempt, waiting.attempt, lease.attempt, ready.attempt) as attempt,
        coalesce(waiting.crashes, lease.crashes, ready.crashes, 0) as crashes,
        array(select key from runledger.step where step.run_id = run.run_id order by key) as steps
    from runledger.run
    left join runledger.ready using (run_id)
    left join runledger.lease using (run_id)
    left join runledger.waiting using (run_id)
    left join runledger.outcome using (run_id)
    where run.run_id = $1";

const OBSERVE_WORKER: &str = "
    select
        state <> 'dead' as lives,
        least(3, floor(extract(epoch from clock_timestamp() - heartbeat_at) / $2))::integer as silence,
        exists (
            select from pg_locks
            where locktype = 'advisory' and database = (select oid from pg_database where datname = current_database())
                and classid = 'runledger.worker'::regclass::oid and objid::bigint = worker_id % 2147483647 and granted
        ) as locked
    from runledger.worker
    where worker_id = $1";

const POLICY: RetryPolicy = RetryPolicy { max_attempts: 2, backoff: Backoff::DEFAULT };

fn known_workers(state: &State) -> Vec<u8> {
    let rows = state.db.workers.iter().enumerate().filter(|(_, row)| row.state != Life::Unknown);
    rows.map(|(worker, _)| u8::try_from(worker).unwrap()).collect()
}

fn key(step: u32) -> String {
    format!("step-{step}")
}

fn keys(steps: u8) -> Vec<String> {
    (0..8).filter(|step| steps & (1 << step) != 0).map(key).collect()
}
