use runledger::{Result, job};

#[job]
async fn charge(
    #[injct] gateway: &String,
    #[serde(default)] cents: i64,
    #[colour] name: String,
) -> Result<i64> {
    let _ = (gateway, name);
    Ok(cents)
}

fn main() {}
