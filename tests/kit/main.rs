//! The test kit, as its users use it: plain `#[tokio::test]`s without the engine's own test
//! support.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on panics, in its helpers too"
)]

mod correct;
mod endings;
mod leftovers;
mod lost_wakeups;
mod mocks;
mod planted;
mod stall_limit;
mod time;
mod together;
mod unserved;
