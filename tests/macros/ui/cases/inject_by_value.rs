use runledger::{Result, job};

#[job]
async fn charge(#[inject] gateway: String) -> Result<String> {
    Ok(gateway)
}

fn main() {}
