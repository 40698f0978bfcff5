use runledger::{Result, job, jobs};

#[job]
async fn charge(cents: i64) -> Result<i64> {
    Ok(cents)
}

fn main() {
    let _ = jobs![charge(5)];
}
