//! A worker process for tests that kill, pause and stop it.
//!
//! `chain_worker <url> <log> <name> <heartbeat ms> <suspect ms> <lease ms> <drain ms>` serves until
//! SIGTERM or a drain request.

use std::path::Path;
use std::time::Duration;

use runledger::prelude::*;
use runledger::{Timings, jobs};
use runledger_tests::chain::{Log, chain, chain_link, fragile, fragile_end, fragile_entry};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [url, log, name, numbers @ ..] = args.as_slice() else { anyhow::bail!("too few arguments") };
    let numbers: Vec<u64> = numbers.iter().map(|number| number.parse()).collect::<Result<_, _>>()?;
    let [heartbeat, suspect, lease, drain] = numbers[..] else { anyhow::bail!("four intervals are needed") };
    let timings = Timings::new(
        Duration::from_millis(heartbeat),
        Duration::from_millis(suspect),
        Duration::from_millis(lease),
    );
    App::new(Db::connect(url).await?)
        .with(jobs![chain, chain_link, fragile, fragile_entry, fragile_end])
        .provide(Log::open(Path::new(log))?)
        .name(name)
        .timings(timings)
        .drain(Duration::from_millis(drain))
        .serve()
        .await?;
    Ok(())
}
