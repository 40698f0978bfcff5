use runledger::{Result, job};

struct Billing;

impl Billing {
    #[job]
    async fn charge(&self, cents: i64) -> Result<i64> {
        Ok(cents)
    }
}

fn main() {}
