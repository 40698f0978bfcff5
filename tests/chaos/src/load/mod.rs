//! The work of a fleet under faults: the jobs, the processes that serve them, and the client that asks for them.

pub mod client;
pub mod jobs;
pub mod worker;

pub use client::Client;
