//! Payloads that are encrypted, hidden and limited.
//!
//! A separate test target: while a codec of the process encrypts, calls on bare connections are
//! refused, also in tests without a codec.
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
