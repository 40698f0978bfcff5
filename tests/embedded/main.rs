//! The embedded server under several processes, and the databases of tests on it.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod account;
mod download;
mod inspect;
mod server;
mod site;
mod support;
mod testing_db;
