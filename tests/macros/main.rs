//! The macros: what the expansions describe, and that they run. What misuse is answered with is the package beside this.

#![allow(clippy::unwrap_used, reason = "clippy does not see that helpers in here are those of tests")]

mod definitions;
mod runs;
