//! A scenario's own servers, which it may crash, promote and fill, and whose clocks it may set.
//!
//! ```text
//! <base>/data        PGDATA, on the small volume if the disk is to be full
//! <base>/socket      the only access: no port, and a replaced server is unreachable
//! <base>/volume      a small tmpfs, if there is one
//! <base>/log
//! ```
//!
//! A watcher ends the server and deletes its folder, however this process ends. The watcher is a
//! shell that reads from a pipe, which closes with this process.
//!
//! Must not know runs, workers or the schema.

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
