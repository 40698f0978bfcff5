//! What users touch: definitions and calls, the client and its handles, the context of a running body, and the app.

#[cfg(feature = "worker")]
pub mod app;
pub mod call;
pub mod client_error;
#[cfg(feature = "aes-gcm")]
pub mod codec;
pub mod config;
pub mod context;
pub mod db;
pub mod definition;
pub mod enqueue;
pub mod error;
pub mod failed;
pub mod graph;
pub mod handle;
pub mod happened;
pub mod history;
pub mod installation;
pub mod invocation;
pub mod job;
pub mod jobs;
pub mod lent;
pub mod linked;
pub mod logs;
pub mod metrics;
#[cfg(feature = "worker")]
pub mod observer;
pub mod operate;
pub mod output;
pub mod pin;
pub mod provided;
pub mod published;
pub mod registry;
pub mod resource;
pub mod runs;
mod server_check;
pub mod signal;
mod source;
pub mod step;
pub mod tuning;
pub mod tx;
#[cfg(feature = "worker")]
pub mod verify;
pub mod workflow;
