use runledger::{Result, job};

#[job]
async fn charge(cents: i64) -> Result<i64>
where
    i64: Send,
{
    Ok(cents)
}

fn main() {}
