use runledger::{Result, job};

#[job(name = 5, queue = payments, max_attempts = "5", timeout = 30, version = 1.5, crate = "facade")]
async fn charge(cents: i64) -> Result<i64> {
    Ok(cents)
}

fn main() {
    let _ = charge(1);
}
