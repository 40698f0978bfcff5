//! Reports attempts to the application's observers and hooks.

pub(crate) mod hook;
pub(crate) mod observers;
