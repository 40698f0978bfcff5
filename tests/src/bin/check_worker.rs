//! A worker in a process of its own, for tests that pause and kill it: `check_worker <url>`.
//!
//! It says `ready <worker id>` when it takes runs, and stops when its input ends.

use std::io::{Read, Write};

use runledger::{App, Db, Timings};
use runledger_tests::check::jobs;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let url = std::env::args().nth(1).unwrap_or_default();
    let db = Db::connect(&url).await?;
    let worker = App::new(db).with(jobs::all()).timings(Timings::FAST).start().await?;
    {
        let mut out = std::io::stdout().lock();
        writeln!(out, "ready {}", worker.id())?;
        out.flush()?;
    }
    tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new())).await??;
    worker.stop().await;
    Ok(())
}
