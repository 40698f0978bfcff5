//! Fault injection against a fleet of worker processes under load: a scripted scenario per line of
//! `docs/faults.md`, and a soak of random faults.
//!
//! ```text
//! scenario ──faults──▶ Site: worker processes, proxies, a database, a load
//!                        ├── Monitor: invariants, every second
//!                        └── histories outside the database ──▶ checkers ──▶ Summary
//! ```
//!
//! Must not know how the engine works. The checkers are those of `runledger_tests::check`.

pub mod arguments;
#[cfg(test)]
mod catalogue;
pub mod dice;
pub mod load;
pub mod monitor;
pub mod pace;
pub mod runner;
pub mod scenario;
pub mod scenarios;
pub mod scene;
pub mod server;
pub mod site;
pub mod soak;
pub mod stage;
pub mod summary;
pub mod tail;

/// The hidden subcommand that makes a program of this package a worker: see [`load::worker`].
pub const WORKER: &str = "worker";
