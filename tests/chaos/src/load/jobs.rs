//! What the fleet is asked to do. The bodies are those of the checks, put together to longer workflows.

use std::time::Duration;

use runledger::__private::Definition;
use runledger::prelude::*;
use runledger_tests::check::jobs::{check_post, check_quick};
use runledger_tests::check::place::{Place, What};
use uuid::Uuid;

/// Everything that a worker serves: the jobs of the checks too.
#[must_use]
pub fn all() -> Vec<&'static Definition> {
    let mut all = runledger_tests::check::jobs::all();
    all.extend(jobs![chaos_slow, chaos_ten, chaos_posting, chaos_family]);
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
