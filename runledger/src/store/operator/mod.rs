//! Statements of operators: they stop runs and change settings.

pub mod cancel;
pub mod config;
pub mod deadline;
pub mod metrics;
pub mod overrides;
pub mod pause;
pub mod resource;
