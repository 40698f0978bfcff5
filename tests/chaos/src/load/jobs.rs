//! What the fleet is asked to do. The bodies are those of the checks, put together to longer workflows.

use std::time::Duration;

use runledger::__private::Definition;
use runledger::prelude::*;
use runledger_tests::check::jobs::{check_post, check_quick, check_stumbling};
use runledger_tests::check::place::{Place, What};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// Everything that a worker serves: the jobs of the checks too.
#[must_use]
pub fn all() -> Vec<&'static Definition> {
    let mut all = runledger_tests::check::jobs::all();
    all.extend(jobs![chaos_slow, chaos_ten, chaos_posting, chaos_family, chaos_stumbling, chaos_poison]);
    all
}

/// Takes so many milliseconds, and gives its token.
#[job(name = "chaos.slow", queue = "checks")]
pub async fn chaos_slow(place: Place, millis: u64, #[inject] context: &Context) -> Result<Uuid> {
    place.note(What::Start, context)?;
    tokio::time::sleep(Duration::from_millis(millis)).await;
    place.note(What::End, context)?;
    Ok(context.fence_token())
}

/// Ten steps, of which the fifth takes a while.
#[workflow(name = "chaos.ten", queue = "checks", max_attempts = 1)]
pub async fn chaos_ten(wf: &Wf, place: Place) -> Result<Uuid> {
    for n in 1..5 {
        wf.run(check_quick(place.clone()).key(n)).await?;
    }
    wf.run(chaos_slow(place.clone(), 400)).await?;
    for n in 6..10 {
        wf.run(check_quick(place.clone()).key(n)).await?;
    }
    Ok(wf.run(check_quick(place).key(10)).await?)
}

/// A transactional step between two others.
#[workflow(name = "chaos.posting", queue = "checks", max_attempts = 1)]
pub async fn chaos_posting(wf: &Wf, place: Place) -> Result<Uuid> {
    wf.run(check_quick(place.clone()).key("before")).await?;
    wf.run(check_post(place.clone())).await?;
    Ok(wf.run(check_quick(place).key("after")).await?)
}

/// Starts a child, sleeps, and waits for the child.
#[workflow(name = "chaos.family", queue = "checks", max_attempts = 1)]
pub async fn chaos_family(wf: &Wf, place: Place, millis: u64) -> Result<Uuid> {
    let child = wf.start(chaos_slow(place.clone(), millis)).await?;
    wf.sleep(Duration::from_millis(millis)).await?;
    wf.run(check_quick(place)).await?;
    Ok(child.result().await?)
}

/// A step whose first try fails.
#[workflow(name = "chaos.stumbling", queue = "checks", max_attempts = 1)]
pub async fn chaos_stumbling(wf: &Wf, place: Place) -> Result<Uuid> {
    Ok(wf.run(check_stumbling(place)).await?)
}

/// How a body ends its process.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum Poison {
    /// It asks for its end, and says that all is well.
    Exit,
    /// It recurs until the stack is full.
    Overflow,
    /// It asks for memory until there is none.
    Hunger,
}

/// Ends its process.
#[job(name = "chaos.poison", queue = "checks", max_attempts = 1)]
pub async fn chaos_poison(poison: Poison) -> Result<u64> {
    match poison {
        Poison::Exit => std::process::exit(0),
        Poison::Overflow => Ok(descend(0)),
        Poison::Hunger => Ok(eat()),
    }
}

/// Each level needs a page of the stack.
fn descend(depth: u64) -> u64 {
    let page = std::hint::black_box([depth; 512]);
    if depth == u64::MAX { 0 } else { descend(depth + 1).wrapping_add(page[0]) }
}

/// Asks for 64 MiB again and again.
fn eat() -> u64 {
    let mut eaten: Vec<Vec<u8>> = Vec::new();
    loop {
        eaten.push(std::hint::black_box(Vec::with_capacity(1 << 26)));
    }
}
