//! A worker process for tests that pause and kill it: `check_worker <url> [<name> [<point> <moment>
//! <action>]]`.
//!
//! A later worker with the same name takes over its runs at once. The process prints `ready <worker
//! id>` once it claims runs, and stops when its input ends.

use std::io::{Read, Write};

use runledger::Db;
use runledger_tests::check::jobs;
use runledger_tests::check::points::arm;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [url, rest @ ..] = args.as_slice() else { anyhow::bail!("too few arguments") };
    let db = Db::connect(url).await?;
    let mut app = jobs::app(&db);
    if let [name, point @ ..] = rest {
        app = app.name(name);
        arm(point)?;
    }
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
