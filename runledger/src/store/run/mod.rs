//! Statements about runs: their submission, and what people and tools read.

pub mod active;
pub mod enqueue;
pub mod history;
pub mod inspect;
pub mod link;
pub mod pin;
pub mod run_timeline;
pub mod runs;
#[cfg(feature = "worker")]
pub mod verify;
