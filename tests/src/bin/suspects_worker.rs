//! A worker in its own process that serves [`runledger_tests::suspects`]: `suspects_worker <url>`.

use runledger::prelude::*;
use runledger::{Timings, jobs};
use runledger_tests::suspects::{NAME, SLOTS, exits, exits_late, takes_a_while};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    tracing_subscriber::fmt().with_ansi(false).with_writer(std::io::stderr).init();
    let url = std::env::args().nth(1).ok_or_else(|| anyhow::anyhow!("a URL is needed"))?;
    App::new(Db::connect(&url).await?)
        .with(jobs![exits, exits_late, takes_a_while])
        .name(NAME)
        .concurrency(SLOTS)
        .timings(Timings::FAST)
        .serve()
        .await?;
    Ok(())
}
