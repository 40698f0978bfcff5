use runledger::{Result, job};

#[job]
async fn charge(#[inject] #[default] gateway: &String) -> Result<usize> {
    Ok(gateway.len())
}

fn main() {
    let _ = charge();
}
