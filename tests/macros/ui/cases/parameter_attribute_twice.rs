use runledger::{Result, job};

#[job]
async fn charge(#[inject] #[inject] gateway: &String, #[default(5)] cents: i64, #[inject(mut)] a: &u8) -> Result<i64> {
    let _ = (gateway, a);
    Ok(cents)
}

fn main() {}
