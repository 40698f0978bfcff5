use runledger::{Result, Tx, Wf, workflow};

#[workflow]
async fn checkout(wf: &Wf, #[inject] tx: &mut Tx) -> Result<String> {
    let _ = tx;
    Ok(wf.tenant().to_owned())
}

fn main() {}
