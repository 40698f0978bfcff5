//! The peers, a module each. What a module decides, it says by whom it is documented; a path in a comment is one in the peer's crate.

pub mod apalis;
pub mod dbos;
pub mod graphile_worker;
pub mod riverqueue;
pub mod underway;
