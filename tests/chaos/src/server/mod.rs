//! Servers of a scenario's own, which it may crash, promote, fill and set the clocks of.
//!
//! ```text
//! <base>/data        PGDATA; on a volume of its own where the disk is to be full
//! <base>/socket      the only way in: no port is taken, and a server that was replaced is reached by nobody
//! <base>/volume      a small tmpfs, if there is one
//! <base>/log
//! ```
//!
//! A watcher, a shell that reads a pipe which this process holds open, ends the server and deletes its folder however this process ends.
//!
//! Must not know: runs, workers, the schema.

mod clock;
mod cluster;
mod dump;
mod settings;
mod standby;
mod volume;

pub use clock::Clock;
pub use cluster::{Cluster, Stop};
pub use settings::{Disk, Programs, Settings};
pub use volume::Volume;
