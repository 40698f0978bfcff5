use runledger::{Result, job};

#[job]
async fn charge<T: Send>(value: T) -> Result<T> {
    Ok(value)
}

fn main() {
    let _ = charge(1);
}
