//! Pure decisions, without a clock, I/O or randomness: states and their transitions, the retry
//! decision, replay, names, limits and the canonical form of a request.
//!
//! Code here takes values and returns values. It does not know SQL or tokio. Every other layer may
//! use it.

pub mod backoff;
mod deliveries;
pub mod dependency_inputs;
pub mod divergence;
pub mod failure;
pub mod graph;
pub mod graph_state;
pub mod history;
pub mod history_prefix;
pub mod history_size;
pub mod json;
pub mod link;
pub mod log;
pub mod name;
pub(crate) mod panic;
pub mod payload;
pub mod picture;
pub mod recorded;
#[cfg(feature = "worker")]
pub(crate) mod refusal;
pub mod replay;
pub mod request;
pub mod scope;
pub mod settle;
pub mod shape;
pub mod state;
pub mod timestamp;
pub mod tuning;
pub mod unreadable;
#[cfg(feature = "worker")]
pub mod verification;
pub mod version;
