use runledger::{Result, job};

struct Declined;

#[job]
async fn charge() -> Result<(), Declined> {
    Err(Declined)
}

fn main() {}
