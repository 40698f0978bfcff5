use std::time::SystemTime;

use runledger::{Error, Result, Wf, workflow};

#[workflow(allow(wall_clock, io, wall_clock))]
async fn checkout(wf: &Wf) -> Result<()> {
    let began = SystemTime::now();
    wf.step("read", || async { Ok::<_, Error>(std::fs::read("order").is_ok()) }).await?;
    println!("{began:?}");
    Ok(())
}

fn main() {
    let _ = checkout();
}
