use std::time::Duration;

use runledger::{Result, Wf, workflow};

mod tokio {
    pub mod time {
        pub async fn sleep(_: std::time::Duration) {}

        pub async fn timeout<F: Future>(_: std::time::Duration, within: F) -> Option<F::Output> {
            Some(within.await)
        }
    }
}

#[workflow]
async fn checkout(wf: &Wf) -> Result<()> {
    tokio::time::sleep(Duration::from_secs(1)).await;
    std::thread::sleep(Duration::from_secs(1));
    let waited = wf.sleep(Duration::from_secs(7));
    tokio::time::timeout(Duration::from_secs(1), waited).await.transpose()?;
    Ok(())
}

fn main() {
    let _ = checkout();
}
