use std::fs::{self, File};
use std::process::Command;

use runledger::{Result, Wf, workflow};

#[workflow]
async fn checkout(wf: &Wf) -> Result<usize> {
    let from = std::env::var("SHOP").unwrap_or_default();
    let read = fs::read_to_string(&from)?;
    fn inside(path: &str) -> std::io::Result<File> {
        File::open(path)
    }
    inside(&read)?;
    std::process::Command::new("true").status()?;
    let _of_the_shop = Command::new("a name that may be anything");
    println!("{}", wf.tenant());
    Ok(read.len())
}

fn main() {
    let _ = checkout();
}
