use runledger::{Result, job};

#[job(version = 2, accepts = [1, 2])]
async fn charge(cents: i64) -> Result<i64> {
    Ok(cents)
}

fn main() {
    let _ = charge(1);
}
