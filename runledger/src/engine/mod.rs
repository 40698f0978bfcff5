//! One attempt of a run: its recorded steps, its next actions, and its outcome.

pub(crate) mod activity;
pub(crate) mod attempt;
pub(crate) mod beat;
pub(crate) mod body;
pub(crate) mod builtin;
pub(crate) mod call;
pub(crate) mod clock;
pub(crate) mod context;
pub(crate) mod detached_writes;
pub(crate) mod group_commit;
mod limits;
pub(crate) mod liveness;
#[cfg(feature = "logs")]
pub(crate) mod logs;
pub(crate) mod markers;
pub(crate) mod output;
pub(crate) mod saga;
pub(crate) mod signals;
pub(crate) mod span;
pub(crate) mod step;
pub(crate) mod stop;
#[cfg(feature = "testing")]
pub(crate) mod test_hooks;
pub(crate) mod transaction;
pub(crate) mod unpolled;
pub(crate) mod waiting;
#[cfg(feature = "worker")]
pub(crate) mod wakes;
pub(crate) mod wakeups;
