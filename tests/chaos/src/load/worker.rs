//! A worker process: the programs of this package, called as `worker <url> [--timings default]`.
//!
//! It prints `ready <worker id>` when it starts to claim runs. It stops when its input ends or on
//! SIGTERM.

use std::io::{Read, Write};
use std::time::Duration;

use anyhow::{Result, bail};
use runledger::{App, DEFAULT_CONNECTIONS, Db};
use rustix::process::{Resource, Rlimit, setrlimit};

use super::jobs;
use super::releases::Release;
use crate::pace::Pace;

/// The limit of runs in flight: a kill should cost a few attempts of many.
const CONCURRENCY: usize = 32;

/// The options of a worker.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Address of the database
    url: String,
    /// `fast` or `default`
    #[arg(long, default_value = "fast", value_parser = Pace::named)]
    timings: Pace,
    #[arg(long, default_value_t = DEFAULT_CONNECTIONS)]
    connections: u32,
    #[arg(long)]
    name: Option<String>,
    /// Limit of the address space, in MiB
    #[arg(long)]
    memory_mib: Option<u64>,
    /// How long attempts may continue after a request to stop, in milliseconds
    #[arg(long)]
    drain_millis: Option<u64>,
    /// Release of the jobs' code: `former` or `next`
    #[arg(long, value_parser = Release::named)]
    release: Option<Release>,
}

/// Serves until it is asked to stop.
///
/// # Errors
/// The worker cannot start, or ended by itself.
pub fn main(options: Options) -> Result<()> {
    let Options { url, timings, connections, name, memory_mib, drain_millis, release } = options;
    if let Some(mib) = memory_mib {
        limit_memory(mib)?;
    }
    runledger_tests::logs::subscribe();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let db = Db::connect_with(url.parse()?, connections).await?;
        let mut app = App::new(db.clone())
            .with(release.map_or_else(jobs::all, Release::jobs))
            .provide(db)
            .timings(timings.timings())
            .concurrency(CONCURRENCY)
            .keep_logs(tracing::Level::INFO);
        if let Some(name) = name {
            app = app.name(name);
        }
        if let Some(millis) = drain_millis {
            app = app.drain(Duration::from_millis(millis));
        }
        serve(app).await
    })
}

async fn serve(app: App) -> Result<()> {
    let mut terminated = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    let mut worker = app.start().await?;
    {
        let mut out = std::io::stdout().lock();
        writeln!(out, "ready {}", worker.id())?;
        out.flush()?;
    }
    let (gone, input_ended) = tokio::sync::oneshot::channel();
    // A separate thread, which the runtime does not wait for: a blocking read cannot be cancelled.
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        let _ = gone.send(());
    });
    tokio::select! {
        _ = input_ended => {}
        _ = terminated.recv() => {}
        () = worker.ended() => bail!("the worker has ended by itself"),
    }
    worker.stop().await;
    Ok(())
}

/// Allocations beyond the limit fail.
fn limit_memory(mib: u64) -> Result<()> {
    let most = Some(mib << 20);
    Ok(setrlimit(Resource::As, Rlimit { current: most, maximum: most })?)
}
