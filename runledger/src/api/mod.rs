//! What users touch: definitions and calls, the client and its handles, the context of a running body, and the app.

#[cfg(feature = "worker")]
pub mod app;
pub mod call;
pub mod client_error;
pub mod context;
pub mod db;
pub mod definition;
pub mod enqueue;
pub mod error;
pub mod failed;
pub mod handle;
pub mod history;
pub mod invocation;
pub mod job;
pub mod jobs;
pub mod lent;
pub mod linked;
pub mod provided;
pub mod published;
pub mod registry;
pub mod signal;
pub mod step;
pub mod tx;
#[cfg(feature = "worker")]
pub mod verify;
pub mod workflow;
