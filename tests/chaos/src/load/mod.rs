//! The load of a fleet under faults: its jobs, its worker processes, and the client that enqueues
//! the runs.

pub mod canaries;
pub mod client;
pub mod history;
pub mod jobs;
pub mod releases;
mod visits;
pub mod worker;

pub use canaries::Canaries;
pub use client::Client;
pub use history::History;
pub use visits::{decide_unheard, repeat};
