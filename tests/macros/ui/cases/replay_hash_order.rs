use std::collections::{HashMap, HashSet};

use runledger::{Result, Wf, job, workflow};

#[job]
async fn pay(name: &str) -> Result<()> {
    drop(name.to_owned());
    Ok(())
}

#[workflow]
async fn payroll(wf: &Wf, wages: HashMap<String, u64>) -> Result<()> {
    for name in wages.keys() {
        wf.run(pay(name)).await?;
    }
    let names: HashSet<&String> = wages.keys().collect();
    for name in &names {
        wf.run(pay(name)).await?;
    }
    Ok(())
}

fn main() {
    let _ = payroll(HashMap::new());
}
