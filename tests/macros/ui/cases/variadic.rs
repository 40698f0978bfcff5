use runledger::{Result, job};

#[job]
async unsafe extern "C" fn charge(cents: i64, _: ...) -> Result<i64> {
    Ok(cents)
}

fn main() {}
