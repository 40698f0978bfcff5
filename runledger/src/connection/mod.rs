//! The database as the upper layers see it: its address, the pool, transactions, timeouts of
//! statements, and notifications.

pub(crate) mod client_error;
pub(crate) mod code_context;
pub(crate) mod db;
pub(crate) mod db_timeout;
pub(crate) mod inbox;
pub(crate) mod installation;
pub(crate) mod outage;
pub(crate) mod panic;
mod server_check;
#[cfg(feature = "worker")]
pub(crate) mod session;
pub(crate) mod source;
pub(crate) mod task;
pub(crate) mod tx;
