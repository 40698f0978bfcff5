//! Behaviours 16 and 17 for workflows of any shape: random programs of combinators, branches, waits and marks, cut off at random.

use std::future::Future;
use std::pin::Pin;
use std::time::{Duration, Instant, UNIX_EPOCH};

use futures::stream::FuturesUnordered;
use futures::{StreamExt, stream};
use runledger::prelude::*;
use runledger::{RunState, enqueue_all};
use runledger_tests::Fixture;

use crate::combinators::take_some_away;
use crate::rows::{LONG, random, scalar, worker};

/// What one part of a program has observed, in its order.
type Seen = Vec<u64>;
type Part<'a> = Pin<Box<dyn Future<Output = Result<Seen>> + Send + 'a>>;

/// A step whose input is all that its part has observed: had a replay observed something else, it would diverge. It says whose output it gives.
#[job(max_attempts = 1)]
async fn noted(tag: u64, seen: Vec<u64>) -> Result<(u64, u64)> {
    drop(seen);
    tokio::time::sleep(Duration::from_micros(random(4_000))).await;
    Ok((tag, random(1_000_000)))
}

fn mixed(state: u64) -> u64 {
    let state = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let state = (state ^ (state >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    state ^ (state >> 31)
}

/// The seed of the n-th part of a part.
fn part_of(seed: u64, n: u64) -> u64 {
    mixed(seed ^ mixed(n + 1))
}

/// A step, and that its output is its own.
async fn step(wf: &Wf, tag: u64, seen: &[u64]) -> Result<Seen> {
    let (whose, value) = wf.run(noted(tag, seen.to_vec())).await?;
    if whose != tag {
        return Err(Error::terminal(format!("the output of {whose} was given to {tag}")));
    }
    Ok(vec![value])
}

/// One part of a program. Its shape is that of its seed; what it starts rests on what it has observed.
fn part<'a>(wf: &'a Wf, seed: u64, depth: u32, seen: &'a [u64]) -> Part<'a> {
    Box::pin(async move {
        let inner = depth.saturating_sub(1);
        match if depth == 0 { seed % 4 } else { seed % 14 } {
            0..=2 => step(wf, seed, seen).await,
            3 => marks(wf, seed),
            4 | 5 => in_turn(wf, seed, inner, seen).await,
            6 => joined(wf, seed, inner, seen).await,
            7 => raced_parts(wf, seed, inner, seen).await,
            8 => unordered(wf, seed, inner, seen).await,
            9 => buffered(wf, seed, inner, seen).await,
            10 => mapped(wf, seed, seen).await,
            11 => raced_steps(wf, seed, seen).await,
            12 => waited(wf, seed).await,
            _ => looped(wf, seed, seen).await,
        }
    })
}

/// The time, a number and a change: they are what they were.
fn marks(wf: &Wf, seed: u64) -> Result<Seen> {
    let now = wf.now().duration_since(UNIX_EPOCH)?.as_micros();
    let patched = wf.patched(&format!("change-{}", seed % 3));
    Ok(vec![u64::try_from(now)?, wf.random() >> 1, u64::from(patched), wf.uuid().as_u64_pair().1 >> 1])
}

async fn in_turn(wf: &Wf, seed: u64, depth: u32, seen: &[u64]) -> Result<Seen> {
    let mut all = seen.to_vec();
    for n in 0..2 + seed % 2 {
        let more = part(wf, part_of(seed, n), depth, &all).await?;
        all.extend(more);
    }
    Ok(all[seen.len()..].to_vec())
}

async fn joined(wf: &Wf, seed: u64, depth: u32, seen: &[u64]) -> Result<Seen> {
    let (left, right) = (wf.branch("left"), wf.branch("right"));
    let (mut left, right) = tokio::try_join!(
        part(&left, part_of(seed, 0), depth, seen),
        part(&right, part_of(seed, 1), depth, seen)
    )?;
    left.extend(right);
    Ok(left)
}

/// The first part to end counts; which is polled first is random. Each begins with a step: one that is ready at once would end the race unheard.
async fn raced_parts(wf: &Wf, seed: u64, depth: u32, seen: &[u64]) -> Result<Seen> {
    let (left, right) = (wf.branch("left"), wf.branch("right"));
    tokio::select! {
        first = step_and_part(&left, part_of(seed, 0), depth, seen) => first,
        first = step_and_part(&right, part_of(seed, 1), depth, seen) => first,
    }
}

async fn step_and_part(wf: &Wf, seed: u64, depth: u32, seen: &[u64]) -> Result<Seen> {
    let first = step(wf, seed, seen).await?;
    part(wf, part_of(seed, 0), depth, &first).await
}

async fn unordered(wf: &Wf, seed: u64, depth: u32, seen: &[u64]) -> Result<Seen> {
    let branches: Vec<_> = (0..3).map(|_| wf.branch("any")).collect();
    let mut parts: FuturesUnordered<_> =
        (0..).zip(&branches).map(|(n, wf)| part(wf, part_of(seed, n), depth, seen)).collect();
    let mut all = Vec::new();
    while let Some(more) = parts.next().await {
        all.extend(more?);
    }
    Ok(all)
}

async fn buffered(wf: &Wf, seed: u64, depth: u32, seen: &[u64]) -> Result<Seen> {
    let branches: Vec<_> = (0..4).map(|_| wf.branch("two")).collect();
    let parts: Vec<_> = (0..).zip(&branches).map(|(n, wf)| part(wf, part_of(seed, n), depth, seen)).collect();
    let mut parts = stream::iter(parts).buffer_unordered(2);
    let mut all = Vec::new();
    while let Some(more) = parts.next().await {
        all.extend(more?);
    }
    Ok(all)
}

async fn mapped(wf: &Wf, seed: u64, seen: &[u64]) -> Result<Seen> {
    let tags: Vec<u64> = (0..5).map(|n| part_of(seed, n)).collect();
    let outputs = wf.map(&tags, |tag| noted(*tag, seen.to_vec()).key(tag.to_string())).limit(2).await?;
    if !outputs.iter().map(|(tag, _)| tag).eq(&tags) {
        return Err(Error::terminal("outputs of a map in another order than its items"));
    }
    Ok(outputs.into_iter().map(|(_, value)| value).collect())
}

async fn raced_steps(wf: &Wf, seed: u64, seen: &[u64]) -> Result<Seen> {
    let (place, (tag, value)) =
        wf.race((0..3).map(|n| wf.run(noted(part_of(seed, n), seen.to_vec())))).await?;
    if tag != part_of(seed, u64::try_from(place)?) {
        return Err(Error::terminal("the output of another step of a race"));
    }
    Ok(vec![u64::try_from(place)?, value])
}

async fn waited(wf: &Wf, seed: u64) -> Result<Seen> {
    let limit = Duration::from_millis(seed % 4);
    let signal: Option<u64> = wf.signal("never").timeout(limit).await?;
    wf.sleep(limit).await?;
    Ok(vec![signal.unwrap_or(seed)])
}

/// A loop that ends when it has seen enough.
async fn looped(wf: &Wf, seed: u64, seen: &[u64]) -> Result<Seen> {
    let mut all = seen.to_vec();
    while all.len() < seen.len() + 5 {
        let more = step(wf, part_of(seed, all.last().copied().unwrap_or(0)), &all).await?;
        let is_last = more[0].is_multiple_of(3);
        all.extend(more);
        if is_last {
            break;
        }
    }
    Ok(all[seen.len()..].to_vec())
}

#[workflow(name = "tangles.program")]
async fn program(wf: &Wf, seed: u64) -> Result<usize> {
    let seen = part(wf, seed, 3, &[]).await?;
    // What it has observed in all is the input of a last step.
    step(wf, seed, &seen).await?;
    Ok(seen.len())
}

/// How many programs are under way at a time.
const AT_ONCE: u64 = 250;

async fn programs_replay(n_programs: u64) {
    let Fixture { db, database: _database } = Fixture::new().await;
    let one = worker(&db, jobs![program, noted]).await;
    let two = worker(&db, jobs![program, noted]).await;
    let left = "select count(*) from runledger.run where run_id not in (select run_id from runledger.outcome)
                and run_id not in (select run_id from runledger.waiting where state = 'blocked')";
    let (mut n_losses, first) = (0, u64::from(std::process::id()) << 32);
    for from in (0..n_programs).step_by(usize::try_from(AT_ONCE).unwrap()) {
        let seeds = (from..n_programs.min(from + AT_ONCE)).map(|n| mixed(first + n));
        let runs = enqueue_all(seeds.clone().map(program), &db).await.unwrap();
        let began = Instant::now();
        while scalar::<i64>(&db, left).await > 0 {
            n_losses += take_some_away(&db).await;
            tokio::time::sleep(Duration::from_micros(random(6_000))).await;
            assert!(began.elapsed() < LONG * 3, "some program hangs");
        }
        for (seed, run) in seeds.zip(runs) {
            let info = db.run(run.run_id).await.unwrap();
            assert_eq!(
                info.state,
                RunState::Completed,
                "program {seed}: {:?} after {n_losses} losses",
                info.error
            );
        }
    }
    assert!(n_losses > n_programs / 4, "only {n_losses} attempts were interrupted");
    one.stop().await;
    two.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_random_program_of_combinators_observes_again_what_it_observed() {
    programs_replay(500).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "some minutes; CONTRIBUTING says how to run it"]
async fn five_thousand_random_programs_observe_again_what_they_observed() {
    programs_replay(5_000).await;
}
