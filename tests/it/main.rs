//! The behaviours of the engine, each as a test named by its sentence.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on panics, in its helpers too"
)]

mod embedded;
mod migrations;
mod payload;
mod plans;
mod registry;
mod smoke;
mod statements;
mod transitions;
mod two_processes;
