//! Which runs a worker takes next.

pub(crate) mod claimer;
pub(crate) mod looks;
pub(crate) mod permits;
pub(crate) mod positions;
pub(crate) mod trial;
