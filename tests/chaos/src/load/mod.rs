//! The work of a fleet under faults: the jobs, the processes that serve them, and the client that asks for them.

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
