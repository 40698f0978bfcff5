use runledger::{Result, Wf, workflow};

#[workflow(heartbeat = "30s", deadline = "1h")]
async fn checkout(wf: &Wf, cents: i64) -> Result<i64> {
    drop(wf.run_id());
    Ok(cents)
}

fn main() {
    let _ = checkout(1);
}
