//! Tasks and I/O around the model: what runs in a worker process.
//!
//! One process has one claimer, a journal with a few writers, one task a run, and, outside its pool, a heartbeat on a thread and connection of its
//! own and a control connection with the session lock. Nothing here decides what becomes of a run: that is `model::settle`.

pub(crate) mod answer;
#[cfg(feature = "worker")]
pub(crate) mod aside;
pub(crate) mod attempt;
pub(crate) mod beat;
pub(crate) mod body;
pub(crate) mod call;
#[cfg(feature = "worker")]
pub(crate) mod claimer;
pub(crate) mod clock;
#[cfg(feature = "worker")]
pub(crate) mod control;
#[cfg(feature = "worker")]
pub(crate) mod drive;
pub(crate) mod ended;
#[cfg(feature = "worker")]
pub(crate) mod executor;
pub(crate) mod graph;
pub(crate) mod halt;
#[cfg(feature = "worker")]
pub(crate) mod heartbeat;
#[cfg(feature = "worker")]
pub(crate) mod held;
#[cfg(feature = "worker")]
pub(crate) mod hook;
pub(crate) mod inbox;
pub(crate) mod journal;
pub(crate) mod kept;
mod limits;
pub(crate) mod liveness;
#[cfg(feature = "logs")]
pub(crate) mod logs;
#[cfg(feature = "worker")]
pub(crate) mod looks;
#[cfg(feature = "worker")]
pub(crate) mod maintenance;
pub(crate) mod marks;
#[cfg(feature = "worker")]
mod memory;
pub(crate) mod nudge;
#[cfg(feature = "worker")]
pub(crate) mod observers;
pub(crate) mod outage;
pub(crate) mod output;
pub(crate) mod panic;
#[cfg(feature = "worker")]
pub(crate) mod permits;
#[cfg(feature = "worker")]
mod positions;
#[cfg(feature = "worker")]
mod process_workers;
pub(crate) mod recording;
pub(crate) mod saga;
#[cfg(feature = "testing")]
pub(crate) mod scene;
#[cfg(feature = "worker")]
pub(crate) mod serve;
pub(crate) mod signals;
pub(crate) mod site;
pub(crate) mod span;
pub(crate) mod step;
pub(crate) mod task;
#[cfg(feature = "worker")]
mod telling;
#[cfg(feature = "worker")]
pub(crate) mod timings;
pub(crate) mod transaction;
#[cfg(feature = "worker")]
mod trial;
#[cfg(feature = "worker")]
pub(crate) mod verify;
pub(crate) mod waiting;
#[cfg(feature = "worker")]
pub(crate) mod wakes;
#[cfg(feature = "worker")]
pub(crate) mod writer;
