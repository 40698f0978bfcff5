use runledger::{Result, Wf, workflow};

#[workflow]
async fn checkout(wf: &mut Wf) -> Result<String> {
    Ok(wf.tenant().to_owned())
}

fn main() {}
