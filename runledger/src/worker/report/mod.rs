//! Whom a worker tells of its attempts: the application's observers and hooks.

pub(crate) mod hook;
pub(crate) mod observers;
