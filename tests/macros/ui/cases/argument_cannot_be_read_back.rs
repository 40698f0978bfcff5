use runledger::{Result, job};

#[derive(serde::Serialize)]
struct Order;

#[job]
async fn charge(order: &Order) -> Result<()> {
    let _ = order;
    Ok(())
}

fn main() {}
