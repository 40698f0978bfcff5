//! Fan-out: one call per item of a list, with a limit on concurrent calls, as steps of one worker
//! or as runs on all workers.
//!
//! `cargo example fan_out`
#![expect(clippy::print_stdout, reason = "the program's output is for the person who runs it")]

use runledger::prelude::*;

/// Counts the words of a page. An empty page is an error.
#[job(max_attempts = 1)]
async fn count_words(page: &str) -> Result<usize> {
    if page.is_empty() {
        return Err("the page is empty".into());
    }
    Ok(page.split_whitespace().count())
}

/// Fails at the first error.
#[workflow]
async fn all_or_nothing(wf: &Wf, pages: Vec<String>) -> Result<usize> {
    let counts = wf.map(&pages, |page| count_words(page)).limit(8).await?;
    Ok(counts.iter().sum())
}

/// Skips unreadable pages. Each page is a separate run on any worker.
#[workflow]
async fn as_many_as_there_are(wf: &Wf, pages: Vec<String>) -> Result<(usize, usize)> {
    let outcomes = wf.map(&pages, |page| count_words(page)).as_child_runs().settle_all().await;
    let (counts, failures): (Vec<_>, Vec<_>) = outcomes.into_iter().partition(Result::is_ok);
    Ok((counts.into_iter().flatten().sum(), failures.len()))
}

/// Returns the first of two results, and drops the other call.
#[workflow]
async fn first_of_two(wf: &Wf, pages: Vec<String>) -> Result<usize> {
    let (_, count) = wf.race(pages.iter().map(|page| wf.run(count_words(page)))).await?;
    Ok(count)
}

#[tokio::main]
async fn main() -> Result<()> {
    if runledger_examples::helped(
        "usage: cargo example fan_out\n\nFan-out: one call for each item of a list, so many at a time, as steps of one worker or as runs that all workers share.",
    ) {
        return Ok(());
    }
    let db = Db::from_env().await?;
    let worker = App::new(db.clone()).start().await?;
    let pages: Vec<String> = (1..=40).map(|n| "word ".repeat(n)).collect();
    let with_an_empty_one = [&pages[..], &[String::new()]].concat();

    let words = all_or_nothing(pages.clone()).enqueue(&db).await?.result().await?;
    println!("all or nothing: {words} words");
    let refused = all_or_nothing(with_an_empty_one.clone()).enqueue(&db).await?.result().await;
    println!("with an empty page: {:?}", refused.map_err(Error::from).err());
    let run = as_many_as_there_are(with_an_empty_one).enqueue(&db).await?;
    let (words, n_failures) = run.result().await?;
    println!("as many as there are: {words} words, {n_failures} page without");
    let first = first_of_two(pages[..2].to_vec()).enqueue(&db).await?.result().await?;
    println!("first of two: {}", if first == 1 || first == 2 { "one of them" } else { "neither" });
    worker.stop().await;
    Ok(())
}

/// Runs the example with a crash at every write:
/// `cargo test -p runledger-examples --bin fan_out -- --ignored`.
#[cfg(test)]
mod tests {
    use runledger::testing::Testing;

    use super::*;

    #[tokio::test]
    #[ignore = "slow: `cargo exhaustive`"]
    async fn fan_outs_and_race_complete_despite_crashes() -> Result<()> {
        let test = Testing::new().await?;
        let pages: Vec<String> = (1..=3).map(|n| "word ".repeat(n)).collect();
        let crashes = test.crash_everywhere(all_or_nothing(pages.clone())).await?;
        assert!(crashes.n_crashes() > 10, "{crashes}");
        let with_an_empty_one = [&pages[..2], &[String::new()]].concat();
        let crashes = test.crash_everywhere(as_many_as_there_are(with_an_empty_one)).await?;
        assert!(crashes.n_crashes() > 10, "{crashes}");
        // The first result is random, but every replay receives the same one.
        let crashes = test
            .crash_everywhere(first_of_two(pages[..2].to_vec()))
            .invariant(|end| async move {
                assert!([1, 2].contains(end.result()?));
                Ok(())
            })
            .await?;
        assert!(crashes.n_crashes() > 5, "{crashes}");
        Ok(())
    }
}
