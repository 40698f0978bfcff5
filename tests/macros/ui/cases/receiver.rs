use runledger::{Result, job};

#[job]
async fn charge(self, cents: i64) -> Result<i64> {
    Ok(cents)
}

fn main() {}
