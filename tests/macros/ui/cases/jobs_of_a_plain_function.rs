use runledger::jobs;

async fn charge(cents: i64) -> i64 {
    cents
}

fn main() {
    let _ = jobs![charge];
}
