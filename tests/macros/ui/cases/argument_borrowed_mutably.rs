use runledger::{Result, Tx, job};

#[job]
async fn charge(skus: &mut Vec<String>, tx: &mut Tx) -> Result<()> {
    skus.clear();
    let _ = tx;
    Ok(())
}

fn main() {}
