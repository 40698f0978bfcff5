//! The ownership protocol: who may work on a run, and how others find out that he is gone. See `docs/decisions/0002-ownership.md`.
//!
//! Two processes and one run with some steps. Everything that takes two messages in the engine takes two actions here: a heartbeat and its reply, a claim
//! and its reply, a write and its reply, the guard and the body behind it. What becomes of a run is decided by the engine's own `model::settle`.

mod act;
mod canon;
mod config;
mod may;
mod properties;
mod state;

pub use act::{Action, has_lease};
pub use config::{Faults, Fence, Guard, Ownership, PROCESSES, ticks};
pub use properties::{Checked, check, names};
pub use state::{Attempt, Claim, Db, Life, Phase, Place, Process, Server, State, Status, Stray, Write};
