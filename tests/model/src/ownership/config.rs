//! The configuration of the model: the protocol, with or without a defect, and the possible faults.

/// Time in ticks. Every tick contains a heartbeat. The guard, the suspicion and the lease differ by
/// one tick each, because only their order matters.
pub mod ticks {
    /// A body starts only if the last acknowledged heartbeat is younger than this.
    pub const GUARD: u8 = 1;
    /// Silence after which a worker with a free lock is dead.
    pub const SUSPECT: u8 = 2;
    /// Silence after which a worker is dead, with or without a lock.
    pub const LEASE: u8 = 3;
}

/// The value that a write for an attempt must contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fence {
    /// The token of its claim, as in the engine.
    Token,
    /// The number of its claim.
    Epoch,
    /// Its worker.
    Worker,
    /// Only the run.
    Nothing,
}

/// The condition that keeps a body from starting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guard {
    /// A heartbeat that was sent longer ago than the suspicion, as in the engine.
    Suspect,
    /// A heartbeat that was sent longer ago than the lease.
    Lease,
    /// A heartbeat whose reply came too long ago.
    Reply,
    /// Nothing.
    Nothing,
}

/// How often each fault may happen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Faults {
    /// A process is paused and does not notice.
    pub pauses: u8,
    /// A process cannot reach the server for a while.
    pub cuts: u8,
    /// A process dies.
    pub crashes: u8,
    /// A worker loses its session lock while its process lives.
    pub locks: u8,
    /// The reply to a claim or a write is lost, or a statement still waits on the server while its
    /// sender tries again.
    pub replies: u8,
    /// The server stops for a while.
    pub restarts: u8,
    /// A standby that lags behind takes over.
    pub failovers: u8,
    /// A body fails.
    pub failures: u8,
}

impl Faults {
    /// No faults.
    pub const NONE: Self =
        Self { pauses: 0, cuts: 0, crashes: 0, locks: 0, replies: 0, restarts: 0, failovers: 0, failures: 0 };

    /// Whether something may still happen between two messages, or between the guard and its body.
    /// If not, the model merges them into one action: the order of the processes then gives the
    /// same results in fewer states.
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

/// The protocol and the faults. If a part of the protocol is missing, the model must show why the
/// part exists.
#[derive(Clone, Copy, Debug)]
pub struct Ownership {
    /// The number of steps of the workflow.
    pub n_steps: u8,
    /// How many processes run at the start. The others may start later.
    pub n_running: usize,
    /// The value that a write must contain.
    pub fence: Fence,
    /// The condition that keeps a body from starting.
    pub guard: Guard,
    /// Whether a worker returns leases that it does not know.
    pub reconcile: bool,
    /// Whether a worker notes a claim's token before it sends the claim, not when the reply
    /// arrives.
    pub notes_claims: bool,
    /// Whether a free lock counts only if the worker is silent as well.
    pub suspicion: bool,
    /// Whether a free lock counts only in the server incarnation in which it was taken.
    pub incarnation: bool,
    /// Whether silence counts only if the server was up the whole time.
    pub doubts_silence: bool,
    /// Whether workers search for leases of dead workers.
    pub sweep: bool,
    /// Whether a claim checks that its worker lives.
    pub claim_tests_worker: bool,
    /// Whether a claim returns the recorded steps.
    pub replay: bool,
    /// Whether a crash counts as a failed attempt.
    pub crash_is_a_failure: bool,
    /// The faults.
    pub faults: Faults,
}

impl Ownership {
    /// Returns the engine's protocol.
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

/// The number of processes.
pub const PROCESSES: usize = 2;
