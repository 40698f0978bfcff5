//! The tracing subscriber of processes whose workers store logs.

use runledger::RunLogs;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::prelude::*;

/// Writes events to standard error from level `INFO` on, and lets workers store what bodies log.
pub fn subscribe() {
    let shown = tracing_subscriber::fmt::layer().with_ansi(false).with_writer(std::io::stderr);
    tracing_subscriber::registry().with(shown.with_filter(LevelFilter::INFO)).with(RunLogs::layer()).init();
}
