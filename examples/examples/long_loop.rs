//! An endless loop that reads a meter. The history of the run never grows beyond one slice, however
//! long the loop runs.
//!
//! `cargo example long_loop`
#![expect(clippy::print_stdout, reason = "the program's output is for the person who runs it")]

use runledger::prelude::*;

/// How many readings a slice has. A real loop would use some hundreds.
const SLICE: u32 = 25;

/// Reads the meter.
#[job]
async fn read(n: u32) -> Result<u64> {
    Ok(u64::from(n % 7))
}

/// Reads `left` more times, and publishes the sum so far.
#[workflow]
async fn meter(wf: &Wf, n: u32, left: u32, sum: u64) -> Result<u64> {
    let mut sum = sum;
    for i in n..n + left.min(SLICE) {
        sum += wf.run(read(i)).await?;
    }
    wf.publish("sum", &sum).await?;
    if left <= SLICE {
        return Ok(sum);
    }
    // Continues the same run with a fresh history. No code follows this call.
    wf.continue_as_new(meter(n + SLICE, left - SLICE, sum)).await
}

/// Does the same in a job: it ends a slice, and reads its position from its progress.
#[job]
async fn counter(to: u64, #[inject] context: &Context) -> Result<u64> {
    let done = context.last_progress::<u64>().await?.unwrap_or(0) + u64::from(SLICE);
    if done >= to {
        return Ok(to);
    }
    context.progress(&done).await?;
    context.continue_later(std::time::Duration::ZERO).await
}

#[tokio::main]
async fn main() -> Result<()> {
    if runledger_examples::helped(
        "usage: cargo example long_loop\n\nA loop without end: a meter that is read again and again. The record of the run stays as long as one slice, however long it runs.",
    ) {
        return Ok(());
    }
    let db = Db::from_env().await?;
    let worker = App::new(db.clone()).start().await?;
    let run = meter(0, 1_000, 0).enqueue(&db).await?;
    println!("sum of 1000 readings: {}", run.result().await?);
    println!("published last: {:?}", run.query::<u64>("sum").await?);
    println!("steps on record: {}", run.steps().await?.len());
    println!("counted to {}", counter(200).enqueue(&db).await?.result().await?);
    worker.stop().await;
    Ok(())
}

/// Runs the example with a crash at every write:
/// `cargo test -p runledger-examples --bin long_loop -- --ignored`.
#[cfg(test)]
mod tests {
    use runledger::testing::Testing;

    use super::*;

    #[tokio::test]
    #[ignore = "slow: `cargo exhaustive`"]
    async fn long_loops_read_and_count_to_end_despite_crashes() -> Result<()> {
        let test = Testing::new().await?;
        let readings = SLICE + 3;
        let sum: u64 = (0..readings).map(|n| u64::from(n % 7)).sum();
        let crashes = test
            .crash_everywhere(meter(0, readings, 0))
            .invariant(move |end| async move {
                assert_eq!(*end.result()?, sum);
                let published = RunHandle::attach(meter, end.db(), end.run_id()).query::<u64>("sum").await?;
                assert_eq!(published, Some(sum));
                Ok(())
            })
            .await?;
        assert!(crashes.n_crashes() > 10, "{crashes}");
        let crashes = test.crash_everywhere(counter(u64::from(SLICE) * 3)).await?;
        assert!(crashes.n_crashes() > 5, "{crashes}");
        Ok(())
    }
}
