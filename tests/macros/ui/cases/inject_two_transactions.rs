use runledger::{Result, Tx, job};

#[job]
async fn charge(#[inject] tx: &mut Tx, #[inject] other: &mut Tx) -> Result<()> {
    std::mem::swap(tx, other);
    Ok(())
}

fn main() {}
