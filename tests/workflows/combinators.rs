//! Behaviours 16 and 17 for every combinator: a replay observes the same values, wherever attempts
//! end.

use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use runledger::prelude::*;
use runledger::{RunState, Step, enqueue_all};
use runledger_tests::Fixture;
use runledger_tests::rows::{random, scalar, soon, take_some_away, worker};

/// A step whose input is everything that the workflow has observed. If a replay observed something
/// else, the run would diverge.
#[job(max_attempts = 1)]
async fn tangled(observed: Vec<u32>) -> Result<u32> {
    drop(observed);
    tokio::time::sleep(Duration::from_micros(random(25_000))).await;
    Ok(u32::try_from(random(1_000_000))?)
}

fn next<'wf>(wf: &'wf Wf, observed: &[u32]) -> Step<'wf, u32> {
    wf.run(tangled(observed.to_vec()))
}

/// The first output decides which step starts next.
async fn unordered(wf: &Wf, observed: &mut Vec<u32>) -> Result<()> {
    let mut steps: FuturesUnordered<_> = (0..4).map(|_| next(wf, observed)).collect();
    let mut more = 3;
    while let Some(output) = steps.next().await {
        observed.push(output?);
        if more > 0 {
            more -= 1;
            steps.push(next(wf, observed));
        }
    }
    Ok(())
}

/// The loser is dropped, whether it was recorded or not.
async fn raced(wf: &Wf, observed: &mut Vec<u32>) -> Result<()> {
    let (one, other) = (next(wf, observed), next(wf, observed));
    let first = tokio::select! {
        output = one => output?,
        output = other => output?,
    };
    observed.push(first);
    observed.push(next(wf, observed).await?);
    Ok(())
}

/// The branches proceed independently.
async fn joined(wf: &Wf, observed: &mut Vec<u32>) -> Result<()> {
    let branch = async || {
        let first = next(wf, observed).await?;
        let second = next(wf, &[first]).await?;
        Ok::<_, Error>(vec![first, second])
    };
    let (one, two, three) = tokio::join!(branch(), branch(), branch());
    observed.extend(one?.into_iter().chain(two?).chain(three?));
    Ok(())
}

/// A sleep that a step may beat.
async fn timed(wf: &Wf, observed: &mut Vec<u32>) -> Result<()> {
    let (step, sleep) = (next(wf, observed), wf.sleep(Duration::from_millis(2)));
    let output = tokio::select! {
        output = step => output?,
        slept = sleep => { slept?; 1 }
    };
    observed.push(output);
    Ok(())
}

#[workflow]
async fn tangle(wf: &Wf, shape: u64) -> Result<Vec<u32>> {
    let mut observed = Vec::new();
    for part in 0..4 {
        match (shape >> (2 * part)) & 3 {
            0 => unordered(wf, &mut observed).await?,
            1 => raced(wf, &mut observed).await?,
            2 => joined(wf, &mut observed).await?,
            _ => timed(wf, &mut observed).await?,
        }
    }
    observed.push(next(wf, &observed).await?);
    Ok(observed)
}

/// The number of ways to put four kinds into four places.
const N_RUNS: u64 = 256;

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: `cargo exhaustive`"]
async fn every_combinator_mix_replays_without_divergence_wherever_attempts_end() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let runs = enqueue_all((0..N_RUNS).map(tangle), &db).await.unwrap();
    let handles: Vec<_> = runs.iter().map(|run| RunHandle::attach(tangle, &db, run.run_id)).collect();
    let one = worker(&db, jobs![tangle, tangled]).await;
    let two = worker(&db, jobs![tangle, tangled]).await;
    let left = "select count(*) from runledger.run where run_id not in (select run_id from runledger.outcome)
                and run_id not in (select run_id from runledger.waiting where state = 'blocked')";
    let mut n_losses = 0_u64;
    while scalar::<i64>(&db, left).await > 0 {
        n_losses += take_some_away(&db).await;
        tokio::time::sleep(Duration::from_micros(random(3_000))).await;
    }
    for handle in &handles {
        let info = handle.info().await.unwrap();
        assert_eq!(info.state, RunState::Completed, "{:?} after {n_losses} losses", info.error);
        soon(handle.result()).await.unwrap();
    }
    assert!(n_losses > 100, "only {n_losses} attempts were interrupted");
    one.stop().await;
    two.stop().await;
}
