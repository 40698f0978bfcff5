use runledger::{Result, job};

#[job]
async fn charge((euros, cents): (i64, i64), _: u8, whole @ (_, _): (u8, u8)) -> Result<i64> {
    let _ = whole;
    Ok(euros * 100 + cents)
}

fn main() {
    let _ = charge((1, 2), 3, (4, 5));
}
