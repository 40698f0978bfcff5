use runledger::{Result, job};

#[job]
async extern "C" fn charge() -> Result<()> {
    Ok(())
}

fn main() {}
