//! The subscriber of processes whose workers keep logs.

use runledger::RunLogs;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::prelude::*;

/// Writes to the standard error stream what is worth a look, and lets workers keep what their bodies log.
pub fn subscribe() {
    let shown = tracing_subscriber::fmt::layer().with_ansi(false).with_writer(std::io::stderr);
    tracing_subscriber::registry().with(shown.with_filter(LevelFilter::INFO)).with(RunLogs::layer()).init();
}
