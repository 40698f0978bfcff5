//! Faults against a fleet of worker processes under load: one scripted scenario for each line of `docs/faults.md`, and a soak of random ones.
//!
//! ```text
//! scenario ──faults──▶ Site: worker processes, proxies, a database, a load ──histories outside the database──▶ checkers ──▶ Summary
//!                                       └── Monitor: what must hold at every second
//! ```
//!
//! Must not know: how the engine works; the checkers are those of `runledger_tests::check`.

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

/// What the programs of this package are when they are called as a worker: see [`load::worker`].
pub const WORKER: &str = "worker";
