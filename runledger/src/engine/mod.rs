//! One attempt of a run: what its body has recorded, what it may do next, and how it ends.

pub(crate) mod attempt;
pub(crate) mod beat;
pub(crate) mod body;
pub(crate) mod builtin;
pub(crate) mod call;
pub(crate) mod clock;
pub(crate) mod context;
pub(crate) mod halt;
pub(crate) mod journal;
pub(crate) mod kept;
mod limits;
pub(crate) mod liveness;
#[cfg(feature = "logs")]
pub(crate) mod logs;
pub(crate) mod marks;
pub(crate) mod nudge;
pub(crate) mod output;
pub(crate) mod recording;
pub(crate) mod saga;
#[cfg(feature = "testing")]
pub(crate) mod scene;
pub(crate) mod signals;
pub(crate) mod span;
pub(crate) mod step;
pub(crate) mod transaction;
pub(crate) mod waiting;
#[cfg(feature = "worker")]
pub(crate) mod wakes;
