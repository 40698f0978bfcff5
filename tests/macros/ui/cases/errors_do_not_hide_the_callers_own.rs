use std::collections::HashMap;

use runledger::{Job, Result, job};

#[job(max_retries = 5)]
async fn charge(cents: i64, #[inject] gateway: &String) -> Result<i64> {
    let seen: HashMap<String, i64> = HashMap::new();
    Ok(seen.get(gateway).copied().unwrap_or(cents))
}

fn output<J: Job<Output = i64>>(_: runledger::Call<J>) {}

fn main() {
    output(charge(5));
    output(charge("five"));
}
