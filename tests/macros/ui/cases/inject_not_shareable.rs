use std::cell::Cell;

use runledger::{Result, job};

#[job]
async fn charge(#[inject] counter: &Cell<u64>) -> Result<()> {
    counter.set(counter.get() + 1);
    Ok(())
}

fn main() {}
