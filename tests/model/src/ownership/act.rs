//! The effects of actions. An action has the name of the code that it stands for.

use runledger::model::run::backoff::Backoff;
use runledger::model::run::failure::Retry;
use runledger::model::run::settle::{Blame, Counters, Outcome, RetryPolicy, Verdict, settle};
use runledger::{Failure, FailureKind};

use super::config::{Fence, Guard, Ownership};
use super::state::{
    Attempt, Claim, Db, Life, Memory, Phase, Place, Process, State, Status, Stray, Token, WORKERS, Worker,
    Write,
};

/// An event. The first number is a process, the second one of its attempts or another worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// A tick of every clock.
    Tick,
    /// A process is paused.
    Pause(usize),
    /// A process loses its connection to the server.
    Cut(usize),
    /// A paused or disconnected process continues.
    GoOn(usize),
    /// A process dies, and the server notices.
    Crash(usize),
    /// A machine dies. The server does not notice, and keeps the session.
    PowerLoss(usize),
    /// A process starts.
    Start(usize),
    /// The session with the lock ends, while its process lives.
    LoseLock(usize),
    /// The reply to a claim is lost.
    LoseClaim(usize),
    /// The reply to a write is lost.
    LoseReply(usize, usize),
    /// A write is sent again while the first one still waits on the server.
    Linger(usize, usize),
    /// A statement that still waits on the server executes.
    Stray(usize),
    /// The server stops and ends its sessions.
    Down,
    /// The server is back.
    Up,
    /// The standby receives nothing more.
    Lag,
    /// The server is lost, with everything that the standby had not received.
    Promote,
    /// `serve.rs`: registers a worker, takes its lock, and ends predecessors.
    Register(usize),
    /// `control.rs`: takes the lock again.
    Relock(usize),
    /// `heartbeat.rs`: a heartbeat reaches the database.
    Beat(usize),
    /// `heartbeat.rs`, `maintenance.rs`: its reply arrives.
    Pulse(usize),
    /// `claimer.rs`: sends a claim.
    Claim(usize),
    /// The claim executes.
    ExecuteClaim(usize),
    /// Its reply arrives.
    Claimed(usize),
    /// `maintenance.rs`: ends leases without an attempt, and attempts without a lease.
    Reconcile(usize),
    /// `maintenance.rs`: marks a silent worker dead.
    Bury(usize, usize),
    /// `maintenance.rs`: recovers the run of a dead worker.
    Adopt(usize),
    /// `liveness.rs`: the guard lets an attempt pass.
    Guard(usize, usize),
    /// `step.rs`: the body of its next step begins.
    Body(usize, usize),
    /// `step.rs`: the body ends, or no step is left, and the result is sent.
    Send(usize, usize),
    /// The body fails, and the failure is sent.
    Fail(usize, usize),
    /// `writer.rs`: the result reaches the database.
    Write(usize, usize),
    /// `writer.rs`: the reply arrives.
    Written(usize, usize),
}

impl Action {
    /// Whether this is a fault.
    #[must_use]
    pub const fn is_fault(self) -> bool {
        matches!(
            self,
            Self::Pause(_)
                | Self::Cut(_)
                | Self::Crash(_)
                | Self::PowerLoss(_)
                | Self::LoseLock(_)
                | Self::LoseClaim(_)
                | Self::LoseReply(..)
                | Self::Linger(..)
                | Self::Stray(_)
                | Self::Down
                | Self::Lag
                | Self::Promote
                | Self::Fail(..)
        )
    }
}

/// A run has two attempts, so one may fail.
const POLICY: RetryPolicy = RetryPolicy { max_attempts: 2, backoff: Backoff::DEFAULT };

impl Ownership {
    /// Returns the state after an action.
    #[must_use]
    pub fn after(&self, before: &State, action: Action) -> State {
        let mut state = before.clone();
        match action {
            Action::Tick => state.tick(),
            Action::Pause(at) => {
                state.faults.pauses -= 1;
                state.noted.n_excuses += 1;
                disturb(&mut state, at, Status::Paused);
            }
            Action::Cut(at) => {
                state.faults.cuts -= 1;
                disturb(&mut state, at, Status::Cut);
            }
            Action::GoOn(at) => state.processes[at].status = Status::Running,
            Action::Crash(at) => {
                if let Some(worker) = state.processes[at].worker {
                    state.server.locked[usize::from(worker)] = false;
                }
                die(&mut state, at);
            }
            Action::PowerLoss(at) => die(&mut state, at),
            Action::Start(at) => state.processes[at].status = Status::Running,
            Action::LoseLock(at) => {
                state.faults.locks -= 1;
                let worker = state.processes[at].worker.map_or(0, usize::from);
                state.server.locked[worker] = false;
            }
            Action::LoseClaim(at) => {
                state.faults.replies -= 1;
                lose_claim(&mut state, at);
            }
            Action::LoseReply(at, number) => {
                state.faults.replies -= 1;
                send_again(&mut state.processes[at].attempts[number]);
            }
            Action::Linger(at, number) => {
                state.faults.replies -= 1;
                let attempt = state.processes[at].attempts[number];
                linger(&mut state, at, attempt);
            }
            Action::Stray(number) => self.stray(&mut state, number),
            Action::Down => {
                state.faults.restarts -= 1;
                stop_server(&mut state);
            }
            Action::Up => state.server.up = true,
            Action::Lag => state.standby = Some(state.db),
            Action::Promote => {
                state.faults.failovers -= 1;
                state.noted.n_excuses += 1;
                state.db = state.standby.take().unwrap_or(state.db);
                stop_server(&mut state);
            }
            Action::Register(at) => self.register(&mut state, at),
            Action::Relock(at) => {
                let (worker, incarnation) = (worker_of(&state, at), state.server.incarnation);
                state.server.locked[worker] = true;
                let row = &mut state.db.workers[worker];
                if row.state == Life::Active {
                    row.lock_incarnation = Some(incarnation);
                    if self.doubts_silence {
                        row.silence = 0;
                    }
                }
            }
            Action::Beat(at) => {
                let worker = worker_of(&state, at);
                let row = &mut state.db.workers[worker];
                let alive = row.state == Life::Active;
                if alive {
                    row.silence = 0;
                }
                state.processes[at].heart.reply = Some((0, alive, state.server.incarnation));
                if !state.faults.may_delay() {
                    self.pulse(&mut state.processes[at]);
                }
            }
            Action::Pulse(at) => self.pulse(&mut state.processes[at]),
            Action::Claim(at) => {
                let token = state.fresh_token();
                state.processes[at].claim = Some(Claim::Sent(token));
            }
            Action::ExecuteClaim(at) => {
                if let Some(Claim::Sent(token)) = state.processes[at].claim {
                    let worker = worker_of(&state, at);
                    let given = self.claim(&mut state.db, token, worker);
                    state.processes[at].claim = Some(Claim::Answered(token, given));
                }
            }
            Action::Claimed(at) => {
                let process = &mut state.processes[at];
                if let Some(Claim::Answered(_, given)) = process.claim.take() {
                    process.attempts.extend(given);
                }
            }
            Action::Reconcile(at) => self.reconcile_now(&mut state, at),
            Action::Bury(_, other) => bury(&mut state, other),
            Action::Adopt(_) => {
                let progressed = state.db.progressed;
                self.give_back(&mut state.db, Outcome::Crashed { progressed, blame: Blame::Alone });
            }
            Action::Guard(at, number) => {
                let attempt = &mut state.processes[at].attempts[number];
                attempt.phase = Phase::Passed;
                if attempt.steps != self.all_steps() && !state.faults.may_delay() {
                    self.begin_body(&mut state, at, number);
                }
            }
            Action::Body(at, number) => self.begin_body(&mut state, at, number),
            Action::Send(at, number) => {
                let all = self.all_steps();
                let attempt = &mut state.processes[at].attempts[number];
                let write = if attempt.steps == all { Write::Complete } else { Write::Checkpoint };
                attempt.phase = Phase::Sent(write);
            }
            Action::Fail(at, number) => {
                state.faults.failures -= 1;
                state.processes[at].attempts[number].phase = Phase::Sent(Write::Fail);
            }
            Action::Write(at, number) => {
                let attempt = state.processes[at].attempts[number];
                if let Phase::Sent(write) = attempt.phase {
                    let worker = worker_of(&state, at);
                    let held = self.write(&mut state, attempt, write, worker);
                    state.processes[at].attempts[number].phase = Phase::Answered(write, held);
                    let running = state.processes[at].status == Status::Running;
                    if running && !state.faults.may_lose_replies() {
                        written(&mut state.processes[at], number);
                    }
                }
            }
            Action::Written(at, number) => written(&mut state.processes[at], number),
        }
        let left = before.db.place.is_terminal() && state.db.place != before.db.place;
        state.noted.left_the_end |= left && !matches!(action, Action::Promote);
        state.forget();
        state
    }

    /// `claim.sql`
    fn claim(&self, db: &mut Db, token: Token, worker: usize) -> Option<Attempt> {
        let lives = db.workers[worker].state == Life::Active;
        if db.place != Place::Ready || (self.claim_tests_worker && !lives) {
            return None;
        }
        db.place = Place::Lease { token, worker: number(worker) };
        db.attempt += 1;
        if self.fence == Fence::Epoch {
            db.claims += 1;
        }
        db.progressed = false;
        Some(Attempt {
            token,
            epoch: db.claims,
            steps: if self.replay { db.steps } else { 0 },
            counters: (db.attempt, db.crashes),
            phase: Phase::Waiting,
        })
    }

    /// Whether the fence accepts a write for an attempt.
    #[must_use]
    pub fn passes(&self, db: &Db, attempt: &Attempt, by: usize) -> bool {
        match (db.place, self.fence) {
            (_, Fence::Nothing) => true,
            (Place::Lease { token, .. }, Fence::Token) => token == attempt.token,
            (Place::Lease { .. }, Fence::Epoch) => db.claims == attempt.epoch,
            (Place::Lease { worker, .. }, Fence::Worker) => usize::from(worker) == by,
            _ => false,
        }
    }

    /// `checkpoint.sql` and `settle.sql`. Returns whether the fence held.
    fn write(&self, state: &mut State, attempt: Attempt, write: Write, by: usize) -> bool {
        if !self.passes(&state.db, &attempt, by) {
            return false;
        }
        let is_stale = !has_lease(state, attempt.token);
        let (attempts, crashes) = attempt.counters;
        let counters = Counters { attempt: attempts, crashes };
        let db = &mut state.db;
        match write {
            Write::Checkpoint => {
                let next = next_step(attempt.steps);
                // A repetition after a lost reply changes nothing.
                state.noted.stale_write |= is_stale && db.steps & next == 0;
                db.steps |= next;
                db.progressed = true;
            }
            Write::Complete => {
                state.noted.stale_write |= is_stale;
                db.place = Place::Completed;
            }
            Write::Fail => {
                state.noted.stale_write |= is_stale;
                db.n_failed += 1;
                let failure = Failure::new(FailureKind::Error, "");
                apply(db, Outcome::Failed(failure, Retry::Policy), counters);
            }
        }
        true
    }

    /// Settles a lease whose attempt has not ended by itself.
    fn give_back(&self, db: &mut Db, outcome: Outcome) {
        let counters = Counters { attempt: db.attempt, crashes: db.crashes };
        let is_crash = matches!(outcome, Outcome::Crashed { .. });
        apply(db, outcome, counters);
        if is_crash && self.crash_is_a_failure {
            db.attempt = counters.attempt;
        }
    }

    fn begin_body(&self, state: &mut State, at: usize, number: usize) {
        let attempt = state.processes[at].attempts[number];
        state.processes[at].attempts[number].phase = Phase::Body;
        if has_lease(state, attempt.token) {
            state.noted.ran_again |= state.db.steps & next_step(attempt.steps) != 0;
        } else {
            state.noted.n_stale_starts += 1;
        }
    }

    /// `Maintenance::reconcile`
    fn reconcile_now(&self, state: &mut State, at: usize) {
        if let Place::Lease { token, worker } = state.db.place
            && Some(worker) == state.processes[at].worker
            && !state.processes[at].knows(token, self.notes_claims)
        {
            self.give_back(&mut state.db, Outcome::Released);
        }
        let place = state.db.place;
        let leased =
            |attempt: &Attempt| matches!(place, Place::Lease { token, .. } if token == attempt.token);
        state.processes[at].attempts.retain(leased);
    }

    /// `Maintenance::answer`
    fn pulse(&self, process: &mut Process) {
        let Some((age, alive, incarnation)) = process.heart.reply.take() else { return };
        if !alive {
            let status = process.status;
            *process = Process { status, ..Process::gone() };
            return;
        }
        process.heart.age = if self.guard == Guard::Reply { 0 } else { age };
        let memory = &mut process.memory;
        if memory.incarnation != Some(incarnation) {
            let changed = memory.incarnation.is_some();
            *memory = Memory { incarnation: Some(incarnation), known_for: 0, changed };
        }
    }

    /// `serve::register`
    fn register(&self, state: &mut State, at: usize) {
        let Some(worker) = state.fresh_worker() else { return };
        let incarnation = state.server.incarnation;
        let name = number(at);
        for other in 0..WORKERS {
            let row = &state.db.workers[other];
            let same_name = row.state == Life::Active && row.name == name;
            if same_name && row.lock_incarnation == Some(incarnation) && !state.server.locked[other] {
                bury(state, other);
            }
        }
        state.db.workers[usize::from(worker)] =
            Worker { state: Life::Active, name, lock_incarnation: Some(incarnation), silence: 0 };
        state.server.locked[usize::from(worker)] = true;
        let status = state.processes[at].status;
        state.processes[at] = Process { status, worker: Some(worker), ..Process::gone() };
    }

    fn stray(&self, state: &mut State, number: usize) {
        match state.strays.remove(number) {
            Stray::Claim(token, worker) => {
                self.claim(&mut state.db, token, usize::from(worker));
            }
            Stray::Write(attempt, write, worker) => {
                self.write(state, attempt, write, usize::from(worker));
            }
        }
    }
}

/// Whether an attempt owns the lease.
#[must_use]
pub fn has_lease(state: &State, of: Token) -> bool {
    matches!(state.db.place, Place::Lease { token, .. } if token == of)
}

/// The first step that is not recorded.
const fn next_step(steps: u8) -> u8 {
    !steps & (steps + 1)
}

/// Applies the engine's own decision to a run.
fn apply(db: &mut Db, outcome: Outcome, counters: Counters) {
    let settlement = settle(outcome, counters, &POLICY, 0.0);
    db.place = match settlement.verdict {
        Verdict::Complete(_) => Place::Completed,
        Verdict::Fail(_) | Verdict::Cancel(_) => Place::Failed,
        Verdict::Requeue { .. } => Place::Ready,
        Verdict::Block(_) | Verdict::Pause => Place::Blocked,
    };
    (db.attempt, db.crashes) = (settlement.counters.attempt, settlement.counters.crashes);
    db.progressed = false;
}

fn bury(state: &mut State, worker: usize) {
    let alive = state
        .process_of(number(worker))
        .is_some_and(|process| process.status == Status::Running && !process.disturbed);
    state.noted.buried_alive |= alive;
    state.db.workers[worker].state = Life::Dead;
}

fn disturb(state: &mut State, at: usize, status: Status) {
    state.processes[at].status = status;
    state.processes[at].disturbed = true;
    state.noted.disturbed = true;
}

/// Statements that a process has sent may still execute.
fn die(state: &mut State, at: usize) {
    state.faults.crashes -= 1;
    if let Some(Claim::Sent(token)) = state.processes[at].claim {
        let worker = number(worker_of(state, at));
        state.strays.push(Stray::Claim(token, worker));
    }
    for attempt in state.processes[at].attempts.clone() {
        linger(state, at, attempt);
    }
    state.processes[at] = Process::gone();
}

fn linger(state: &mut State, at: usize, attempt: Attempt) {
    if let Phase::Sent(write) = attempt.phase {
        let worker = number(worker_of(state, at));
        state.strays.push(Stray::Write(attempt, write, worker));
    }
}

fn lose_claim(state: &mut State, at: usize) {
    if let Some(Claim::Sent(token)) = state.processes[at].claim.take() {
        let worker = number(worker_of(state, at));
        state.strays.push(Stray::Claim(token, worker));
    }
}

fn send_again(attempt: &mut Attempt) {
    if let Phase::Answered(write, _) = attempt.phase {
        attempt.phase = Phase::Sent(write);
    }
}

/// Ends all sessions, and with them their locks, their replies and their unexecuted statements.
fn stop_server(state: &mut State) {
    state.server.up = false;
    state.server.incarnation += 1;
    state.server.locked = [false; WORKERS];
    state.strays.clear();
    state.noted.disturbed = true;
    for process in &mut state.processes {
        process.claim = None;
        process.heart.reply = None;
        process.attempts.iter_mut().for_each(send_again);
    }
}

fn written(process: &mut Process, number: usize) {
    let attempt = &mut process.attempts[number];
    match attempt.phase {
        Phase::Answered(Write::Checkpoint, true) => {
            attempt.steps |= next_step(attempt.steps);
            attempt.phase = Phase::Waiting;
        }
        // The attempt has ended or lost its lease. Its future is dropped, and it writes nothing
        // more.
        _ => {
            process.attempts.remove(number);
        }
    }
}

fn worker_of(state: &State, at: usize) -> usize {
    state.processes[at].worker.map_or(0, usize::from)
}

fn number(worker: usize) -> u8 {
    u8::try_from(worker).unwrap_or(u8::MAX)
}
