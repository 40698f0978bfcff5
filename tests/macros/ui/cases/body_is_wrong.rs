use runledger::{Result, job};

#[job]
async fn charge(cents: i64) -> Result<i64> {
    let text: String = cents;
    missing(text);
    Ok(cents)
}

fn main() {}
