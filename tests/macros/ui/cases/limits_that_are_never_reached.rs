use runledger::{Result, job};

#[job(heartbeat = "3h", timeout = "2h", deadline = "60m")]
async fn charge(cents: i64) -> Result<i64> {
    Ok(cents)
}

fn main() {
    let _ = charge(1);
}
