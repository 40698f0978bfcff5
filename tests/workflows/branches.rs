//! Behaviours 17 and 24: branches, fan-out and races.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use runledger::prelude::*;
use runledger::{ClientError, RunState, Step};
use runledger_tests::rows::{random, scalar, soon, take_away, until, worker};
use runledger_tests::{Fixture, eventually};
use tokio::sync::Semaphore;
use uuid::Uuid;

#[job(max_attempts = 1)]
async fn doubles(n: u64) -> Result<u64> {
    tokio::time::sleep(Duration::from_millis(random(10))).await;
    if n == 13 { Err(Error::terminal("an unlucky number")) } else { Ok(2 * n) }
}

async fn keys<T>(handle: &RunHandle<T>) -> Vec<String> {
    let mut keys: Vec<String> = handle.steps().await.unwrap().into_iter().map(|step| step.key).collect();
    keys.sort_unstable();
    keys
}

#[workflow]
async fn fans_out_over(wf: &Wf, items: Vec<u64>, limit: usize) -> Result<Vec<u64>> {
    Ok(wf.map(&items, |n| doubles(*n).key(n.to_string())).limit(limit).await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn map_returns_outputs_in_item_order_at_any_limit() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![fans_out_over, doubles]).await;
    for (limit, items) in
        [(1, vec![3, 1, 2]), (2, (0..12).collect()), (100, (20..40).collect()), (0, vec![1]), (4, vec![])]
    {
        let handle = fans_out_over(items.clone(), limit).enqueue(&db).await.unwrap();
        let doubled: Vec<u64> = items.iter().map(|n| 2 * n).collect();
        assert_eq!(soon(handle.result()).await.unwrap(), doubled);
        let mut expected: Vec<String> = items.iter().map(|n| format!("doubles[{n}]")).collect();
        expected.sort_unstable();
        assert_eq!(keys(&handle).await, expected);
    }
    worker.stop().await;
}

#[workflow]
async fn tells_apart(wf: &Wf, items: Vec<u64>, spread: bool) -> Result<Vec<Option<u64>>> {
    let map = wf.map(items, doubles);
    let outcomes = if spread { map.as_child_runs().settle_all().await } else { map.settle_all().await };
    Ok(outcomes.into_iter().map(Result::ok).collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_item_fails_map_and_settle_all_keeps_other_outcomes() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![fans_out_over, tells_apart, doubles]).await;
    let handle = fans_out_over(vec![1, 13, 2], 2).max_attempts(1).enqueue(&db).await.unwrap();
    let error = soon(handle.result()).await.unwrap_err();
    let ClientError::RunFailed { failure, .. } = error else { panic!("{error}") };
    assert!(failure.to_string().contains("doubles[13]"), "{failure}");
    for spread in [false, true] {
        let handle = tells_apart(vec![1, 13, 2], spread).enqueue(&db).await.unwrap();
        assert_eq!(soon(handle.result()).await.unwrap(), [Some(2), None, Some(4)]);
    }
    worker.stop().await;
}

static LIMIT: AtomicUsize = AtomicUsize::new(3);
static IS_HELD: AtomicBool = AtomicBool::new(true);
static FIRST_MAY_END: Semaphore = Semaphore::const_new(0);

/// 0 waits for its permit, 1 never ends, all others end at once.
#[job]
async fn ends_out_of_order(n: u64) -> Result<u64> {
    match n {
        0 if IS_HELD.load(Ordering::SeqCst) => {
            FIRST_MAY_END.acquire().await.map_err(Error::terminal)?.forget();
        }
        1 if IS_HELD.load(Ordering::SeqCst) => std::future::pending().await,
        _ => {}
    }
    Ok(n)
}

#[workflow]
async fn maps_out_of_order(wf: &Wf) -> Result<Vec<u64>> {
    Ok(wf.map(0..3, ends_out_of_order).limit(LIMIT.load(Ordering::SeqCst)).await?)
}

/// 2 ends, then 0, while 1 is in flight. A replay with a lower limit must reach 2 before 0 has
/// ended.
#[tokio::test(flavor = "multi_thread")]
async fn lowered_map_limit_replays_run_with_more_items_in_flight() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![maps_out_of_order, ends_out_of_order]).await;
    let handle = maps_out_of_order().enqueue(&db).await.unwrap();
    let n_steps = async || handle.steps().await.unwrap().len();
    eventually(n_steps, |n_steps| *n_steps == 1).await;
    FIRST_MAY_END.add_permits(1);
    eventually(n_steps, |n_steps| *n_steps == 2).await;
    LIMIT.store(1, Ordering::SeqCst);
    let verified =
        App::new(db.clone()).with(jobs![maps_out_of_order, ends_out_of_order]).verify().await.unwrap();
    assert!(verified.findings.is_empty(), "{:?}", verified.findings);
    IS_HELD.store(false, Ordering::SeqCst);
    assert!(take_away(&db, handle.id()).await);
    assert_eq!(soon(handle.result()).await.unwrap(), [0, 1, 2]);
    worker.stop().await;
}

#[workflow]
async fn spreads(wf: &Wf, items: Vec<u64>, limit: Option<usize>) -> Result<Vec<u64>> {
    let map = wf.map(items, doubles).as_child_runs();
    Ok(match limit {
        Some(limit) => map.limit(limit).await?,
        None => map.await?,
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn parent_wakes_exactly_once_when_last_child_ends() {
    let Fixture { db, database: _database } = Fixture::new().await;
    // The parent is parked before any child starts.
    let first = worker(&db, jobs![spreads]).await;
    let parent = spreads((20..40).collect(), None).enqueue(&db).await.unwrap();
    until(&db, parent.id(), |info| info.state == RunState::Waiting).await;
    let (one, two) = (worker(&db, jobs![doubles]).await, worker(&db, jobs![doubles]).await);
    assert_eq!(soon(parent.result()).await.unwrap(), (20..40).map(|n| 2 * n).collect::<Vec<_>>());
    let claims = "select max(claims) from runledger.step where key like '%.result%'";
    assert_eq!(scalar::<i32>(&db, claims).await, 2, "once to start them, once to take their results");
    let parents = format!("select count(*) from runledger.run where parent_id = '{}'", parent.id());
    assert_eq!(scalar::<i64>(&db, &parents).await, 20);
    for worker in [first, one, two] {
        worker.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn map_as_child_runs_starts_at_most_limit_children() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let parents = worker(&db, jobs![spreads]).await;
    let parent = spreads((0..6).collect(), Some(2)).enqueue(&db).await.unwrap();
    until(&db, parent.id(), |info| info.state == RunState::Waiting).await;
    assert_eq!(scalar::<i64>(&db, "select count(*) from runledger.run where parent_id is not null").await, 2);
    let children = worker(&db, jobs![doubles]).await;
    assert_eq!(soon(parent.result()).await.unwrap(), [0, 2, 4, 6, 8, 10]);
    parents.stop().await;
    children.stop().await;
}

/// A `select!` over two branches, which polls them in random order.
#[workflow]
async fn two_branches(wf: &Wf) -> Result<u64> {
    let (left, right) = (wf.branch("left"), wf.branch("right"));
    let chain = async |wf: &Wf, from: u64| {
        let first = wf.run(doubles(from)).await?;
        wf.run(doubles(first)).await
    };
    let (left, right) = (chain(&left, 1), chain(&right, 100));
    tokio::pin!(left, right);
    let first = tokio::select! {
        first = &mut left => first?,
        first = &mut right => first?,
    };
    Ok(wf.run(doubles(first)).await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn parallel_branches_get_same_keys_in_any_poll_order() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![two_branches, doubles]).await;
    let mut handles = Vec::new();
    for _ in 0..30 {
        handles.push(two_branches().enqueue(&db).await.unwrap());
    }
    for handle in &handles {
        eventually(async || handle.steps().await.unwrap(), |steps| !steps.is_empty()).await;
        take_away(&db, handle.id()).await;
    }
    for handle in &handles {
        let output = soon(handle.result()).await.unwrap();
        assert!([8, 800].contains(&output), "{output}");
        for key in keys(handle).await {
            let known = ["left/doubles", "left/doubles#2", "right/doubles", "right/doubles#2", "doubles"];
            assert!(known.contains(&key.as_str()), "{key}");
        }
    }
    worker.stop().await;
}

#[workflow]
async fn races(wf: &Wf, items: Vec<u64>) -> Result<(usize, u64)> {
    Ok(wf.race(items.iter().map(|n| wf.run(doubles(*n)))).await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn race_returns_first_output_and_empty_race_is_refused() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![races, doubles]).await;
    let (place, output) = soon(races(vec![5, 6]).enqueue(&db).await.unwrap().result()).await.unwrap();
    assert_eq!(output, [10, 12][place]);
    let error = soon(races(vec![]).max_attempts(1).enqueue(&db).await.unwrap().result()).await.unwrap_err();
    let ClientError::RunFailed { failure, .. } = error else { panic!("{error}") };
    assert!(failure.to_string().contains("a race needs a step"), "{failure}");
    worker.stop().await;
}

const HOUR: Duration = Duration::from_secs(3600);

#[workflow]
async fn races_of_all_kinds(wf: &Wf) -> Result<(usize, u64, usize, u64)> {
    let (signalled, number) = wf.race([wf.signal("north"), wf.signal("south")]).await?;
    let child = wf.start(doubles(4)).await?;
    let runners = [
        wf.sleep(HOUR).map_ok(|()| None),
        wf.signal("never").timeout(HOUR),
        Step::from(wf.signal("never-either")).map_ok(Some),
        wf.signal("nor-this").into(),
        wf.step("hangs", std::future::pending::<Result<Option<u64>>>),
        child.result().map_ok(Some),
    ];
    let (first, doubled) = wf.race(runners).await?;
    wf.run(doubles(number)).await?;
    Ok((signalled, number, first, doubled.unwrap_or(0)))
}

#[tokio::test(flavor = "multi_thread")]
async fn race_accepts_steps_signal_waits_sleeps_and_child_results() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![races_of_all_kinds, doubles]).await;
    let handle = races_of_all_kinds().enqueue(&db).await.unwrap();
    handle.signal("south", &7_u64).await.unwrap();
    assert_eq!(soon(handle.result()).await.unwrap(), (1, 7, 5, 8));
    worker.stop().await;
}

/// Reads the time, a random number and an id outside of steps, before and after a step.
#[workflow]
async fn asks_the_world(wf: &Wf) -> Result<(SystemTime, u64, Uuid, SystemTime)> {
    let (now, number, id) = (wf.now(), wf.random(), wf.uuid());
    wf.run(doubles(number >> 32)).await?;
    let later = wf.now();
    wf.signal::<()>("go").await?;
    Ok((now, number, id, later))
}

#[tokio::test(flavor = "multi_thread")]
async fn time_uuid_and_random_values_are_recorded_and_replayed() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![asks_the_world, doubles]).await;
    let handle = asks_the_world().enqueue(&db).await.unwrap();
    until(&db, handle.id(), |info| info.state == RunState::Waiting).await;
    assert_eq!(
        keys(&handle).await,
        ["doubles", "now", "now#2", "random", "uuid"],
        "those behind the last step too"
    );
    let recorded = handle.steps().await.unwrap();
    let recorded = |key: &str| recorded.iter().find(|step| step.key == key).unwrap().result.clone().unwrap();
    handle.signal("go", &()).await.unwrap();
    let (now, number, id, later) = soon(handle.result()).await.unwrap();
    let micros =
        |time: SystemTime| time.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_micros().to_string();
    assert_eq!([micros(now), micros(later)], [recorded("now"), recorded("now#2")]);
    assert_eq!((number.to_string(), format!("\"{id}\"")), (recorded("random"), recorded("uuid")));
    worker.stop().await;
}

/// Reads the time inside a step, where a replay would skip the read.
#[workflow]
async fn asks_in_a_step(wf: &Wf) -> Result<u64> {
    wf.step("inner", || async {
        let _ = wf.now();
        Ok::<_, Error>(())
    })
    .await?;
    Ok(1)
}

#[tokio::test(flavor = "multi_thread")]
async fn workflow_clock_read_inside_step_is_refused() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![asks_in_a_step]).await;
    let error = soon(asks_in_a_step().enqueue(&db).await.unwrap().result()).await.unwrap_err();
    let ClientError::RunFailed { failure, .. } = error else { panic!("{error}") };
    assert!(failure.message.contains("step `now` was started inside the body of another step"), "{failure}");
    worker.stop().await;
}
