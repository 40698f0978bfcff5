//! Correct workflows survive every crash.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use runledger::Graph;
use runledger::prelude::*;
use runledger::testing::{Crashes, Testing};
use uuid::Uuid;

const DAY: Duration = Duration::from_secs(86_400);

const TABLE: &str = "create table booking (key uuid primary key, what text not null)";

/// Calls an external system that knows idempotency keys, simulated by a table.
#[job]
async fn charge(cents: u64, #[inject] db: &Db, #[inject] context: &Context) -> Result<u64> {
    sqlx::query("insert into booking values ($1, 'charge') on conflict do nothing")
        .bind(context.idempotency_key())
        .execute(db.pool())
        .await?;
    Ok(cents)
}

/// Commits its write together with its record.
#[job]
async fn book(what: &str, #[inject] tx: &mut Tx) -> Result<()> {
    sqlx::query("insert into booking values (gen_random_uuid(), $1)").bind(what).execute(&mut **tx).await?;
    Ok(())
}

#[job]
async fn double(n: u64) -> Result<u64> {
    Ok(n * 2)
}

#[job(max_attempts = 3, backoff = "1h..2h")]
async fn second_time_lucky(#[inject] context: &Context) -> Result<u32> {
    if context.attempt() == 1 { Err("not yet")? } else { Ok(7) }
}

#[workflow]
async fn checkout(wf: &Wf, cents: u64) -> Result<u64> {
    let charged = wf.run(charge(cents)).await?;
    let began = wf.now();
    wf.sleep(30 * DAY).await?;
    let is_late = wf.now().duration_since(began).unwrap_or_default() >= 30 * DAY;
    let is_approved: bool = wf.signal("approval").await?;
    wf.run(book("sale")).await?;
    let total = wf.step("total", || async { Ok::<_, Error>(charged + 1) }).await?;
    Ok(total + u64::from(is_late) + u64::from(is_approved))
}

#[workflow]
async fn child(wf: &Wf, n: u64) -> Result<u64> {
    wf.sleep(DAY).await?;
    Ok(wf.run(double(n)).await? + wf.run(double(n).key("again")).await?)
}

#[workflow]
async fn family(wf: &Wf) -> Result<u64> {
    let (one, other) = tokio::join!(wf.start(child(1)), wf.start(child(2)));
    let (one, other) = (one?, other?);
    Ok(one.result().await? + other.result().await?)
}

#[job]
async fn total(parts: Vec<u64>) -> Result<u64> {
    Ok(parts.iter().sum())
}

#[workflow]
async fn totals(wf: &Wf) -> Result<u64> {
    let mut graph = Graph::new("totals");
    let parts = (1..=3).map(|n| graph.call(double(n).key(n.to_string()))).collect::<Vec<_>>();
    let all = graph.then(total, (parts,));
    let begun = wf.start_graph(graph.result(all)).await?;
    Ok(begun.result().await?)
}

#[workflow]
async fn fan_out(wf: &Wf) -> Result<u64> {
    let doubled = wf.map(1..=5, double).limit(2).await?;
    let left = wf.branch("left");
    let right = wf.branch("right");
    let (one, other) = tokio::join!(left.run(double(10)), right.run(double(20)));
    Ok(doubled.into_iter().sum::<u64>() + one? + other?)
}

#[workflow]
async fn patient(wf: &Wf) -> Result<u32> {
    Ok(wf.run(second_time_lucky()).await?)
}

async fn kit() -> Testing {
    let test = Testing::new().await.unwrap().provide_with(Clone::clone);
    sqlx::raw_sql(TABLE).execute(test.db().pool()).await.unwrap();
    test
}

async fn bookings(db: &Db) -> Vec<(String, i64)> {
    let counted = "select what, count(*) from booking group by what order by what";
    sqlx::query_as(counted).fetch_all(db.pool()).await.unwrap()
}

fn is_thorough(crashes: &Crashes, at_least: usize) {
    assert!(crashes.n_crashes() >= at_least, "{crashes}");
    assert_eq!(crashes.n_left_out(), 0, "{crashes}");
}

async fn a_checkout_survives() {
    let test = kit().await.with(jobs![checkout, charge, book]).signals([("approval", true)]);
    let crashes = test
        .crash_everywhere(checkout(4200))
        .invariant(|end| async move {
            assert_eq!(end.result().unwrap(), &4203);
            assert_eq!(bookings(end.db()).await, [("charge".to_owned(), 1), ("sale".to_owned(), 1)]);
            let keys: Vec<&str> = end.steps().iter().map(|step| step.key.as_str()).collect();
            assert_eq!(keys, ["charge", "now", "sleep", "now#2", "signal[approval]", "book", "total"]);
            Ok(())
        })
        .await
        .unwrap();
    is_thorough(&crashes, 40);
    assert_eq!(crashes.n_missed(), 0, "{crashes}");
}

#[tokio::test]
#[ignore = "slow: `cargo exhaustive`"]
async fn workflow_with_steps_sleep_and_signal_survives_every_crash() {
    a_checkout_survives().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: `cargo exhaustive`"]
async fn workflow_survives_every_crash_on_multi_thread_runtime() {
    a_checkout_survives().await;
}

#[tokio::test]
#[ignore = "slow: `cargo exhaustive`"]
async fn parent_with_children_survives_every_crash() {
    let test = kit().await.with(jobs![family, child, double]);
    let crashes = test.crash_everywhere(family()).await.unwrap();
    is_thorough(&crashes, 40);
}

#[tokio::test]
#[ignore = "slow: `cargo exhaustive`"]
async fn graph_survives_every_crash_and_is_created_once() {
    let test = kit().await.with(jobs![totals, total, double]);
    let crashes = test
        .crash_everywhere(totals())
        .invariant(|end| async move {
            assert_eq!(end.result().unwrap(), &12);
            let graphs = "select count(*) from runledger.run where graph = 'totals'";
            assert_eq!(sqlx::query_scalar::<_, i64>(graphs).fetch_one(end.db().pool()).await?, 1);
            Ok(())
        })
        .await
        .unwrap();
    is_thorough(&crashes, 30);
}

#[tokio::test]
#[ignore = "slow: `cargo exhaustive`"]
async fn maps_and_branches_survive_every_crash() {
    let test = kit().await.with(jobs![fan_out, double]);
    let crashes = test.crash_everywhere(fan_out()).await.unwrap();
    is_thorough(&crashes, 30);
}

#[tokio::test]
async fn retried_step_survives_every_crash() {
    let test = kit().await.with(jobs![patient, second_time_lucky]);
    let crashes = test.crash_everywhere(patient()).await.unwrap();
    is_thorough(&crashes, 12);
}

#[tokio::test]
async fn plain_and_transactional_job_runs_survive_every_crash() {
    let test = kit().await.with(jobs![book, double]);
    let crashes = test
        .crash_everywhere(book("once"))
        .invariant(|end| async move {
            assert_eq!(bookings(end.db()).await, [("once".to_owned(), 1)]);
            Ok(())
        })
        .await
        .unwrap();
    is_thorough(&crashes, 8);
    is_thorough(&test.crash_everywhere(double(4)).await.unwrap(), 8);
}

/// An external system that counts its calls.
#[derive(Default)]
struct Provider {
    asked: AtomicU32,
    paid: std::sync::Mutex<std::collections::HashSet<Uuid>>,
}

#[job]
async fn pay(#[inject] provider: &Provider, #[inject] context: &Context) -> Result<()> {
    provider.asked.fetch_add(1, Ordering::Relaxed);
    provider.paid.lock().unwrap().insert(context.idempotency_key());
    Ok(())
}

#[workflow]
async fn pays(wf: &Wf) -> Result<()> {
    Ok(wf.run(pay()).await?)
}

static MOST_ASKED: AtomicU32 = AtomicU32::new(0);

#[tokio::test]
async fn fake_outlives_workers_of_one_run_and_serves_no_other() {
    let test = Testing::new().await.unwrap().with(jobs![pays, pay]).provide_shared_fake(Provider::default);
    let holds = |end: runledger::testing::Ended<()>| async move {
        let provider = end.fake::<Provider>().unwrap();
        let asked = provider.asked.load(Ordering::Relaxed);
        assert_eq!((provider.paid.lock().unwrap().len(), end.calls(pay)), (1, asked));
        MOST_ASKED.fetch_max(asked, Ordering::Relaxed);
        Ok(())
    };
    is_thorough(&test.crash_everywhere(pays()).invariant(holds).await.unwrap(), 8);
    assert_eq!(MOST_ASKED.load(Ordering::Relaxed), 2, "a step that was interrupted is asked for again");
}

/// The job's first name was `listed`, its second `noted`.
#[job(aliases = ["listed", "noted"])]
async fn entered() -> Result<()> {
    Ok(())
}

#[workflow]
async fn enters(wf: &Wf) -> Result<()> {
    Ok(wf.run(entered().key("eu")).await?)
}

#[tokio::test]
async fn faults_of_renamed_job_are_selected_by_any_name() {
    let test = Testing::new().await.unwrap().with(jobs![enters, entered]);
    for name in ["listed", "noted", "entered"] {
        let only = format!("delivered step `{name}[eu]` twice");
        let crashes = test.crash_everywhere(enters()).only(only).await;
        assert_eq!(crashes.map(|crashes| crashes.n_crashes()).ok(), Some(1), "{name}");
    }
}
