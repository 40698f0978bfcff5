//! A worker process for tests whose job kills the process.

use runledger::{App, Db, Timings, jobs};
use runledger_tests::crashing::{DATABASE, NAME, kills_its_process};

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> anyhow::Result<()> {
    let db = Db::connect(&std::env::var(DATABASE)?).await?;
    App::new(db).name(NAME).with(jobs![kills_its_process]).timings(Timings::FAST).serve().await?;
    Ok(())
}
