//! The client side: a program enqueues runs, waits for them, lists them and changes them.

#[cfg(feature = "aes-gcm")]
pub(crate) mod codec;
pub(crate) mod completion_listener;
pub(crate) mod enqueue;
pub(crate) mod graph_copy;
pub(crate) mod handle;
pub(crate) mod history;
pub(crate) mod logs;
pub(crate) mod metrics;
pub(crate) mod operate;
pub(crate) mod rerun;
pub(crate) mod runs;
pub(crate) mod signal;
pub(crate) mod timeline;
