//! What runs and steps cost, counted in statements by a proxy before the server. Enqueueing goes past it and is not counted.

use std::collections::BTreeMap;
use std::time::Duration;

use runledger::prelude::*;
use runledger::{DEFAULT_CONCURRENCY, enqueue_all};
use runledger_tests::proxy::Proxy;
use runledger_tests::{Fixture, eventually};

use crate::rows::{scalar, soon};

#[workflow]
async fn costed(wf: &Wf, n_steps: u64) -> Result<u64> {
    let mut sum = 0;
    for n in 0..n_steps {
        sum += wf.step("costed", || async { Ok::<u64, Error>(n) }).await?;
    }
    Ok(sum)
}

/// A worker whose every statement goes through the proxy.
struct Counted {
    fixture: Fixture,
    proxy: Proxy,
    worker: runledger::Worker,
}

impl Counted {
    async fn new(concurrency: usize) -> Self {
        let fixture = Fixture::new().await;
        let proxy = Proxy::start(fixture.database.url()).await.unwrap();
        let db = Db::connect(proxy.url()).await.unwrap();
        let worker = App::new(db).with(jobs![costed]).concurrency(concurrency).start().await.unwrap();
        let counted = Self { fixture, proxy, worker };
        counted.until_asleep().await;
        // The last statement of the nets that a worker casts when it starts, and not again for thirty seconds.
        eventually(async || counted.proxy.count("-- cancel_forget"), |n_casts| *n_casts == 1).await;
        counted.proxy.forget();
        counted
    }

    fn db(&self) -> &Db {
        &self.fixture.db
    }

    async fn until_asleep(&self) {
        let asleep = "select count(*) from runledger.worker where sleeping";
        eventually(async || scalar::<i64>(self.db(), asleep).await, |n_asleep| *n_asleep == 1).await;
    }

    /// Runs this many at once to their end.
    async fn run(&self, n_runs: i64, n_steps: u64) {
        enqueue_all((0..n_runs).map(|_| costed(n_steps)), self.db()).await.unwrap();
        let left = "select (select count(*) from runledger.run) - (select count(*) from runledger.outcome where state = 'completed')";
        eventually(async || scalar::<i64>(self.db(), left).await, |n_left| *n_left == 0).await;
    }

    /// Statements by kind: the verb that each of ours begins with, or the statement itself.
    fn kinds(&self) -> BTreeMap<String, usize> {
        let mut kinds = BTreeMap::new();
        for statement in self.proxy.statements() {
            let verb = statement.trim_start_matches("-- ").split(':').next().unwrap_or_default().to_owned();
            *kinds.entry(verb).or_default() += 1;
        }
        kinds
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_alone_costs_one_statement_a_step_one_claim_and_one_settlement() {
    let counted = Counted::new(DEFAULT_CONCURRENCY).await;
    counted.run(1, 20).await;
    counted.until_asleep().await;
    counted.proxy.forget();
    counted.run(1, 20).await;
    let mut kinds = counted.kinds();
    assert_eq!((kinds.remove("checkpoint"), kinds.remove("settle")), (Some(20), Some(1)), "and {kinds:?}");
    // What a connection is told when it is opened, by whichever writer has had nothing to write before.
    kinds.retain(|kind, _| !kind.starts_with("set "));
    // The rest is what an idle worker asks for on its way to sleep, whatever the run does.
    for idle in ["claim", "lanes", "worker_sleep", "heartbeat"] {
        kinds.remove(idle);
    }
    assert!(kinds.is_empty(), "no statement beside: {kinds:?}");
    counted.worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_workflow_of_three_steps_costs_at_most_five_statements_all_told() {
    let counted = Counted::new(DEFAULT_CONCURRENCY).await;
    counted.run(400, 3).await;
    let kinds = counted.kinds();
    let n_statements: usize = kinds.values().sum();
    assert!(n_statements <= 5 * 400, "{n_statements} statements for 400 runs: {kinds:?}");
    counted.worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn steps_of_runs_at_the_same_time_share_statements() {
    let counted = Counted::new(256).await;
    counted.run(256, 8).await;
    let kinds = counted.kinds();
    let n_checkpoints = kinds.get("checkpoint").copied().unwrap_or(0);
    assert!(n_checkpoints * 8 <= 256 * 8, "{n_checkpoints} statements for {} steps", 256 * 8);
    counted.worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_worker_asks_the_database_at_most_once_a_second() {
    let counted = Counted::new(DEFAULT_CONCURRENCY).await;
    counted.run(1, 1).await;
    counted.until_asleep().await;
    counted.proxy.forget();
    let window = Duration::from_secs(10);
    tokio::time::sleep(window).await;
    let kinds = counted.kinds();
    let n_statements: usize = kinds.values().sum();
    assert!(n_statements <= 10, "{n_statements} statements in {window:?}: {kinds:?}");
    assert!(kinds.contains_key("heartbeat"), "{kinds:?}");
    soon(counted.worker.stop()).await;
}
