//! The worker's background work: heartbeats, failure detection, timers, deadlines and cancels.

pub(crate) mod control;
pub(crate) mod failure_detector;
pub(crate) mod heartbeat;
pub(crate) mod maintenance;
pub(crate) mod orphans;
pub(crate) mod wakes;
