//! A worker as a process of its own: the programs of this package, called as `worker <url> [--timings default]`.
//!
//! It says `ready <worker id>` when it takes runs, and stops when its input ends or on SIGTERM.

use std::io::{Read, Write};
use std::time::Duration;

use anyhow::{Result, bail};
use runledger::{App, DEFAULT_CONNECTIONS, Db};
use rustix::process::{Resource, Rlimit, setrlimit};

use super::jobs;
use super::releases::Release;
use crate::pace::Pace;

/// How many runs it has in hand at most: a kill should cost a few attempts of many.
const CONCURRENCY: usize = 32;

/// How a worker serves.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// The address of its database
    url: String,
    /// `fast` or `default`
    #[arg(long, default_value = "fast", value_parser = Pace::named)]
    timings: Pace,
    #[arg(long, default_value_t = DEFAULT_CONNECTIONS)]
    connections: u32,
    #[arg(long)]
    name: Option<String>,
    /// How much memory it may have
    #[arg(long)]
    memory_mib: Option<u64>,
    /// How long its attempts may go on when it is asked to stop
    #[arg(long)]
    drain_millis: Option<u64>,
    /// The release of the code of its jobs
    #[arg(long, value_parser = Release::named)]
    release: Option<Release>,
}

/// Serves until it is asked to stop.
///
/// # Errors
/// Where it cannot start.
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
    // A thread of its own, which the runtime does not wait for: a read of the input cannot be given up.
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

/// No allocation succeeds beyond it.
fn limit_memory(mib: u64) -> Result<()> {
    let most = Some(mib << 20);
    Ok(setrlimit(Resource::As, Rlimit { current: most, maximum: most })?)
}
