use runledger::{Result, job};

#[job]
async fn charge(sku: &'static str) -> Result<usize> {
    Ok(sku.len())
}

fn main() {}
