use runledger::{Result, job};

#[job]
async fn charge(cents: i64, #[inject] gateway: &String) -> Result<i64> {
    let _ = gateway;
    Ok(cents)
}

fn main() {
    let _ = charge("five");
    let _ = charge(5, &String::new());
    charge(5);
}
