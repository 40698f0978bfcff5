//! The peers, one module each. A comment names the peer's documentation for each setting. File
//! paths in these comments are inside the peer's crate.

pub mod apalis;
pub mod dbos;
pub mod graphile_worker;
pub mod riverqueue;
pub mod underway;
