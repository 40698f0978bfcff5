use runledger::{Result, Wf, workflow};

#[workflow]
async fn checkout(order: String) -> Result<String> {
    Ok(order)
}

#[workflow]
async fn nightly() -> Result<()> {
    Ok(())
}

#[workflow]
async fn weekly(day: &str, wf: &Wf) -> Result<String> {
    let _ = day;
    Ok(wf.tenant().to_owned())
}

fn main() {
    let _ = (checkout(String::new()), nightly(), weekly("monday"));
}
