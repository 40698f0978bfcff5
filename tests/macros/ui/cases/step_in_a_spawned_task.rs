use runledger::{Result, Wf, job, workflow};

#[job]
async fn charge(cents: i64) -> Result<i64> {
    Ok(cents)
}

async fn spawn<F: Future<Output = ()> + Send + 'static>(task: F) {
    task.await;
}

#[workflow]
async fn checkout(wf: &Wf) -> Result<()> {
    spawn(async move {
        let _ = wf.run(charge(1)).await;
    })
    .await;
    Ok(())
}

fn main() {}
