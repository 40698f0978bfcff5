use runledger::{Result, job};

#[job]
async fn charge<'a>(sku: &'a str) -> Result<usize> {
    Ok(sku.len())
}

fn main() {}
