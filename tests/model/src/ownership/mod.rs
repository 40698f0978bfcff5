//! The ownership protocol: which worker may execute a run, and how other workers detect its death.
//! See `docs/decisions/0002-ownership.md`.
//!
//! Two processes and one run with a few steps. Each exchange of two messages in the engine takes
//! two actions here: a heartbeat and its reply, a claim and its reply, a write and its reply, the
//! guard and the body after it. The engine's own `model::run::settle` decides how an attempt ends.

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
