//! Statements of an attempt: its recorded steps, its waits and its end.

pub mod checkpoint;
pub mod log;
pub mod output;
pub mod progress;
pub mod settle;
pub mod signal;
pub mod wait;
