use runledger::{Result, job};

struct Receipt;

#[job]
async fn charge() -> Result<Receipt> {
    Ok(Receipt)
}

fn main() {}
