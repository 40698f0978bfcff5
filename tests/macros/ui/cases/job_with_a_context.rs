use runledger::{Result, Wf, job};

#[job]
async fn charge(wf: &Wf, cents: i64) -> Result<i64> {
    let _ = wf;
    Ok(cents)
}

fn main() {}
