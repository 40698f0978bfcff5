//! The engine's statements on a real database: random traces of the model, and every order of
//! concurrent transactions.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "tests: one that cannot go on panics, and each says how much it has seen"
)]

mod agreement;
mod permutations;
