use std::time::SystemTime;

use runledger::{Result, Wf, workflow};

struct Machine;

impl Machine {
    fn step<T>(&self, _name: &str, body: impl FnOnce() -> T) -> T {
        body()
    }
}

#[workflow]
async fn checkout(wf: &Wf) -> Result<u64> {
    use std::env::var as setting;
    use std::thread::sleep;

    let began = <SystemTime>::now();
    sleep(began.duration_since(SystemTime::UNIX_EPOCH)?);
    let machine = Machine;
    let shop = machine.step("shop", || std::fs::read("shop"))?;
    println!("{:?} {}", setting("SHOP"), wf.tenant());
    Ok(u64::from(std::process::id()) + shop.len() as u64)
}

fn main() {
    let _ = checkout();
}
