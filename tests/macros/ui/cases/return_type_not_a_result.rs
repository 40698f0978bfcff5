use runledger::{Result, job};

#[job]
async fn charge(cents: i64) -> i64 {
    let _: Result<()> = Ok(());
    cents
}

fn main() {}
