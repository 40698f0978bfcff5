//! Runs: names, requests, states, and the decisions about an attempt.

pub mod backoff;
pub mod failure;
pub mod log;
pub mod name;
pub mod overrides;
pub mod refusal;
pub mod request;
pub mod settle;
pub mod state;
pub mod version;
