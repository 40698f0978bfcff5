//! What the model is made of: the protocol with or without a defect, and the faults that may happen.

/// Time in ticks. A heartbeat falls into every tick; the guard, the suspicion and the lease differ by one tick each, which is all that matters.
pub mod ticks {
    /// How old the last acknowledged heartbeat may be when a body starts: younger than this.
    pub const GUARD: u8 = 1;
    /// Silence after which a worker whose lock is free is dead.
    pub const SUSPECT: u8 = 2;
    /// Silence after which a worker is dead whatever its lock says.
    pub const LEASE: u8 = 3;
}

/// What a write for an attempt must name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fence {
    /// The token of its claim, as the engine does.
    Token,
    /// The number of its claim.
    Epoch,
    /// Its worker.
    Worker,
    /// Nothing but the run.
    Nothing,
}

/// What holds a body back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guard {
    /// A heartbeat that was sent too long ago, measured by the time of suspicion, as the engine does.
    Suspect,
    /// The same, measured by the lease.
    Lease,
    /// A heartbeat whose reply came too long ago.
    Reply,
    /// Nothing.
    Nothing,
}

/// How often each fault may happen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Faults {
    /// A process stops for a while and does not notice.
    pub pauses: u8,
    /// A process cannot reach the server for a while.
    pub cuts: u8,
    /// A process dies.
    pub crashes: u8,
    /// A worker's session lock is lost while its process lives.
    pub locks: u8,
    /// The reply to a claim or to a write is lost, or a statement lingers on the server while its sender tries again.
    pub replies: u8,
    /// The server stops for a while.
    pub restarts: u8,
    /// A standby that lags behind takes over.
    pub failovers: u8,
    /// A body fails.
    pub failures: u8,
}

impl Faults {
    /// None.
    pub const NONE: Self =
        Self { pauses: 0, cuts: 0, crashes: 0, locks: 0, replies: 0, restarts: 0, failovers: 0, failures: 0 };

    /// Whether something may still come between two messages, or between the guard and its body. Where nothing can, they are one action: the
    /// order in which processes act gives the same results then, in fewer states.
    #[must_use]
    pub const fn may_delay(&self) -> bool {
        self.pauses + self.cuts > 0
    }

    /// Whether the reply to a write may still be lost or late.
    #[must_use]
    pub const fn may_lose_replies(&self) -> bool {
        self.may_delay() || self.replies + self.restarts + self.failovers > 0
    }
}

/// The protocol, and the faults. Where a part is missing, the model must show what it is for.
#[derive(Clone, Copy, Debug)]
pub struct Ownership {
    /// How many steps the workflow has.
    pub n_steps: u8,
    /// How many processes run when it begins; the others may start later.
    pub n_running: usize,
    /// What a write must name.
    pub fence: Fence,
    /// What holds a body back.
    pub guard: Guard,
    /// Whether a worker gives back leases that it does not know.
    pub reconcile: bool,
    /// Whether the token of a claim is noted before the claim is sent, and not when its reply is there.
    pub notes_claims: bool,
    /// Whether a free lock says something only when the worker is silent as well.
    pub suspicion: bool,
    /// Whether a free lock says something only in the incarnation of the server in which it was taken.
    pub incarnation: bool,
    /// Whether silence counts only where the server has been up during all of it.
    pub doubts_silence: bool,
    /// Whether leases of dead workers are looked for.
    pub sweep: bool,
    /// Whether a claim tests that its worker lives.
    pub claim_tests_worker: bool,
    /// Whether a claim brings the recorded steps.
    pub replay: bool,
    /// Whether a crash is an attempt that failed.
    pub crash_is_a_failure: bool,
    /// The faults.
    pub faults: Faults,
}

impl Ownership {
    /// The protocol of the engine.
    #[must_use]
    pub const fn engine(n_steps: u8, faults: Faults) -> Self {
        Self {
            n_steps,
            n_running: PROCESSES,
            fence: Fence::Token,
            guard: Guard::Suspect,
            reconcile: true,
            notes_claims: true,
            suspicion: true,
            incarnation: true,
            doubts_silence: true,
            sweep: true,
            claim_tests_worker: true,
            replay: true,
            crash_is_a_failure: false,
            faults,
        }
    }
}

/// How many processes there are.
pub const PROCESSES: usize = 2;
