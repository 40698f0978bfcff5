use runledger::{Result, job};

#[job]
async fn charge<const N: usize>() -> Result<usize> {
    Ok(N)
}

fn main() {}
