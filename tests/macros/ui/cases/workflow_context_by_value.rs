use runledger::{Result, Wf, workflow};

#[workflow]
async fn checkout(wf: Wf, order: String) -> Result<String> {
    let _ = wf;
    Ok(order)
}

fn main() {
    let _ = checkout(String::new());
}
