//! From a claimed run to its end: the task of a run, and the writers of what it records.

pub(crate) mod aside;
pub(crate) mod drive;
pub(crate) mod executor;
pub(crate) mod telling;
pub(crate) mod writer;
