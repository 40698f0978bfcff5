//! The behaviours of workflows and of their replay, one test for each.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on panics, in its helpers too"
)]

mod branches;
mod combinators;
mod continuing;
mod divergence;
mod dropped;
mod history_size;
mod kept;
mod lingering;
mod marks;
mod nested;
mod replay;
mod sagas;
mod signals;
mod steps;
mod tangles;
mod verify;
mod versions;
mod waiting;
