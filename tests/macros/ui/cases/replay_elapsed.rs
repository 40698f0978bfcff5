use std::time::{Duration, SystemTime};

use runledger::{Result, Wf, workflow};

#[workflow]
async fn checkout(wf: &Wf, due: SystemTime) -> Result<bool> {
    let began = wf.now();
    wf.sleep(Duration::from_secs(7)).await?;
    Ok(due.elapsed().is_ok() || began.elapsed()? > Duration::from_secs(8))
}

fn main() {
    let _ = checkout(SystemTime::now());
}
