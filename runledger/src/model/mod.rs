//! Pure decisions, without a clock, I/O or randomness: states and their transitions, the retry
//! decision, replay, names, limits and the canonical form of a request.
//!
//! Code here takes values and returns values. It does not know SQL or tokio. Every other layer may
//! use it.

pub mod graph;
pub mod json;
pub(crate) mod panic;
pub mod payload;
pub mod picture;
pub mod replay;
pub mod run;
pub mod shape;
pub mod timestamp;
pub mod unreadable;
