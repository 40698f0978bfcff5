use runledger::{Error, Result, Wf, workflow};

#[workflow]
async fn checkout(wf: &Wf) -> Result<u64> {
    let mut total = 0;
    wf.step("add", || async {
        total += 1;
        Ok::<(), Error>(())
    })
    .await?;
    Ok(total)
}

fn main() {}
