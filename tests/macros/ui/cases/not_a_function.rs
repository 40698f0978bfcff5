use runledger::{Result, job};

#[job]
struct Charge;

#[job]
const CHARGE: u8 = 1;

struct Refund;

#[job(max_attempts = 5)]
impl Refund {
    fn new() -> Result<Self> {
        Ok(Self)
    }
}

#[job]
pub(crate) mod jobs {}

fn main() {
    let _ = (Charge, CHARGE, Refund::new());
}
