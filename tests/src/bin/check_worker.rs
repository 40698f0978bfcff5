//! A worker in a process of its own, for tests that pause and kill it: `check_worker <url> [<name>]`.
//!
//! It says `ready <worker id>` when it takes runs, and stops when its input ends.

use std::io::{Read, Write};

use runledger::Db;
use runledger_tests::check::jobs;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let mut args = std::env::args().skip(1);
    let db = Db::connect(&args.next().unwrap_or_default()).await?;
    let app = jobs::app(&db);
    let app = match args.next() {
        Some(name) => app.name(name),
        None => app,
    };
    let worker = app.start().await?;
    {
        let mut out = std::io::stdout().lock();
        writeln!(out, "ready {}", worker.id())?;
        out.flush()?;
    }
    tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new())).await??;
    worker.stop().await;
    Ok(())
}
