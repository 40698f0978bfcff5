use runledger::job;

#[job]
async fn charge(cents: i64) {
    drop(cents);
}

fn main() {}
