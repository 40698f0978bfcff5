use runledger::{Result, job};

#[job(version = 4, accepts = "1..3")]
async fn charge(cents: i64) -> Result<i64> {
    Ok(cents)
}

fn main() {
    let _ = charge(1);
}
