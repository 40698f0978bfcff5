//! An approval: a workflow waits for a person's decision until a deadline, without using a worker
//! while it waits.
//!
//! `cargo example approval`
#![expect(clippy::print_stdout, reason = "the program's output is for the person who runs it")]

use std::time::Duration;

use runledger::prelude::*;
use serde::{Deserialize, Serialize};

#[derive(Debug, Serialize, Deserialize)]
struct Decision {
    by: String,
    approved: bool,
}

/// Pays an expense. A real one would call a bank with `context.idempotency_key()`.
#[job]
async fn pay(employee: &str, cents: i64) -> Result<String> {
    Ok(format!("{cents} cents paid to {employee}"))
}

/// Pays small expenses at once. For a large expense, the run is suspended until a decision arrives,
/// and uses no worker.
#[workflow]
async fn expense(wf: &Wf, employee: String, cents: i64, patience_ms: u64) -> Result<String> {
    if cents > 10_000 {
        let limit = Duration::from_millis(patience_ms);
        let decision: Option<Decision> = wf.signal("decision").timeout(limit).await?;
        match decision {
            Some(decision) if decision.approved => {}
            Some(decision) => return Ok(format!("{} said no", decision.by)),
            None => return Ok("nobody answered in time".to_owned()),
        }
    }
    Ok(wf.run(pay(&employee, cents)).await?)
}

#[tokio::main]
async fn main() -> Result<()> {
    if runledger_examples::helped(
        "usage: cargo example approval\n\nAn approval: a workflow waits for a person, for as long as it takes and no longer than it may, without holding a worker.",
    ) {
        return Ok(());
    }
    let db = Db::from_env().await?;
    let worker = App::new(db.clone()).start().await?;
    const HOUR: u64 = 3_600_000;

    let small = expense("ada".to_owned(), 900, HOUR).enqueue(&db).await?;
    println!("small: {}", small.result().await?);

    for (name, approved) in [("large", true), ("refused", false)] {
        let run = expense("bob".to_owned(), 50_000, HOUR).enqueue(&db).await?;
        // The decision may arrive before the run waits for it. Its idempotency key makes a second
        // click have no effect.
        for _ in 0..2 {
            let decision = Decision { by: "carol".to_owned(), approved };
            run.signal("decision", &decision).idempotency_key("carol").await?;
        }
        println!("{name}: {}", run.result().await?);
    }

    let late = expense("bob".to_owned(), 70_000, 400).enqueue(&db).await?;
    println!("late: {}", late.result().await?);
    let refused = late.signal("decision", &true).await.map_err(Error::from);
    println!("afterwards: {}", refused.err().map_or_else(String::new, |error| error.to_string()));
    worker.stop().await;
    Ok(())
}

/// Runs the example with a crash at every write:
/// `cargo test -p runledger-examples --bin approval -- --ignored`.
#[cfg(test)]
mod tests {
    use runledger::testing::Testing;

    use super::*;

    #[tokio::test]
    #[ignore = "slow: `cargo exhaustive`"]
    async fn expense_is_paid_only_if_approved_despite_crashes() -> Result<()> {
        for (approved, ends) in [(true, "50000 cents paid to bob"), (false, "carol said no")] {
            let decision = Decision { by: "carol".to_owned(), approved };
            let test = Testing::new().await?.signals([("decision", decision)]);
            let crashes = test
                .crash_everywhere(expense("bob".to_owned(), 50_000, 3_600_000))
                .invariant(move |end| async move {
                    assert_eq!(end.result()?, ends);
                    assert_eq!(end.calls(pay) > 0, approved);
                    Ok(())
                })
                .await?;
            assert!(crashes.n_crashes() > 5, "{crashes}");
        }
        Ok(())
    }
}
