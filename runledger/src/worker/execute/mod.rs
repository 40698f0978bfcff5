//! Executes a claimed run: the task of the run, and the writers of its records.

pub(crate) mod deferred_writes;
pub(crate) mod drive;
pub(crate) mod executor;
pub(crate) mod report_outcome;
pub(crate) mod settling;
pub(crate) mod writer;
