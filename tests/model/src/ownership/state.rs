//! One state of the model: the database, the server, the processes, and the messages between them.

use super::config::{Faults, PROCESSES, ticks};

/// The limit of workers in the database. The model forgets dead workers that nothing names, and
/// reuses their numbers.
pub const WORKERS: usize = 4;

/// The number of a token. The model reuses the number of a token that nothing names.
pub type Token = u8;

/// The tables. A standby has a copy of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Db {
    /// The table with the run.
    pub place: Place,
    /// Its attempts: the failed ones and the current one.
    pub attempt: i32,
    /// Its crashes in a row.
    pub crashes: i32,
    /// How often it was claimed. Counted only for `Fence::Epoch`, because the count makes equal
    /// states differ.
    pub claims: u8,
    /// Its recorded steps, one bit each.
    pub steps: u8,
    /// Whether a step was recorded under the current claim.
    pub progressed: bool,
    /// The workers.
    pub workers: [Worker; WORKERS],
    /// The number of failed attempts. Not a column: the model compares it with `attempt`.
    pub n_failed: i32,
}

/// The table with the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Place {
    /// `ready`
    Ready,
    /// `lease`
    Lease {
        /// The fence.
        token: Token,
        /// The owner.
        worker: u8,
    },
    /// `waiting`, blocked after too many crashes.
    Blocked,
    /// `outcome`
    Completed,
    /// `outcome`
    Failed,
}

/// A row of `worker`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Worker {
    /// Whether the row exists, and its state.
    pub state: Life,
    /// Its name: the number of its process.
    pub name: u8,
    /// The server incarnation in which the lock was taken.
    pub lock_incarnation: Option<u8>,
    /// The age of `heartbeat_at`.
    pub silence: u8,
}

/// The state of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Life {
    /// The row does not exist, or nothing needs it.
    Unknown,
    /// `active`
    Active,
    /// `dead`
    Dead,
}

/// The server's state outside the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Server {
    /// Whether it answers.
    pub up: bool,
    /// Changes with every restart.
    pub incarnation: u8,
    /// Which workers' session locks are held.
    pub locked: [bool; WORKERS],
}

/// A process with at most one worker.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Process {
    /// Whether it runs.
    pub status: Status,
    /// The number of its registered worker.
    pub worker: Option<u8>,
    /// Whether it was paused or cut off since its registration. Only then may others mark it dead.
    pub disturbed: bool,
    /// The heartbeat.
    pub heart: Heart,
    /// The memory of maintenance.
    pub memory: Memory,
    /// A claim in flight.
    pub claim: Option<Claim>,
    /// The attempts in flight.
    pub attempts: Vec<Attempt>,
}

/// Whether a process runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Status {
    /// It does not exist.
    Gone,
    /// It runs normally.
    Running,
    /// It does nothing, and does not notice.
    Paused,
    /// It cannot reach the server.
    Cut,
}

/// `worker/upkeep/heartbeat.rs` and `engine/liveness.rs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Heart {
    /// The time since the last acknowledged heartbeat was sent, by the process's own clock.
    pub age: u8,
    /// A reply in flight: the age of its heartbeat, whether the worker is alive, and the
    /// incarnation.
    pub reply: Option<(u8, bool, u8)>,
}

/// What maintenance remembers between heartbeat replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Memory {
    /// The incarnation in the last reply.
    pub incarnation: Option<u8>,
    /// How long this incarnation has been known.
    pub known_for: u8,
    /// Whether another incarnation was known before.
    pub changed: bool,
}

/// A claim in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Claim {
    /// Not executed yet.
    Sent(Token),
    /// Executed, with the attempt that it returns, if any.
    Answered(Token, Option<Attempt>),
}

/// An attempt in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Attempt {
    /// Its fence.
    pub token: Token,
    /// The number of its claim.
    pub epoch: u8,
    /// The steps that it knows as recorded.
    pub steps: u8,
    /// The counters that its claim returned.
    pub counters: (i32, i32),
    /// Its progress.
    pub phase: Phase,
}

/// The progress of an attempt with its next step, or with its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Phase {
    /// Before the guard.
    Waiting,
    /// After the guard.
    Passed,
    /// In the body.
    Body,
    /// The result is in flight.
    Sent(Write),
    /// The result was written or refused, and the reply is in flight.
    Answered(Write, bool),
}

/// What an attempt writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Write {
    /// The first step that it does not know.
    Checkpoint,
    /// Its end, with an output.
    Complete,
    /// Its end, with a failure.
    Fail,
}

/// A statement on the server whose sender is gone or has sent it again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Stray {
    /// A claim of a worker.
    Claim(Token, u8),
    /// A write for an attempt of a worker.
    Write(Attempt, Write, u8),
}

/// Violations, and the events that may excuse them. The model records both when they happen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Noted {
    /// A write without the current lease was accepted.
    pub stale_write: bool,
    /// The attempt with the lease executed a recorded step.
    pub ran_again: bool,
    /// A terminal state changed.
    pub left_the_end: bool,
    /// A worker was marked dead although its process was never paused or cut off.
    pub buried_alive: bool,
    /// Bodies that began without the lease.
    pub n_stale_starts: u8,
    /// Pauses and failovers so far. Each excuses one stale start.
    pub n_excuses: u8,
    /// Whether a process or the server was away, so that two bodies may run at once.
    pub disturbed: bool,
}

/// One state of the whole system.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct State {
    /// The database.
    pub db: Db,
    /// The copy of a standby that lags behind.
    pub standby: Option<Db>,
    /// The server.
    pub server: Server,
    /// The processes.
    pub processes: [Process; PROCESSES],
    /// Statements that still wait on the server.
    pub strays: Vec<Stray>,
    /// The faults that may still happen.
    pub faults: Faults,
    /// The recorded violations.
    pub noted: Noted,
}

impl Process {
    /// Returns a process that does not run.
    #[must_use]
    pub const fn gone() -> Self {
        Self {
            status: Status::Gone,
            worker: None,
            disturbed: false,
            heart: Heart { age: 0, reply: None },
            memory: Memory { incarnation: None, known_for: 0, changed: false },
            claim: None,
            attempts: Vec::new(),
        }
    }

    /// Whether the process executes an attempt, or may be about to. Stands for
    /// `worker/in_flight.rs`.
    #[must_use]
    pub fn knows(&self, token: Token, notes_claims: bool) -> bool {
        let claiming = self.claim.is_some_and(|claim| match claim {
            Claim::Sent(claimed) | Claim::Answered(claimed, _) => claimed == token,
        });
        (claiming && notes_claims) || self.attempts.iter().any(|attempt| attempt.token == token)
    }

    /// Whether it can reach the server.
    #[must_use]
    pub fn is_connected(&self, server: &Server) -> bool {
        self.status == Status::Running && server.up
    }
}

impl Worker {
    /// No such row.
    pub const UNKNOWN: Self = Self { state: Life::Unknown, name: 0, lock_incarnation: None, silence: 0 };
}

impl Place {
    /// Whether the run can never change again.
    #[must_use]
    pub const fn is_terminal(self) -> bool {
        matches!(self, Self::Completed | Self::Failed)
    }
}

impl State {
    /// Returns the state with a queued run and without workers.
    #[must_use]
    pub fn first(n_running: usize, faults: Faults) -> Self {
        let db = Db {
            place: Place::Ready,
            attempt: 0,
            crashes: 0,
            claims: 0,
            steps: 0,
            progressed: false,
            workers: [Worker::UNKNOWN; WORKERS],
            n_failed: 0,
        };
        let mut processes = [(); PROCESSES].map(|()| Process::gone());
        for process in processes.iter_mut().take(n_running) {
            process.status = Status::Running;
        }
        Self {
            db,
            standby: None,
            server: Server { up: true, incarnation: 0, locked: [false; WORKERS] },
            processes,
            strays: Vec::new(),
            faults,
            noted: Noted::default(),
        }
    }

    /// Returns the process of a registered worker.
    #[must_use]
    pub fn process_of(&self, worker: u8) -> Option<&Process> {
        self.processes.iter().find(|process| process.worker == Some(worker))
    }

    /// Whether the database considers a worker alive.
    #[must_use]
    pub fn lives(&self, worker: u8) -> bool {
        self.db.workers[usize::from(worker)].state == Life::Active
    }

    /// Returns a token that nothing names.
    #[must_use]
    pub fn fresh_token(&self) -> Token {
        let named = |token: Token| {
            let leased = |db: &Db| matches!(db.place, Place::Lease { token: leased, .. } if leased == token);
            leased(&self.db)
                || self.standby.as_ref().is_some_and(leased)
                || self.processes.iter().any(|process| process.knows(token, true))
                || self.strays.iter().any(|stray| match stray {
                    Stray::Claim(claimed, _) => *claimed == token,
                    Stray::Write(attempt, ..) => attempt.token == token,
                })
        };
        (0..Token::MAX).find(|token| !named(*token)).unwrap_or_default()
    }

    /// Returns a worker number that is not in use.
    #[must_use]
    pub fn fresh_worker(&self) -> Option<u8> {
        let unknown = |db: &Db, worker: usize| db.workers[worker].state == Life::Unknown;
        let free = |worker: &usize| {
            unknown(&self.db, *worker)
                && self.standby.as_ref().is_none_or(|standby| unknown(standby, *worker))
                && !self.is_named(*worker)
        };
        (0..WORKERS).find(free).and_then(|worker| u8::try_from(worker).ok())
    }

    fn is_named(&self, worker: usize) -> bool {
        let number = u8::try_from(worker).ok();
        let holds = |db: &Db| matches!(db.place, Place::Lease { worker, .. } if Some(worker) == number);
        self.processes.iter().any(|process| process.worker == number)
            || holds(&self.db)
            || self.standby.as_ref().is_some_and(holds)
            || self.strays.iter().any(|stray| match stray {
                Stray::Claim(_, worker) | Stray::Write(_, _, worker) => Some(*worker) == number,
            })
    }

    /// Forgets workers that nothing names: alive or dead, they own nothing.
    pub fn forget(&mut self) {
        for worker in (0..WORKERS).filter(|worker| !self.is_named(*worker)).collect::<Vec<_>>() {
            for db in std::iter::once(&mut self.db).chain(&mut self.standby) {
                db.workers[worker] = Worker::UNKNOWN;
            }
            self.server.locked[worker] = false;
        }
    }

    /// Advances every clock by one tick.
    pub fn tick(&mut self) {
        let older = |age: &mut u8| *age = (*age + 1).min(ticks::LEASE);
        for db in std::iter::once(&mut self.db).chain(&mut self.standby) {
            let living = db.workers.iter_mut().filter(|worker| worker.state == Life::Active);
            living.for_each(|worker| older(&mut worker.silence));
        }
        for process in self.processes.iter_mut().filter(|process| process.status != Status::Gone) {
            older(&mut process.heart.age);
            older(&mut process.memory.known_for);
            if let Some((age, ..)) = &mut process.heart.reply {
                older(age);
            }
        }
    }
}
