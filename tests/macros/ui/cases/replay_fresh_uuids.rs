use runledger::{Result, Wf, job, workflow};

struct Uuid;

impl Uuid {
    fn new_v4() -> String {
        String::new()
    }

    fn now_v7() -> String {
        String::new()
    }
}

#[job]
async fn charge(order: String) -> Result<()> {
    drop(order);
    Ok(())
}

#[workflow]
async fn checkout(wf: &Wf, order: Option<String>) -> Result<()> {
    let order = order.unwrap_or_else(Uuid::new_v4);
    wf.run(charge(order).key(&Uuid::now_v7())).await?;
    Ok(wf.step(&Uuid::new_v4(), || async { Ok::<_, runledger::Error>(drop(Uuid::new_v4())) }).await?)
}

fn main() {
    let _ = checkout(None);
}
