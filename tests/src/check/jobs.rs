//! The jobs of the scenarios. Each body records its start and its end in the history. Many return
//! their fence token, so that the rows show which attempt wrote them.

use std::time::Duration;

use runledger::__private::Definition;
use runledger::prelude::*;
use runledger::{Graph, Timings};
use uuid::Uuid;

use super::place::{Place, What};
use super::shapes::check_adds;
use super::signals::heard;
use super::slices::SLICES;

/// All jobs and workflows of the scenarios.
#[must_use]
pub fn all() -> Vec<&'static Definition> {
    let jobs = jobs![
        check_gated,
        check_quick,
        check_steps,
        check_pausing,
        check_racing,
        check_parent,
        check_joining,
        check_summing,
        check_hopeless,
        check_refuses,
        check_turn,
        check_post,
        check_flaky,
        check_writes,
        check_stumbling,
        check_late,
        check_timer,
        check_signalled,
        check_continued,
        check_sliced,
        check_killer,
        check_canary,
        check_sum,
        check_adds,
        check_panicking,
        check_blocking
    ];
    jobs.to_vec()
}

/// An app that serves them.
pub fn app(db: &Db) -> App {
    App::new(db.clone()).with(all()).provide(db.clone()).timings(Timings::FAST)
}

/// Waits at the gate and returns its token.
#[job(name = "check.gated", queue = "checks", max_attempts = 1)]
pub async fn check_gated(place: Place, #[inject] context: &Context) -> Result<Uuid> {
    place.note(What::Start, context)?;
    place.gate().await;
    place.note(What::End, context)?;
    Ok(context.fence_token())
}

/// Returns its token at once.
#[job(name = "check.quick", queue = "checks")]
pub async fn check_quick(place: Place, #[inject] context: &Context) -> Result<Uuid> {
    place.note(What::Start, context)?;
    place.note(What::End, context)?;
    Ok(context.fence_token())
}

/// A node of graphs. Returns the sum of its inputs.
#[job(name = "check.sum", queue = "checks", max_attempts = 2, backoff = "10ms..10ms")]
pub async fn check_sum(parts: Vec<u64>) -> Result<u64> {
    Ok(parts.iter().sum())
}

/// Runs a quick step, a step that waits at the gate, and another quick step. Returns the token of
/// the second one.
#[workflow(name = "check.steps", queue = "checks", max_attempts = 1)]
pub async fn check_steps(wf: &Wf, place: Place) -> Result<Uuid> {
    wf.run(check_quick(place.clone()).key("before")).await?;
    let token = wf.run(check_gated(place.clone())).await?;
    wf.run(check_quick(place).key("after")).await?;
    Ok(token)
}

/// Runs a step, waits at the gate outside any step, and runs another step. A pause at the gate is a
/// pause just before a body.
#[workflow(name = "check.pausing", queue = "checks", max_attempts = 1)]
pub async fn check_pausing(wf: &Wf, place: Place) -> Result<Uuid> {
    wf.run(check_quick(place.clone()).key("before")).await?;
    place.gate().await;
    Ok(wf.run(check_quick(place).key("after")).await?)
}

/// Branches on which of two steps ends first, then waits at the gate. A replay must take the same
/// branch.
#[workflow(name = "check.racing", queue = "checks", max_attempts = 1)]
pub async fn check_racing(wf: &Wf, place: Place) -> Result<String> {
    let slow = wf.step("slow", || async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        Ok::<_, Error>("slow".to_owned())
    });
    let fast = wf.step("fast", || async { Ok::<_, Error>("fast".to_owned()) });
    tokio::pin!(slow, fast);
    let winner = tokio::select! {
        biased;
        winner = &mut slow => winner?,
        winner = &mut fast => winner?,
    };
    let branch = wf.run(check_quick(place.clone()).key(&winner)).await;
    branch?;
    // If the slow step won (both were recorded at once), it has already returned.
    if winner == "fast" {
        slow.await?;
    }
    wf.run(check_gated(place)).await?;
    Ok(winner)
}

/// Starts a child and waits for it.
#[workflow(name = "check.parent", queue = "checks", max_attempts = 1)]
pub async fn check_parent(wf: &Wf, place: Place) -> Result<Uuid> {
    let child = wf.start(check_gated(place)).await?;
    Ok(child.result().await?)
}

/// Starts three children, waits for the last of them, and returns their tokens.
#[workflow(name = "check.joining", queue = "checks", max_attempts = 1)]
pub async fn check_joining(wf: &Wf, place: Place) -> Result<Vec<Uuid>> {
    Ok(wf.map(0..3_u32, |turn| check_turn(place.clone(), turn)).as_child_runs().await?)
}

/// Starts a graph that sums the numbers from 1 to 4, and waits for it.
#[workflow(name = "check.summing", queue = "checks", max_attempts = 1)]
pub async fn check_summing(wf: &Wf) -> Result<u64> {
    let mut graph = Graph::new("check.sums");
    let few = graph.call(check_sum(vec![1, 2]).key("few"));
    let more = graph.call(check_sum(vec![3, 4]).key("more"));
    let all = graph.then(check_sum, (vec![few, more],));
    Ok(wf.start_graph(graph.result(all)).await?.result().await?)
}

/// Starts a graph that fails, and fails with it.
#[workflow(name = "check.hopeless", queue = "checks", max_attempts = 1)]
pub async fn check_hopeless(wf: &Wf) -> Result<u64> {
    let mut graph = Graph::new("check.hopes");
    let refused = graph.call(check_refuses());
    Ok(wf.start_graph(graph.result(refused)).await?.result().await?)
}

/// Always fails.
#[job(name = "check.refuses", queue = "checks", max_attempts = 1)]
pub async fn check_refuses() -> Result<u64> {
    Err(Error::terminal("on purpose"))
}

/// Waits at the gate of its turn and returns its token.
#[job(name = "check.turn", queue = "checks", max_attempts = 1)]
pub async fn check_turn(place: Place, turn: u32, #[inject] context: &Context) -> Result<Uuid> {
    place.note(What::Start, context)?;
    place.gate_of(&turn.to_string()).await;
    place.note(What::End, context)?;
    Ok(context.fence_token())
}

/// Inserts one row for its run, waits at the gate with the transaction open, and returns its token.
#[job(name = "check.post", queue = "checks", max_attempts = 1)]
pub async fn check_post(place: Place, #[inject] context: &Context, #[inject] tx: &mut Tx) -> Result<Uuid> {
    place.note(What::Start, context)?;
    sqlx::query("insert into audit.ledger (run_id, key, token) values ($1, $2, $3)")
        .bind(context.run_id())
        .bind(context.step_key().unwrap_or_default())
        .bind(context.fence_token())
        .execute(&mut **tx)
        .await?;
    place.gate().await;
    place.note(What::End, context)?;
    Ok(context.fence_token())
}

/// Waits at the gate, fails once, then completes. It needs exactly two attempts.
#[job(name = "check.flaky", queue = "checks", max_attempts = 2, backoff = "10ms..10ms")]
pub async fn check_flaky(place: Place, #[inject] context: &Context) -> Result<u32> {
    place.note(What::Start, context)?;
    place.gate().await;
    place.note(What::End, context)?;
    if context.attempt() == 1 {
        return Err("the first attempt fails".into());
    }
    Ok(context.attempt())
}

/// Performs every write of an attempt: a step, a transactional step, a step that fails once, a
/// child, and a sleep.
#[workflow(name = "check.writes", queue = "checks", max_attempts = 1)]
pub async fn check_writes(wf: &Wf, place: Place) -> Result<Uuid> {
    wf.run(check_quick(place.clone()).key("first")).await?;
    wf.run(check_post(place.clone())).await?;
    wf.run(check_stumbling(place.clone())).await?;
    let child = wf.start(check_late(place.clone())).await?;
    child.result().await?;
    wf.sleep(Duration::from_millis(350)).await?;
    Ok(wf.run(check_quick(place).key("last")).await?)
}

/// Fails in its first attempt.
#[job(name = "check.stumbling", queue = "checks", max_attempts = 2, backoff = "10ms..10ms")]
pub async fn check_stumbling(place: Place, #[inject] context: &Context) -> Result<Uuid> {
    place.note(What::Start, context)?;
    context.progress(&context.attempt()).await?;
    context.emit(&context.attempt()).await?;
    place.note(What::End, context)?;
    if context.attempt() == 1 {
        return Err("the first try fails".into());
    }
    Ok(context.fence_token())
}

/// Ends only once its parent waits for it.
#[job(name = "check.late", queue = "checks", max_attempts = 1)]
pub async fn check_late(place: Place, #[inject] context: &Context, #[inject] db: &Db) -> Result<()> {
    place.note(What::Start, context)?;
    let waits = "select exists (select from runledger.run join runledger.waiting on waiting.run_id = parent_id where run.run_id = $1)";
    while !sqlx::query_scalar(waits).bind(context.run_id()).fetch_one(db.pool()).await? {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    place.note(What::End, context)?;
    Ok(())
}

/// Waits 2 s at most for a child at its gate. Returns whether the child came first.
#[workflow(name = "check.timer", queue = "checks", max_attempts = 1)]
pub async fn check_timer(wf: &Wf, place: Place) -> Result<bool> {
    let child = wf.start(check_gated(place)).await?;
    let (result, late) = (child.result(), wf.sleep(Duration::from_secs(2)));
    tokio::pin!(result, late);
    Ok(tokio::select! {
        biased;
        _ = &mut result => true,
        _ = &mut late => false,
    })
}

/// Receives three signals and runs a step for each. Drops some of its waits.
#[workflow(name = "check.signalled", queue = "checks", max_attempts = 1)]
pub async fn check_signalled(wf: &Wf, place: Place) -> Result<Vec<u32>> {
    let mut values = Vec::new();
    for _ in 0..3 {
        let value = loop {
            tokio::select! {
                value = wf.signal("value") => break value?,
                slept = wf.sleep(Duration::from_millis(400)) => slept?,
            }
        };
        wf.run(check_quick(place.clone()).key(heard("value", value))).await?;
        values.push(value);
    }
    Ok(values)
}

/// Has [`SLICES`] slices. Each runs a step with the number of the slice.
#[workflow(name = "check.continued", queue = "checks", max_attempts = 1)]
pub async fn check_continued(wf: &Wf, place: Place, slice: u32) -> Result<u32> {
    wf.run(check_quick(place.clone()).key(slice)).await?;
    if slice + 1 == SLICES {
        return Ok(slice);
    }
    wf.continue_as_new(check_continued(place, slice + 1)).await
}

/// Has [`SLICES`] slices. Returns the token of each, which it records as its progress. A slice that
/// has noted its end must not be lost.
#[job(name = "check.sliced", queue = "checks", max_attempts = 1)]
pub async fn check_sliced(place: Place, #[inject] context: &Context) -> Result<Vec<Uuid>> {
    let mut done: Vec<Uuid> = context.last_progress().await?.unwrap_or_default();
    place.note(What::Start, context)?;
    done.push(context.fence_token());
    context.progress(&done).await?;
    place.note(What::End, context)?;
    // A slice whose end was not noted counts too.
    if done.len() >= usize::try_from(SLICES)? {
        return Ok(done);
    }
    context.continue_later(Duration::from_millis(30)).await
}

/// Aborts its process.
#[job(name = "check.killer", queue = "checks", max_attempts = 1)]
pub async fn check_killer(place: Place, #[inject] context: &Context) -> Result<()> {
    place.note(What::Start, context)?;
    std::process::abort()
}

/// Logs a line and ends at once.
#[job(name = "check.canary", queue = "checks")]
pub async fn check_canary() -> Result<()> {
    tracing::info!("chirps");
    Ok(())
}

/// Panics in every attempt.
#[job(name = "check.panicking", queue = "checks", max_attempts = 2, backoff = "10ms..10ms")]
#[expect(clippy::panic, reason = "what a hostile body does")]
pub async fn check_panicking() -> Result<()> {
    panic!("on purpose")
}

/// Blocks the thread that polls it.
#[job(name = "check.blocking", queue = "checks", max_attempts = 1)]
pub async fn check_blocking(millis: u64) -> Result<()> {
    std::thread::sleep(Duration::from_millis(millis));
    Ok(())
}
