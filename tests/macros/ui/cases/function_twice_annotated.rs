use runledger::{Result, job, workflow};

#[job]
#[workflow]
async fn charge() -> Result<()> {
    Ok(())
}

fn main() {}
