//! A worker process: it claims runs, executes them, and recovers the runs of dead workers.
//!
//! One process has one claimer, one group commit with one or two writers, and one task per run. The
//! heartbeat has its own thread and connection. The control connection holds the session lock. Both
//! connections are outside the pool. `model::run::settle` decides the outcome of a run, not this
//! module.

pub(crate) mod app;
mod claim;
pub(crate) mod execute;
pub(crate) mod in_flight;
pub(crate) mod observer;
mod process_workers;
pub(crate) mod report;
pub(crate) mod serve;
pub(crate) mod timings;
pub(crate) mod upkeep;
