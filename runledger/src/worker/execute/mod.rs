//! From a claimed run to its end: the task of a run, and the writers of what it records.

pub(crate) mod deferred_writes;
pub(crate) mod drive;
pub(crate) mod executor;
pub(crate) mod report_outcome;
pub(crate) mod writer;
