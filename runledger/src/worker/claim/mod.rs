//! Which runs a worker takes next.

pub(crate) mod backlog_scan;
pub(crate) mod claim_cursors;
pub(crate) mod claimer;
pub(crate) mod permits;
pub(crate) mod trial;
