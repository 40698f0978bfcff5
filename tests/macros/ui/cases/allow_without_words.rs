use runledger::{Result, Wf, workflow};

#[workflow(allow())]
async fn of_nothing(wf: &Wf) -> Result<bool> {
    Ok(wf.tenant().is_empty())
}

#[workflow(allow)]
async fn bare(wf: &Wf) -> Result<bool> {
    Ok(wf.tenant().is_empty())
}

#[workflow(allow = "io")]
async fn assigned(wf: &Wf) -> Result<bool> {
    Ok(wf.tenant().is_empty())
}

#[workflow(allow("io", , sleep spawn))]
async fn of_no_words(wf: &Wf) -> Result<bool> {
    Ok(wf.tenant().is_empty())
}

fn main() {}
