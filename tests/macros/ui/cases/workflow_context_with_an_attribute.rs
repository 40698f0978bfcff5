use runledger::{Result, Wf, workflow};

#[workflow]
async fn checkout(#[default] wf: &Wf) -> Result<String> {
    Ok(wf.tenant().to_owned())
}

fn main() {}
