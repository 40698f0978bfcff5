//! What a worker does beside its runs: it shows that it lives, finds dead workers, and does the chores that are due.

pub(crate) mod control;
pub(crate) mod heartbeat;
pub(crate) mod maintenance;
pub(crate) mod memory;
