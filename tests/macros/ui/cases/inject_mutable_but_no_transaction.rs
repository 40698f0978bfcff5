use runledger::{Result, job};

#[job]
async fn charge(#[inject] gateway: &mut String) -> Result<()> {
    gateway.clear();
    Ok(())
}

fn main() {}
