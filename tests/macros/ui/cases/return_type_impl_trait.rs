use runledger::{Result, job};

#[job]
async fn charge(cents: i64) -> Result<impl Send> {
    Ok(cents)
}

fn main() {}
