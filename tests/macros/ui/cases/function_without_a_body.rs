use runledger::{Result, job};

#[job]
async fn charge() -> Result<()>;

fn main() {}
