//! The jobs of a fleet: the bodies of the checks, combined into longer workflows.

use std::time::Duration;

use runledger::__private::Definition;
use runledger::prelude::*;
use runledger::{Graph, Outcome};
use runledger_tests::check::jobs::{check_canary, check_post, check_quick, check_stumbling, check_sum};
use runledger_tests::check::place::{Place, What};
use runledger_tests::check::signals::heard;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// A body of this length must be stopped by the client. Without that it ends within the tail of a
/// scenario, too late to count as stopped.
pub const ENDLESS: Duration = Duration::from_secs(40);

/// Returns every job that a worker serves, including the jobs of the checks.
#[must_use]
pub fn all() -> Vec<&'static Definition> {
    let mut all = runledger_tests::check::jobs::all();
    all.extend(jobs![chaos_slow, chaos_ten, chaos_posting, chaos_family, chaos_stumbling, chaos_poison]);
    all.extend(jobs![chaos_hearing, chaos_mendable, chaos_mended, chaos_journey, chaos_undo, chaos_fan]);
    all.extend(jobs![chaos_moving, chaos_moved, chaos_refuses, chaos_after_all]);
    all
}

/// Sleeps for `millis`, and returns its fence token.
#[job(name = "chaos.slow", queue = "checks")]
pub async fn chaos_slow(place: Place, millis: u64, #[inject] context: &Context) -> Result<Uuid> {
    place.note(What::Start, context)?;
    tokio::time::sleep(Duration::from_millis(millis)).await;
    place.note(What::End, context)?;
    Ok(context.fence_token())
}

/// A workflow of one step, version 1.
#[workflow(name = "chaos.moving", queue = "checks", max_attempts = 1)]
pub async fn chaos_moving(wf: &Wf, place: Place) -> Result<Uuid> {
    Ok(wf.run(check_quick(place)).await?)
}

/// The same workflow, version 2.
#[workflow(name = "chaos.moving", version = 2, queue = "checks", max_attempts = 1)]
pub async fn chaos_moved(wf: &Wf, place: Place) -> Result<Uuid> {
    Ok(wf.run(check_quick(place)).await?)
}

/// How many lines [`chaos_ten`] emits.
pub const LINES: usize = 10;

/// Ten steps, the fifth of which takes 400 ms. Emits a line after each.
#[workflow(name = "chaos.ten", queue = "checks", max_attempts = 1)]
pub async fn chaos_ten(wf: &Wf, place: Place) -> Result<Uuid> {
    for n in 1..5 {
        wf.run(check_quick(place.clone()).key(n)).await?;
        wf.emit(&n);
    }
    wf.run(chaos_slow(place.clone(), 400)).await?;
    wf.emit(&5);
    for n in 6..10 {
        wf.run(check_quick(place.clone()).key(n)).await?;
        wf.emit(&n);
    }
    let token = wf.run(check_quick(place).key(10)).await?;
    wf.emit(&10);
    Ok(token)
}

/// A transactional step between two others, and a transaction that inserts an application row and
/// enqueues a run with the row's id as key.
#[workflow(name = "chaos.posting", queue = "checks", max_attempts = 1)]
pub async fn chaos_posting(wf: &Wf, place: Place, sale: Uuid) -> Result<Uuid> {
    wf.run(check_quick(place.clone()).key("before")).await?;
    wf.run(check_post(place.clone())).await?;
    let sold = wf.tx("sell", |mut tx| async move {
        sqlx::query("insert into audit.business values ($1)").bind(sale).execute(&mut *tx).await?;
        check_canary().tenant("torn").idempotency_key(sale.to_string()).enqueue(&mut *tx).await?;
        Ok::<_, Error>(())
    });
    sold.await?;
    Ok(wf.run(check_quick(place).key("after")).await?)
}

/// The gate of [`graph`].
pub const GATE: &str = "gate";

/// The name of a node that must fail. The name of its dependent begins with this word too.
pub const HOPELESS: &str = "hopeless";

/// A node that fails.
#[job(name = "chaos.refuses", queue = "checks", max_attempts = 1)]
pub async fn chaos_refuses() -> Result<u64> {
    Err(Error::terminal("it was to fail"))
}

/// Accepts any outcome of another node, and returns its second argument.
#[job(name = "chaos.after-all", queue = "checks", max_attempts = 2)]
pub async fn chaos_after_all(end: Outcome<u64>, sum: u64) -> Result<u64> {
    match end {
        Outcome::Cancelled(_) => Ok(sum),
        other => Err(Error::terminal(format!("what needs a node that fails was not cancelled: {other:?}"))),
    }
}

/// A graph of parallel chains whose nodes end at once, a gate, a slow node, and a node that fails.
pub fn graph(place: &Place, millis: u64) -> Graph<u64> {
    let mut graph = Graph::new("chaos.graph");
    let quick = graph.call(check_quick(place.clone()));
    let slow = graph.call(chaos_slow(place.clone(), millis % 300));
    let chains: Vec<_> = (0..6)
        .map(|n| {
            let first = graph.call(check_sum(vec![n]).key(n));
            let second = graph.then(check_sum, (vec![first, first],));
            graph.after(second, quick);
            second
        })
        .collect();
    let gate = graph.gate::<u64>(GATE);
    let joined = graph.then(check_sum, (chains,));
    let sum = graph.then(check_sum, (vec![joined, gate],));
    graph.after(sum, slow);
    let fails = graph.call(chaos_refuses());
    graph.configure(fails).name(HOPELESS);
    let never = graph.then(check_sum, (vec![fails, sum],));
    graph.configure(never).name(format!("{HOPELESS}-too"));
    let end = graph.then(chaos_after_all, (never.on_any_outcome(), sum));
    graph.result(end)
}

/// Starts a child, sleeps, and awaits the child.
#[workflow(name = "chaos.family", queue = "checks", max_attempts = 1)]
pub async fn chaos_family(wf: &Wf, place: Place, millis: u64) -> Result<Uuid> {
    let child = wf.start(chaos_slow(place.clone(), millis)).await?;
    wf.sleep(Duration::from_millis(millis)).await?;
    wf.run(check_quick(place)).await?;
    Ok(child.result().await?)
}

/// A step whose first attempt fails.
#[workflow(name = "chaos.stumbling", queue = "checks", max_attempts = 1)]
pub async fn chaos_stumbling(wf: &Wf, place: Place) -> Result<Uuid> {
    Ok(wf.run(check_stumbling(place)).await?)
}

/// Receives `n` signals of each of two names concurrently, with a step per signal. Also waits for a
/// signal that nobody sends, long enough to leave the worker.
#[workflow(name = "chaos.hearing", queue = "checks", max_attempts = 1)]
pub async fn chaos_hearing(wf: &Wf, place: Place, n: u32) -> Result<bool> {
    let [left, right] = ["left", "right"].map(|name| (wf.branch(name), name));
    tokio::try_join!(hear(&left.0, &place, left.1, n), hear(&right.0, &place, right.1, n))?;
    Ok(wf.signal::<u32>("neither").timeout(Duration::from_secs(1)).await?.is_none())
}

async fn hear(wf: &Wf, place: &Place, name: &str, n: u32) -> Result<()> {
    for _ in 0..n {
        let value = wf.signal(name).await?;
        wf.run(check_quick(place.clone()).key(heard(name, value))).await?;
    }
    Ok(())
}

/// A step, and a step that fails until its cause is fixed.
#[workflow(name = "chaos.mendable", queue = "checks", max_attempts = 1)]
pub async fn chaos_mendable(wf: &Wf, place: Place) -> Result<Uuid> {
    wf.run(check_quick(place.clone()).key("before")).await?;
    Ok(wf.run(chaos_mended(place)).await?)
}

/// Fails until its cause is fixed.
#[job(name = "chaos.mended", queue = "checks", max_attempts = 1)]
pub async fn chaos_mended(place: Place, #[inject] context: &Context) -> Result<Uuid> {
    place.note(What::Start, context)?;
    place.note(What::End, context)?;
    if place.is_mended() { Ok(context.fence_token()) } else { Err("the cause is not mended".into()) }
}

/// How a journey ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Journey {
    /// It completes without compensation.
    Arrives,
    /// Its own code compensates every step.
    TurnsBack,
    /// It fails.
    Fails,
    /// It fails, and one compensation fails until its cause is fixed.
    Strands,
    /// It sleeps longer than any client waits.
    Waits,
}

/// Three steps with compensations. Publishes the number of each.
#[workflow(name = "chaos.journey", queue = "checks", max_attempts = 1)]
pub async fn chaos_journey(wf: &Wf, place: Place, journey: Journey) -> Result<u32> {
    let (saga, strands) = (wf.saga(), journey == Journey::Strands);
    for leg in 1..=3_u32 {
        saga.run(check_quick(place.clone()).key(leg), |_| chaos_undo(place.clone(), strands && leg == 2))
            .await?;
        wf.publish("leg", &leg).await?;
    }
    match journey {
        Journey::Arrives => {}
        Journey::TurnsBack => saga.compensate().await,
        Journey::Fails | Journey::Strands => return Err("there is no way".into()),
        Journey::Waits => wf.sleep(ENDLESS).await?,
    }
    Ok(3)
}

/// Compensates one step of a journey.
#[job(name = "chaos.undo", queue = "checks", max_attempts = 1)]
pub async fn chaos_undo(place: Place, strands: bool, #[inject] context: &Context) -> Result<()> {
    place.note(What::Start, context)?;
    if strands && !place.is_mended() {
        return Err("the cause is not mended".into());
    }
    Ok(place.note(What::End, context)?)
}

/// Parallel steps, parallel children, steps that race, and a key that only the recorded history
/// repeats.
#[workflow(name = "chaos.fan", queue = "checks", max_attempts = 1)]
pub async fn chaos_fan(wf: &Wf, place: Place) -> Result<Uuid> {
    wf.run(check_quick(place.clone()).key(wf.uuid())).await?;
    wf.map(1..=6, |n| check_quick(place.clone()).key(n)).limit(3).await?;
    wf.map(1..=3, |n| chaos_slow(place.clone(), 50 * n).key(n)).as_child_runs().await?;
    let steps = [chaos_slow(place.clone(), 300).key("slow"), chaos_slow(place.clone(), 20).key("fast")];
    wf.race(steps.map(|call| wf.run(call))).await?;
    Ok(wf.run(check_quick(place).key("last")).await?)
}

/// How a body ends its process.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum Poison {
    /// It exits with status 0.
    Exit,
    /// It recurses until the stack overflows.
    Overflow,
    /// It allocates until memory runs out.
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

/// Allocates 64 MiB repeatedly.
fn eat() -> u64 {
    let mut eaten: Vec<Vec<u8>> = Vec::new();
    loop {
        eaten.push(std::hint::black_box(Vec::with_capacity(1 << 26)));
    }
}
