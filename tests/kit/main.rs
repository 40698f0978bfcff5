//! The test kit, used as its users do: plain `#[tokio::test]`s, with nothing of the engine's own tests.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on panics, in its helpers too"
)]

mod correct;
mod endings;
mod leftovers;
mod mocks;
mod patience;
mod planted;
mod time;
mod together;
mod unserved;
