use runledger::{Result, job};

#[job(name = "Billing Charge")]
async fn charge(cents: i64) -> Result<i64> {
    Ok(cents)
}

fn main() {
    let _ = charge(1);
}
