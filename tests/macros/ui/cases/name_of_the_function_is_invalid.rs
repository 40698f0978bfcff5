use runledger::{Result, job};

#[job]
#[allow(non_snake_case)]
async fn Charge() -> Result<()> {
    Ok(())
}

fn main() {}
