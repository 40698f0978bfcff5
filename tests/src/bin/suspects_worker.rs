//! A worker in its own process that serves [`runledger_tests::suspects`]: `suspects_worker <url>`.
//! `suspects_worker <url> apart` starts two workers in one process, each with its own queue.

use runledger::prelude::*;
use runledger::{Timings, jobs};
use runledger_tests::suspects::{APART, NAME, SLOTS, exits, exits_late, takes_a_while};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    tracing_subscriber::fmt().with_ansi(false).with_writer(std::io::stderr).init();
    let url = std::env::args().nth(1).ok_or_else(|| anyhow::anyhow!("a URL is needed"))?;
    let db = Db::connect(&url).await?;
    let app = |name: &str| App::new(db.clone()).name(name).concurrency(SLOTS).timings(Timings::FAST);
    if std::env::args().nth(2).is_some_and(|how| how == APART) {
        let apart = app(APART).with(jobs![exits, exits_late]).queues([APART]).start().await?;
        app(NAME).with(jobs![takes_a_while]).serve().await?;
        apart.stop().await;
    } else {
        app(NAME).with(jobs![exits, exits_late, takes_a_while]).serve().await?;
    }
    Ok(())
}
