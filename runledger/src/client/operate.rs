//! What operators do to jobs and runs.

pub(crate) mod overrides;
pub(crate) mod pin;
pub(crate) mod resource;
