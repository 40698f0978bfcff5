use runledger::{Result, job};

#[job]
async fn charge(sku: impl Into<String>, more: &impl Send) -> Result<String> {
    let _ = more;
    Ok(sku.into())
}

fn main() {}
