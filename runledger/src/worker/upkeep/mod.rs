//! Work of a worker beside its runs: heartbeats, the search for dead workers, timers, deadlines and cancels.

pub(crate) mod control;
pub(crate) mod failure_detector;
pub(crate) mod heartbeat;
pub(crate) mod maintenance;
