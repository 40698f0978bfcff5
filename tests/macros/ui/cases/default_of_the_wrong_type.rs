use runledger::{Result, job};

#[job]
async fn charge(#[default = "EUR"] currency: String) -> Result<String> {
    Ok(currency)
}

fn main() {}
