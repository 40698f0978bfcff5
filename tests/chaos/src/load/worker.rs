//! A worker as a process of its own: the programs of this package, called as `worker <url> [--timings default]`.
//!
//! It says `ready <worker id>` when it takes runs, and stops when its input ends or on SIGTERM.

use std::io::{Read, Write};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use runledger::{App, DEFAULT_CONNECTIONS, Db};
use rustix::process::{Resource, Rlimit, setrlimit};

use super::jobs;
use super::releases::Release;
use crate::pace::Pace;

/// How many runs it has in hand at most: a kill should cost a few attempts of many.
const CONCURRENCY: usize = 32;

/// Serves until it is asked to stop.
///
/// # Errors
/// Where it cannot start.
pub fn main(arguments: &[String]) -> Result<()> {
    let (mut url, mut pace, mut connections, mut name, mut drain, mut release) =
        (None, Pace::FAST, DEFAULT_CONNECTIONS, None, None, None);
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().with_context(|| format!("`{argument}` has no value"));
        match argument.as_str() {
            "--timings" => pace = Pace::of(&["--timings", value()?]),
            "--connections" => connections = value()?.parse()?,
            "--name" => name = Some(value()?.clone()),
            "--memory-mib" => limit_memory(value()?.parse()?)?,
            "--drain-millis" => drain = Some(Duration::from_millis(value()?.parse()?)),
            "--release" => release = Some(Release::named(value()?)?),
            option if option.starts_with("--") => bail!("a worker has no `{option}`"),
            given => url = Some(given.to_owned()),
        }
    }
    let url = url.context("a worker needs the address of its database")?;
    runledger_tests::logs::subscribe();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let db = Db::connect_with(url.parse()?, connections).await?;
        let mut app = App::new(db.clone())
            .with(release.map_or_else(jobs::all, Release::jobs))
            .provide(db)
            .timings(pace.timings())
            .concurrency(CONCURRENCY)
            .keep_logs(tracing::Level::INFO);
        if let Some(name) = name {
            app = app.name(name);
        }
        if let Some(drain) = drain {
            app = app.drain(drain);
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
