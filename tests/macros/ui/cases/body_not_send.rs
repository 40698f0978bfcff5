use std::rc::Rc;

use runledger::{Result, job};

#[job]
async fn charge(cents: i64) -> Result<i64> {
    let shared = Rc::new(cents);
    std::future::ready(()).await;
    Ok(*shared)
}

fn main() {}
