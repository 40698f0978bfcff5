//! Statements of an attempt: the claim, its recorded steps, its waits and its end.

pub mod checkpoint;
#[cfg(feature = "worker")]
pub mod claim;
pub mod log;
pub mod output;
pub mod progress;
#[cfg(feature = "worker")]
pub mod settle;
pub mod signal;
pub mod wait;
