use runledger::{Result, job};

#[job]
const fn charge() -> Result<()> {
    Ok(())
}

fn main() {}
