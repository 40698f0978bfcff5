//! A worker process: it claims runs, executes them, and takes over those of workers that died.
//!
//! One process has one claimer, a group commit with a few writers and one task a run. A heartbeat with a thread and a
//! connection of its own and a control connection with the session lock are outside the pool. Nothing here decides what
//! becomes of a run: that is `model::settle`.

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
