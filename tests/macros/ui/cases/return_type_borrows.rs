use runledger::{Result, job};

#[job]
async fn charge(sku: &str) -> Result<&str> {
    Ok(sku)
}

#[job]
async fn refund() -> Result<&'static str> {
    Ok("refund")
}

fn main() {}
