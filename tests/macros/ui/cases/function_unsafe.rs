use runledger::{Result, job};

#[job]
async unsafe fn charge() -> Result<()> {
    Ok(())
}

fn main() {}
