use runledger::{Result, job};

struct Order;

#[job]
async fn charge(order: Order) -> Result<()> {
    drop(order);
    Ok(())
}

fn main() {}
