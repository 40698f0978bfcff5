//! The measurements, with the same code for every engine.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::Result;
use crate::engine::{Engine, Planned, Shape, Store};
use crate::figure::Kind;
use crate::server::Place;

/// Work before the measured time, so that connections and plans exist.
const WARM_RUNS: u64 = 50;
const WARM_GRAPHS: u64 = 2;

/// The pause between two polls of a graph's state. A measured time is too long by up to this pause.
const LOOK: Duration = Duration::from_millis(1);

/// The pause before a graph on an idle system. `REST` is longer than Runledger's worker needs to
/// become idle. `PHASES` varies the pause. Without it, each graph would arrive just after one of
/// upstream's polls, because the graph before it ended there.
const REST: Duration = Duration::from_millis(300);
const PHASES: Duration = Duration::from_millis(500);

/// How long the load of an idle worker is measured.
const IDLE: Duration = Duration::from_secs(4);

/// A graph on an idle system that runs longer counts as stuck. Upstream finds a job whose end was
/// lost after a lease of one minute.
const PATIENCE: Duration = Duration::from_secs(150);

/// After this time no further graph starts on an idle system. The outcome has the number of graphs.
const BUDGET: Duration = Duration::from_secs(80);

/// The time limit for graphs that were submitted together.
const LIMIT: Duration = Duration::from_secs(60);

/// The clients that submit untimed work.
const CLIENTS: u64 = 4;

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Outcome {
    #[serde(flatten)]
    pub values: BTreeMap<String, f64>,
    /// Latencies in milliseconds, in order of measurement.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waits_ms: Vec<f64>,
}

impl Outcome {
    fn with(mut self, name: &str, value: f64) -> Self {
        self.values.insert(name.to_owned(), rounded(value));
        self
    }
}

/// Rounds to three decimals: the rest is noise.
fn rounded(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

/// Measures one engine once.
pub async fn measure<E: Engine>(place: &mut Place, kind: Kind, amount: u64) -> Result<Outcome> {
    match kind {
        Kind::Alone(shape) => alone::<E>(place, shape, amount).await,
        Kind::Together(shape) => together::<E>(place, shape, amount).await,
        Kind::Enqueue(_) | Kind::Bulk(_) | Kind::Submit(_) => stored::<E>(place, kind, amount).await,
    }
}

/// Measures once how fast a system stores work.
pub async fn stored<S: Store>(place: &mut Place, kind: Kind, amount: u64) -> Result<Outcome> {
    match kind {
        Kind::Enqueue(clients) => enqueue::<S>(place, clients, amount).await,
        Kind::Bulk(batch) => bulk::<S>(place, batch, amount).await,
        Kind::Submit(shape) => submit::<S>(place, shape, amount).await,
        Kind::Alone(_) | Kind::Together(_) => Err("nobody does the work".into()),
    }
}

async fn enqueue<S: Store>(place: &mut Place, clients: u64, runs: u64) -> Result<Outcome> {
    let engine = Arc::new(S::open(&place.url).await?);
    let one = |engine: Arc<S>, n| async move { engine.enqueue(n).await };
    share(&engine, clients, WARM_RUNS, one).await?;
    let began = Instant::now();
    share(&engine, clients, runs, one).await?;
    let took = began.elapsed();
    place.expect("runs", S::RUNS, WARM_RUNS + runs).await?;
    Ok(rate(runs, took))
}

async fn bulk<S: Store>(place: &mut Place, batch: u64, runs: u64) -> Result<Outcome> {
    let engine = S::open(&place.url).await?;
    engine.enqueue_all(0..WARM_RUNS).await?;
    let began = Instant::now();
    for from in (0..runs).step_by(usize::try_from(batch)?) {
        engine.enqueue_all(from..(from + batch).min(runs)).await?;
    }
    let took = began.elapsed();
    place.expect("runs", S::RUNS, WARM_RUNS + runs).await?;
    Ok(rate(runs, took))
}

async fn submit<S: Store>(place: &mut Place, shape: Shape, graphs: u64) -> Result<Outcome> {
    let engine = S::open(&place.url).await?;
    let nodes = shape.nodes();
    for _ in 0..WARM_GRAPHS {
        engine.submit(&nodes).await?;
    }
    let began = Instant::now();
    for _ in 0..graphs {
        engine.submit(&nodes).await?;
    }
    let took = began.elapsed();
    place.expect("graphs", S::GRAPHS, WARM_GRAPHS + graphs).await?;
    Ok(rate(graphs, took))
}

/// Measures from the submit call until the database shows the graph as completed.
async fn alone<E: Engine>(place: &mut Place, shape: Shape, graphs: u64) -> Result<Outcome> {
    let engine = E::open(&place.url).await?;
    let worker = engine.work().await?;
    let nodes = shape.nodes();
    let began = Instant::now();
    for n in 0..WARM_GRAPHS {
        pause(n).await;
        one::<E>(place, &engine, &nodes).await?;
        if began.elapsed() > BUDGET {
            break;
        }
    }
    pause(WARM_GRAPHS).await;
    let idle = place.mark().await?;
    sleep(IDLE).await;
    let idle = place.since(&idle).await?;
    let idle_rate = idle.statements / idle.seconds;

    let mut waits_ms = Vec::new();
    let mark = place.mark().await?;
    let began = Instant::now();
    for n in 0..graphs {
        pause(n).await;
        waits_ms.push(rounded(one::<E>(place, &engine, &nodes).await?.as_secs_f64() * 1e3));
        if began.elapsed() > BUDGET {
            break;
        }
    }
    // Includes the work that the last graph leaves, as for the graphs before it.
    pause(graphs).await;
    let costs = place.since(&mark).await?;
    E::stop(worker).await?;
    drop(engine);
    let deadlocks = place.deadlocks().await?;
    let measured = waits_ms.len() as f64;
    let each = |total: f64| total / measured;
    let outcome = Outcome { waits_ms, ..Outcome::default() };
    Ok(outcome
        .with("deadlocks", deadlocks as f64)
        .with("statements", each(costs.statements - idle_rate * costs.seconds).max(0.0))
        .with("statements_with_idle", each(costs.statements))
        .with("idle_statements_per_second", idle_rate)
        .with("commits", each(costs.commits))
        .with("wal_bytes", each(costs.wal))
        .with("image_bytes", each(costs.images)))
}

async fn one<E: Engine>(place: &mut Place, engine: &E, nodes: &[Planned]) -> Result<Duration> {
    let began = Instant::now();
    let graph = engine.submit(nodes).await?;
    loop {
        let asked = began.elapsed();
        match place.ended(&E::TABLES, graph).await? {
            Some(true) => return Ok(asked),
            Some(false) => return Err("a graph ended and did not complete".into()),
            None if asked > PATIENCE => return Err(format!("a graph goes on after {PATIENCE:?}").into()),
            None => sleep(LOOK).await,
        }
    }
}

/// Measures from the worker's start until the database shows all graphs as ended, or until the time
/// limit.
async fn together<E: Engine>(place: &mut Place, shape: Shape, graphs: u64) -> Result<Outcome> {
    let engine = Arc::new(E::open(&place.url).await?);
    let nodes = Arc::new(shape.nodes());
    let one = move |engine: Arc<E>, _| {
        let nodes = nodes.clone();
        async move { engine.submit(&nodes).await.map(drop) }
    };
    share(&engine, CLIENTS, graphs, one).await?;
    place.expect("graphs", E::GRAPHS, graphs).await?;
    place.settle().await?;
    let began = Instant::now();
    let worker = engine.work().await?;
    let (completed, took) = loop {
        let asked = began.elapsed();
        let (ended, completed) = place.count_ended(&E::TABLES).await?;
        if u64::try_from(ended)? == graphs || asked > LIMIT {
            break (completed, asked);
        }
        // Counting costs the server time, so it takes at most a sixth of the wait.
        sleep(((began.elapsed() - asked) * 5).max(LOOK)).await;
    };
    E::stop(worker).await?;
    drop(engine);
    let deadlocks = place.deadlocks().await?;
    let failed = place.number(E::TABLES.failed_nodes).await?;
    let repeated = place.number(E::TABLES.repeated).await?;
    Ok(rate(u64::try_from(completed)?, took)
        .with("submitted", graphs as f64)
        .with("completed", completed as f64)
        .with("deadlocks", deadlocks as f64)
        .with("failed_nodes", failed as f64)
        .with("repeated_attempts", repeated as f64))
}

/// Divides `units` among `clients` tasks, each of which does one unit at a time.
async fn share<S, F, W>(store: &Arc<S>, clients: u64, units: u64, work: F) -> Result<()>
where
    S: Store,
    F: Fn(Arc<S>, u64) -> W + Clone + Send + 'static,
    W: Future<Output = Result<()>> + Send + 'static,
{
    let mut tasks: JoinSet<Result<()>> = JoinSet::new();
    for client in 0..clients {
        let (store, work) = (store.clone(), work.clone());
        tasks.spawn(async move {
            for n in (client..units).step_by(usize::try_from(clients)?) {
                work(store.clone(), n).await?;
            }
            Ok(())
        });
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    Ok(())
}

async fn pause(n: u64) {
    // The golden ratio spreads any number of pauses evenly.
    sleep(REST + PHASES.mul_f64((n as f64 * 0.618_034).fract())).await;
}

fn rate(units: u64, took: Duration) -> Outcome {
    let seconds = took.as_secs_f64();
    Outcome::default().with("rate", units as f64 / seconds).with("seconds", seconds)
}
