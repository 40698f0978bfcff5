//! Payloads that are sealed, hidden, and limited.
//!
//! A target of its own: while a codec of the process seals, calls on bare connections are refused, also those of tests that know of no codec.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on panics, in its helpers too"
)]

mod crashes;
mod everywhere;
mod graphs;
mod histories;
mod keys;
mod limits;
mod linked;
mod panics;
mod requests;
mod secrets;
mod words;
