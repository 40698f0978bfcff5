//! A user's program: a workflow of three steps, the last of which is transactional, and a worker
//! that stops after the run.
//!
//! `shipped hold` never returns from the body of the second step, so that the test can kill it
//! there.

use runledger::prelude::*;

/// Whether the second step waits to be killed.
struct Hold(bool);

#[job]
async fn first() -> Result<i64> {
    say("first");
    Ok(1)
}

#[job]
async fn second(n: i64, #[inject] hold: &Hold) -> Result<i64> {
    say("second");
    if hold.0 {
        std::future::pending::<()>().await;
    }
    Ok(n + 1)
}

#[job]
async fn book(n: i64, #[inject] tx: &mut Tx) -> Result<i64> {
    say("book");
    sqlx::query("insert into public.booking values ($1)").bind(n).execute(&mut **tx).await?;
    Ok(n + 1)
}

#[workflow]
async fn three_steps(wf: &Wf) -> Result<i64> {
    let n = wf.run(first()).await?;
    let n = wf.run(second(n)).await?;
    Ok(wf.run(book(n)).await?)
}

#[tokio::main]
async fn main() -> Result<()> {
    let db = Db::from_env().await?;
    let hold = Hold(std::env::args().any(|argument| argument == "hold"));
    // A process of the same name takes over its runs at once.
    let worker = App::new(db.clone()).name("shipped").provide(hold).start().await?;
    let run = three_steps().idempotency_key("once").enqueue(&db).await?;
    say(&format!("result {}", run.with_db(&db).result().await?));
    worker.stop().await;
    Ok(())
}

#[expect(clippy::print_stdout, reason = "the test reads what the program does")]
fn say(line: &str) {
    println!("{line}");
}
