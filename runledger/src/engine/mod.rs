//! One attempt of a run: its recorded steps, its next actions, and its outcome.

pub(crate) mod attempt;
pub(crate) mod beat;
pub(crate) mod body;
pub(crate) mod builtin;
pub(crate) mod group_commit;
pub(crate) mod liveness;
#[cfg(feature = "logs")]
pub(crate) mod logs;
pub(crate) mod output;
pub(crate) mod span;
pub(crate) mod step;
#[cfg(feature = "testing")]
pub(crate) mod test_hooks;
pub(crate) mod transaction;
pub(crate) mod wakes;
pub(crate) mod wakeups;
