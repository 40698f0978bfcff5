use std::time::{Duration, SystemTime};

use runledger::{Result, Wf, workflow};

macro_rules! join {
    ($($future:expr),*) => { ($($future.await?,)*) };
}

/// The callers of a workflow that is refused are not reported.
#[workflow(timout = "1h")]
async fn checkout(wf: &Wf, cents: i64) -> Result<i64> {
    let at = SystemTime::now();
    join!(
        wf.sleep(Duration::from_secs(std::env::var("SECONDS").map_or(1, |s| s.len() as u64))),
        wf.step("total", || async { Ok::<_, runledger::Error>(SystemTime::now()) })
    );
    std::thread::sleep(at.elapsed().unwrap_or_default());
    Ok(cents)
}

fn main() {
    let _: runledger::Call<_> = checkout(7);
}
