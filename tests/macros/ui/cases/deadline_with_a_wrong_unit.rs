use runledger::{Result, job};

#[job(deadline = "1hour")]
async fn charge(cents: i64) -> Result<i64> {
    Ok(cents)
}

fn main() {
    let _ = charge(1);
}
