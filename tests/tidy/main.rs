//! The invariants of the architecture, as tests over the source text. A rule that is not here is an opinion.
#![allow(clippy::unwrap_used, reason = "tests")]

mod generated;
mod layers;
mod links;
mod quickstart;
mod source;
mod sql;
mod style;
mod targets;
mod workflows;
mod writes;
