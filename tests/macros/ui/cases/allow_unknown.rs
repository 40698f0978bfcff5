use std::time::SystemTime;

use runledger::{Result, Wf, workflow};

#[workflow(allow(wall_clok))]
async fn of_a_slip(wf: &Wf) -> Result<bool> {
    Ok(SystemTime::now().elapsed().is_ok() && wf.tenant().is_empty())
}

#[workflow(allow(everything, network))]
async fn of_another_word(wf: &Wf) -> Result<bool> {
    Ok(wf.tenant().is_empty())
}

fn main() {}
