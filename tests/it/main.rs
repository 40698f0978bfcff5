//! The behaviours of the engine, each as a test named by its sentence.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

mod embedded;
mod payload;
mod registry;
mod smoke;
mod transitions;
mod two_processes;
