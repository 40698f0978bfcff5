#![deny(unused_must_use)]

use runledger::{Result, job};

#[job]
async fn charge(cents: i64) -> Result<i64> {
    Ok(cents)
}

fn main() {
    charge(5);
}
