//! One state of the model: the database, the server, the processes, and what is under way between them.

use super::config::{Faults, PROCESSES, ticks};

/// Workers that the database may know at once. Those that are dead and named nowhere are forgotten, and their numbers used again.
pub const WORKERS: usize = 4;

/// The number of a token; one that is named nowhere is used again.
pub type Token = u8;

/// What stands in the tables. A standby has a copy of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Db {
    /// Where the one run stands.
    pub place: Place,
    /// Its attempts: those that failed and the present one.
    pub attempt: i32,
    /// Its crashes in a row.
    pub crashes: i32,
    /// How often it was claimed. Counted only where the fence is made of it: otherwise it would make equal states differ.
    pub claims: u8,
    /// Its recorded steps, a bit each.
    pub steps: u8,
    /// Whether one was recorded under the present claim.
    pub progressed: bool,
    /// The workers.
    pub workers: [Worker; WORKERS],
    /// How many attempts have failed. Not in the tables: the model counts it to compare `attempt` with.
    pub n_failed: i32,
}

/// The table that has the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Place {
    /// `ready`
    Ready,
    /// `lease`
    Lease {
        /// The fence.
        token: Token,
        /// Who holds it.
        worker: u8,
    },
    /// `waiting`, blocked: it has crashed too often.
    Blocked,
    /// `outcome`
    Completed,
    /// `outcome`
    Failed,
}

/// A row of `worker`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Worker {
    /// Whether there is such a row, and what it says.
    pub state: Life,
    /// Its name: the number of its process.
    pub name: u8,
    /// The incarnation of the server in which the lock was taken.
    pub lock_incarnation: Option<u8>,
    /// How old `heartbeat_at` is.
    pub silence: u8,
}

/// The state of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Life {
    /// There is no such row, or no reason to remember it.
    Unknown,
    /// `active`
    Active,
    /// `dead`
    Dead,
}

/// What is not in the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Server {
    /// Whether it answers.
    pub up: bool,
    /// Changes with every restart.
    pub incarnation: u8,
    /// The session locks that are held, by worker.
    pub locked: [bool; WORKERS],
}

/// A process with at most one worker in it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Process {
    /// Whether it runs.
    pub status: Status,
    /// The number under which it is registered.
    pub worker: Option<u8>,
    /// Whether it was ever paused or cut off under this number: only then may others take it for dead.
    pub disturbed: bool,
    /// The heartbeat.
    pub heart: Heart,
    /// What maintenance remembers.
    pub memory: Memory,
    /// A claim under way.
    pub claim: Option<Claim>,
    /// The attempts in hand.
    pub attempts: Vec<Attempt>,
}

/// Whether a process runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Status {
    /// Not at all.
    Gone,
    /// As it should.
    Running,
    /// It does nothing, and does not know.
    Paused,
    /// It cannot reach the server.
    Cut,
}

/// `worker/upkeep/heartbeat.rs` and `engine/liveness.rs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Heart {
    /// How long ago the last acknowledged heartbeat was sent, by the process's own clock.
    pub age: u8,
    /// A reply under way: how long ago its heartbeat was sent, whether it says that the worker lives, and the incarnation.
    pub reply: Option<(u8, bool, u8)>,
}

/// What maintenance remembers from one pulse to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Memory {
    /// The incarnation of the last pulse.
    pub incarnation: Option<u8>,
    /// For how long it is known.
    pub known_for: u8,
    /// Whether another was known before.
    pub changed: bool,
}

/// A claim under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Claim {
    /// Not carried out yet.
    Sent(Token),
    /// Carried out: the attempt that it gave, if any.
    Answered(Token, Option<Attempt>),
}

/// An attempt in hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Attempt {
    /// Its fence.
    pub token: Token,
    /// The number of its claim.
    pub epoch: u8,
    /// The steps that it knows to be recorded.
    pub steps: u8,
    /// The counters that its claim gave.
    pub counters: (i32, i32),
    /// How far it is.
    pub phase: Phase,
}

/// How far an attempt is with its next step, or with its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Phase {
    /// Before the guard.
    Waiting,
    /// The guard has let it pass.
    Passed,
    /// In the body.
    Body,
    /// The result is on its way.
    Sent(Write),
    /// The result was written, or refused; the reply is on its way.
    Answered(Write, bool),
}

/// What an attempt writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Write {
    /// The step after those that it knows.
    Checkpoint,
    /// Its end, with an output.
    Complete,
    /// Its end, with a failure.
    Fail,
}

/// A statement that is on the server although its sender is gone or has sent it again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Stray {
    /// A claim by a worker.
    Claim(Token, u8),
    /// A write for an attempt of a worker.
    Write(Attempt, Write, u8),
}

/// What must never happen. The model notes it when it does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Noted {
    /// A write was accepted that was not for the present lease.
    pub stale_write: bool,
    /// The attempt that has the lease ran a recorded step.
    pub ran_again: bool,
    /// A terminal state was left, or another took its place.
    pub left_the_end: bool,
    /// A worker was declared dead whose process had never been away.
    pub buried_alive: bool,
    /// Bodies that began without the lease.
    pub n_stale_starts: u8,
    /// Pauses and failovers so far: what excuses one stale start each.
    pub n_excuses: u8,
    /// Whether a process or the server was away, so that two bodies may run at once.
    pub disturbed: bool,
}

/// One state of everything.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct State {
    /// The database.
    pub db: Db,
    /// What a standby has of it that lags behind.
    pub standby: Option<Db>,
    /// The server.
    pub server: Server,
    /// The processes.
    pub processes: [Process; PROCESSES],
    /// What lingers on the server.
    pub strays: Vec<Stray>,
    /// The faults that may still happen.
    pub faults: Faults,
    /// What must not have happened.
    pub noted: Noted,
}

impl Process {
    /// A process that does not run.
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

    /// Whether it works on an attempt, or may be about to: `worker/held.rs`.
    #[must_use]
    pub fn knows(&self, token: Token, notes_claims: bool) -> bool {
        let claiming = self.claim.is_some_and(|claim| match claim {
            Claim::Sent(claimed) | Claim::Answered(claimed, _) => claimed == token,
        });
        (claiming && notes_claims) || self.attempts.iter().any(|attempt| attempt.token == token)
    }

    /// Whether it can talk to the server.
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
    /// Whether nothing ever changes the run again.
    #[must_use]
    pub const fn is_terminal(self) -> bool {
        matches!(self, Self::Completed | Self::Failed)
    }
}

impl State {
    /// A run in its queue, and nobody registered yet.
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

    /// The process that is registered under a number.
    #[must_use]
    pub fn process_of(&self, worker: u8) -> Option<&Process> {
        self.processes.iter().find(|process| process.worker == Some(worker))
    }

    /// Whether the database believes that a worker lives.
    #[must_use]
    pub fn lives(&self, worker: u8) -> bool {
        self.db.workers[usize::from(worker)].state == Life::Active
    }

    /// A token that is named nowhere.
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

    /// A worker's number that is not in use.
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

    /// Forgets workers that nothing names: whether they live or not, they hold nothing.
    pub fn forget(&mut self) {
        for worker in (0..WORKERS).filter(|worker| !self.is_named(*worker)).collect::<Vec<_>>() {
            for db in std::iter::once(&mut self.db).chain(&mut self.standby) {
                db.workers[worker] = Worker::UNKNOWN;
            }
            self.server.locked[worker] = false;
        }
    }

    /// A tick of every clock.
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
