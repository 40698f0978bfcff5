//! The only place with SQL. One verb family a module, one statement a file; rows that may be wrong become model types that cannot be.

pub mod cancel;
pub mod checkpoint;
#[cfg(feature = "worker")]
pub mod claim;
pub mod enqueue;
pub mod error;
pub mod inspect;
pub mod migrate;
#[cfg(feature = "worker")]
pub mod pooler;
pub mod server;
pub mod session;
#[cfg(feature = "worker")]
pub mod settle;
pub mod sql;
mod timestamp;
pub mod wait;
#[cfg(feature = "worker")]
pub mod worker;
