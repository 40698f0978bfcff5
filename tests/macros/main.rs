//! The macros: the definitions that expansions contain, and their execution. The package `ui` tests
//! the messages for misuse.

#![allow(clippy::unwrap_used, reason = "clippy does not see that helpers in here are those of tests")]

mod definitions;
mod runs;
