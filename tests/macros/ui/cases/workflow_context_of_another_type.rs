use runledger::{Result, workflow};

struct Order;

#[workflow]
async fn checkout(order: &Order) -> Result<()> {
    let _ = order;
    Ok(())
}

fn main() {}
