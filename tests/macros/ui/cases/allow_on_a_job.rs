use std::time::SystemTime;

use runledger::{Result, job};

#[job(allow(wall_clock))]
async fn charge() -> Result<bool> {
    Ok(SystemTime::now().elapsed().is_ok())
}

fn main() {
    let _ = charge();
}
