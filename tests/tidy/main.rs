//! The rules of the architecture, as tests over the source text. A rule without a test here is an
//! opinion.
#![allow(clippy::unwrap_used, reason = "tests")]

mod book;
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
