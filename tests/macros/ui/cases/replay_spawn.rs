use runledger::{Result, Wf, workflow};

mod tokio {
    pub fn spawn<F: Future>(_: F) {}

    pub mod task {
        pub fn spawn_blocking<F: FnOnce()>(_: F) {}
    }
}

#[workflow]
async fn checkout(wf: &Wf) -> Result<()> {
    tokio::spawn(async {});
    tokio::task::spawn_blocking(|| {});
    std::thread::spawn(|| {}).join().expect("it does not panic");
    wf.sleep(std::time::Duration::ZERO).await?;
    Ok(())
}

fn main() {
    let _ = checkout();
}
