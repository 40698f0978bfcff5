use std::time::{Duration, Instant, SystemTime};

use runledger::{Result, Wf, workflow};

mod chrono {
    pub struct Utc;

    impl Utc {
        pub fn now() -> u64 {
            0
        }
    }
}

#[workflow]
async fn checkout(wf: &Wf, deadline: SystemTime) -> Result<bool> {
    let began = Instant::now();
    if SystemTime::now() > deadline || chrono::Utc::now() > 7 {
        return Ok(false);
    }
    wf.sleep(Duration::from_secs(7)).await?;
    let read = Some(began).map_or_else(std::time::Instant::now, |began| began);
    Ok(read.elapsed() > Duration::ZERO)
}

fn main() {
    let _ = checkout(SystemTime::now());
}
