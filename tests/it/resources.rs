//! Behaviour 36, for resources: the claimed runs that need a permit never exceed the permits, and
//! no run is claimed in vain.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use runledger::prelude::*;
use runledger::{App, ClientError, Graph, RunState, Timings, Worker, enqueue_all};
use runledger_tests::rows::{execute, scalar, soon, until};
use runledger_tests::{Fixture, eventually};
use sqlx::postgres::PgListener;
use tokio::sync::Semaphore;

/// Counts the bodies inside, now and at most. A body leaves when the test opens the door.
#[derive(Clone, Default)]
struct Room(Arc<Inside>);

#[derive(Default)]
struct Inside {
    now: AtomicUsize,
    most: AtomicUsize,
    entered: AtomicUsize,
}

impl Room {
    fn enter(&self) {
        self.0.entered.fetch_add(1, Ordering::SeqCst);
        let now = self.0.now.fetch_add(1, Ordering::SeqCst) + 1;
        self.0.most.fetch_max(now, Ordering::SeqCst);
    }

    fn leave(&self) {
        self.0.now.fetch_sub(1, Ordering::SeqCst);
    }

    fn now(&self) -> usize {
        self.0.now.load(Ordering::SeqCst)
    }

    fn most(&self) -> usize {
        self.0.most.load(Ordering::SeqCst)
    }

    /// Waits until this many bodies are inside.
    async fn has(&self, wanted: usize) {
        eventually(async || self.now(), |now| *now == wanted).await;
    }
}

struct Door(Semaphore);

impl Door {
    async fn pass(&self) {
        self.0.acquire().await.unwrap().forget();
    }
}

#[job]
async fn prints(n: u64, #[inject] room: &Room) -> Result<u64> {
    room.enter();
    tokio::task::yield_now().await;
    room.leave();
    Ok(n)
}

#[job(queue = "elsewhere")]
async fn scans(n: u64, #[inject] room: &Room) -> Result<u64> {
    room.enter();
    tokio::task::yield_now().await;
    room.leave();
    Ok(n)
}

#[job]
async fn stays(#[inject] room: &Room, #[inject] door: &Arc<Door>) -> Result<()> {
    room.enter();
    door.pass().await;
    room.leave();
    Ok(())
}

/// Ignores its cancellation until it may leave.
#[job]
async fn stays_deaf(#[inject] room: &Room, #[inject] door: &Arc<Door>) -> Result<()> {
    room.enter();
    tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(door.pass()));
    room.leave();
    tokio::task::yield_now().await;
    Ok(())
}

#[job(max_attempts = 3, backoff = "1ms..1ms")]
async fn fails_twice(#[inject] room: &Room, #[inject] context: &Context) -> Result<u32> {
    room.enter();
    tokio::task::yield_now().await;
    room.leave();
    if context.attempt() < 3 { Err("on purpose".into()) } else { Ok(context.attempt()) }
}

#[workflow]
async fn waits_outside(wf: &Wf) -> Result<bool> {
    Ok(wf.signal::<bool>("go").await?)
}

#[workflow]
async fn takes_it_as_a_step(wf: &Wf) -> Result<String> {
    let refused = wf.run(prints(1).resource("printer")).await.unwrap_err();
    Ok(refused.failure().message.clone())
}

#[workflow]
async fn prints_by_children(wf: &Wf, n: u64) -> Result<u64> {
    let mut children = Vec::new();
    for i in 0..n {
        children.push(wf.start(prints(i).resource("printer").key(i)).await?);
    }
    let mut sum = 0;
    for child in children {
        sum += child.result().await?;
    }
    Ok(sum)
}

fn app(db: &Db, room: &Room, door: &Arc<Door>) -> App {
    App::new(db.clone())
        .with(jobs![
            prints,
            scans,
            stays,
            stays_deaf,
            fails_twice,
            waits_outside,
            takes_it_as_a_step,
            prints_by_children
        ])
        .queues(["default", "elsewhere"])
        .timings(Timings::FAST)
        .provide(room.clone())
        .provide(Arc::clone(door))
}

struct Shop {
    fixture: Fixture,
    room: Room,
    door: Arc<Door>,
    workers: Vec<Worker>,
}

impl Shop {
    async fn of(n_workers: usize) -> Self {
        let fixture = Fixture::new().await;
        let (room, door) = (Room::default(), Arc::new(Door(Semaphore::new(0))));
        let mut workers = Vec::new();
        for _ in 0..n_workers {
            workers.push(app(&fixture.db, &room, &door).start().await.unwrap());
        }
        Self { fixture, room, door, workers }
    }

    fn db(&self) -> &Db {
        &self.fixture.db
    }

    async fn close(self) {
        for worker in self.workers {
            worker.stop().await;
        }
    }
}

/// Checks that no run was tried more than once, although most found no free permit.
async fn none_was_tried_twice(db: &Db) {
    let tried: i64 = scalar(db, "select count(*) from runledger.outcome where attempt <> 1").await;
    assert_eq!(tried, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn resource_defaults_to_one_permit_across_jobs_queues_tenants_workers() {
    let shop = Shop::of(3).await;
    let mut runs = Vec::new();
    for n in 0..30 {
        runs.push(
            prints(n)
                .resource("printer")
                .tenant(format!("tenant {}", n % 3))
                .enqueue(shop.db())
                .await
                .unwrap(),
        );
    }
    let mut others = Vec::new();
    for n in 0..30 {
        others.push(scans(n).resource("printer").enqueue(shop.db()).await.unwrap());
    }
    for (n, (run, other)) in (0..).zip(runs.iter().zip(&others)) {
        assert_eq!(soon(run.result()).await.unwrap(), n);
        assert_eq!(soon(other.result()).await.unwrap(), n);
    }
    assert_eq!(shop.room.most(), 1);
    none_was_tried_twice(shop.db()).await;
    let known = shop.db().resources(None).await.unwrap();
    let [printer] = &known[..] else { panic!("{known:?}") };
    assert_eq!((printer.name.as_str(), printer.permits, printer.is_set), ("printer", 1, false));
    assert_eq!((printer.n_held, printer.n_waiting), (0, 0));
    shop.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn permit_limit_changes_at_runtime_without_revoking_granted_permits() {
    let shop = Shop::of(2).await;
    assert_eq!(shop.db().set_permits("printer", 3).await.unwrap(), None);
    for _ in 0..10 {
        stays().resource("printer").enqueue(shop.db()).await.unwrap();
    }
    shop.room.has(3).await;
    let waiting = async || {
        let known = shop.db().resources(None).await.unwrap();
        (known[0].permits, known[0].n_held, known[0].n_waiting)
    };
    assert_eq!(waiting().await, (3, 3, 7));
    assert_eq!(shop.db().set_permits("printer", 5).await.unwrap(), Some(3));
    shop.room.has(5).await;
    assert_eq!(waiting().await, (5, 5, 5));

    shop.db().set_permits("printer", 2).await.unwrap();
    // Two bodies leave and three remain, one more than there are permits: none may enter.
    shop.door.0.add_permits(2);
    shop.room.has(3).await;
    prints(1).enqueue(shop.db()).await.unwrap().result().await.unwrap();
    eventually(&waiting, |seen| *seen == (2, 3, 5)).await;
    assert_eq!(shop.room.0.entered.load(Ordering::SeqCst), 6);
    // Two more leave and one enters.
    shop.door.0.add_permits(2);
    eventually(&waiting, |seen| *seen == (2, 2, 4)).await;

    shop.db().set_permits("printer", 0).await.unwrap();
    shop.door.0.add_permits(2);
    shop.room.has(0).await;
    prints(1).enqueue(shop.db()).await.unwrap().result().await.unwrap();
    eventually(&waiting, |seen| *seen == (0, 0, 4)).await;
    assert_eq!(shop.db().set_permits("printer", None).await.unwrap(), Some(0));
    shop.door.0.add_permits(4);
    eventually(&waiting, |seen| *seen == (1, 0, 0)).await;
    none_was_tried_twice(shop.db()).await;
    shop.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn permit_of_cancelled_attempt_is_released_only_with_its_lease() {
    let shop = Shop::of(2).await;
    let first = stays_deaf().resource("printer").enqueue(shop.db()).await.unwrap();
    shop.room.has(1).await;
    let second = prints(2).resource("printer").enqueue(shop.db()).await.unwrap();
    first.cancel("not wanted").await.unwrap();
    // The worker has received the cancel by now, and could have given the permit to another run.
    prints(1).enqueue(shop.db()).await.unwrap().result().await.unwrap();
    assert_eq!(second.info().await.unwrap().state, RunState::Queued);
    let held: bool = scalar(
        shop.db(),
        "select exists (select from runledger.lease join runledger.permit using (run_id, token))",
    )
    .await;
    assert!(held);
    shop.door.0.add_permits(1);
    assert_eq!(soon(second.result()).await.unwrap(), 2);
    assert_eq!(
        until(shop.db(), first.id(), |info| info.state.is_terminal()).await.state,
        RunState::Cancelled
    );
    shop.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn backlog_of_busy_resource_does_not_delay_other_runs() {
    let shop = Shop::of(1).await;
    stays().resource("busy").enqueue(shop.db()).await.unwrap();
    shop.room.has(1).await;
    enqueue_all((0..5_000).map(|n| prints(n).resource("busy").priority(9)), shop.db()).await.unwrap();
    let free = prints(1).resource("free").enqueue(shop.db()).await.unwrap();
    let without = prints(2).enqueue(shop.db()).await.unwrap();
    assert_eq!(soon(free.result()).await.unwrap(), 1);
    assert_eq!(soon(without.result()).await.unwrap(), 2);
    let queued: i64 = scalar(shop.db(), "select count(*) from runledger.ready where claims = 0").await;
    assert_eq!(queued, 5_000, "none of them was taken and put back");
    shop.db().set_permits("busy", 0).await.unwrap();
    shop.door.0.add_permits(1);
    shop.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_attempt_needs_permit_and_waiting_workflow_has_none() {
    let shop = Shop::of(2).await;
    let mut failing = Vec::new();
    for _ in 0..8 {
        failing.push(fails_twice().resource("printer").enqueue(shop.db()).await.unwrap());
    }
    for run in &failing {
        assert_eq!(soon(run.result()).await.unwrap(), 3);
    }
    assert_eq!(shop.room.most(), 1);
    let waits = waits_outside().resource("printer").enqueue(shop.db()).await.unwrap();
    until(shop.db(), waits.id(), |info| info.state == RunState::Waiting).await;
    assert_eq!(
        soon(prints(1).resource("printer").enqueue(shop.db()).await.unwrap().result()).await.unwrap(),
        1
    );
    stays().resource("printer").enqueue(shop.db()).await.unwrap();
    shop.room.has(1).await;
    waits.signal("go", &true).await.unwrap();
    prints(1).enqueue(shop.db()).await.unwrap().result().await.unwrap();
    assert_eq!(waits.info().await.unwrap().state, RunState::Queued, "awake, without a permit");
    shop.door.0.add_permits(1);
    assert!(soon(waits.result()).await.unwrap());
    shop.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn children_and_nodes_need_permits_and_step_resource_is_refused() {
    let shop = Shop::of(2).await;
    let children = prints_by_children(12).enqueue(shop.db()).await.unwrap();
    let mut graph = Graph::new("prints");
    let mut printed = Vec::new();
    for n in 0..12 {
        let node = graph.call(prints(n).key(n));
        graph.configure(node).resource("printer");
        printed.push(node);
    }
    let graph = graph.enqueue(shop.db()).await.unwrap();
    assert_eq!(soon(children.result()).await.unwrap(), 66);
    until(shop.db(), graph.id(), |info| info.state == RunState::Completed).await;
    assert_eq!((shop.room.most(), shop.room.0.entered.load(Ordering::SeqCst)), (1, 24));
    let refused = takes_it_as_a_step().enqueue(shop.db()).await.unwrap();
    let message = soon(refused.result()).await.unwrap();
    assert!(message.contains("`resource`") && message.contains("wf.start"), "{message}");
    shop.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn delayed_run_with_resource_does_not_start_early() {
    let shop = Shop::of(1).await;
    let run =
        prints(1).resource("printer").delay(Duration::from_millis(700)).enqueue(shop.db()).await.unwrap();
    soon(run.result()).await.unwrap();
    let early: i64 = scalar(
        shop.db(),
        "select count(*) from runledger.outcome join runledger.run using (run_id) where outcome.started_at < run.start_at",
    )
    .await;
    assert_eq!(early, 0);
    shop.close().await;
}

/// The more urgent runs come first among the runs that wait for a permit, and among all others,
/// whatever the backlog of the other group.
#[tokio::test(flavor = "multi_thread")]
async fn priority_orders_resource_runs_among_themselves_and_against_plain_backlog() {
    let fixture = Fixture::new().await;
    let (room, door) = (Room::default(), Arc::new(Door(Semaphore::new(0))));
    let db = &fixture.db;
    for priority in [0, 7, 3] {
        enqueue_all((0..20).map(|n| prints(n).resource("printer").priority(priority)), db).await.unwrap();
    }
    enqueue_all((0..200).map(|n| prints(n).priority(5)), db).await.unwrap();
    let worker = app(db, &room, &door).concurrency(4).start().await.unwrap();
    eventually(async || scalar::<i64>(db, "select count(*) from runledger.outcome").await, |n| *n == 260)
        .await;
    let order = "select array_agg(priority order by started_at) from runledger.outcome join runledger.run using (run_id)
                 where options ->> 'resource' is not null";
    let started: Vec<i16> = scalar(db, order).await;
    let expected: Vec<i16> = [7, 3, 0].into_iter().flat_map(|priority| [priority; 20]).collect();
    assert_eq!(started, expected);
    let before = "select count(*) from runledger.outcome join runledger.run using (run_id)
                  where options ->> 'resource' is not null and priority < 5 and started_at < (
                      select max(started_at) from runledger.outcome join runledger.run using (run_id) where options ->> 'resource' is null)";
    let n_before: i64 = scalar(db, before).await;
    // The last claim of a backlog is not full, so later runs may start together with its last few.
    assert!(n_before <= 4, "{n_before} of a lower priority before the backlog had ended");
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn released_permit_wakes_worker_that_serves_waiting_run() {
    let fixture = Fixture::new().await;
    let db = &fixture.db;
    let (room, door) = (Room::default(), Arc::new(Door(Semaphore::new(0))));
    let first = App::new(db.clone())
        .with(jobs![stays])
        .timings(Timings::FAST)
        .provide(room.clone())
        .provide(Arc::clone(&door))
        .start()
        .await
        .unwrap();
    stays().resource("printer").enqueue(db).await.unwrap();
    room.has(1).await;
    // Worker 77 serves the job, but does not wake up on its own, because the worker does not exist.
    execute(
        db,
        "insert into runledger.worker (worker_id, name, version, session_name, jobs, queues, sleeping)
         values (77, 'w', '1', 's', '{prints}', '{default}', true), (78, 'w', '1', 's', '{scans}', '{default}', true)",
    )
    .await;
    prints(1).resource("printer").enqueue(db).await.unwrap();
    let mut listener = PgListener::connect(fixture.database.url()).await.unwrap();
    listener.listen("runledger_ready").await.unwrap();
    door.0.add_permits(1);
    let told = soon(listener.recv()).await.unwrap();
    assert_eq!(told.payload(), "77");
    first.stop().await;
}

#[tokio::test]
async fn invalid_resource_is_refused_before_any_write() {
    let Fixture { db, database: _database } = Fixture::new().await;
    for name in ["", " ", "a\nb", &"x".repeat(257)] {
        let refused = prints(1).resource(name).enqueue(&db).await.unwrap_err();
        assert!(matches!(refused, ClientError::Name(_)), "{refused:?}");
        assert!(matches!(db.set_permits(name, 1).await.unwrap_err(), ClientError::Name(_)));
    }
    let message = db.set_permits("printer", 10_001).await.unwrap_err().to_string();
    assert!(message.contains("at most 10000"), "{message}");
    let mut graph = Graph::new("prints");
    let gate = graph.gate::<bool>("ok");
    graph.configure(gate).resource("printer");
    let message = graph.enqueue(&db).await.unwrap_err().to_string();
    assert!(message.contains("resource"), "{message}");

    prints(1).resource("printer").idempotency_key("1").enqueue(&db).await.unwrap();
    let other = prints(1).resource("scanner").idempotency_key("1").enqueue(&db).await.unwrap_err();
    assert!(other.to_string().contains("resource"), "{other}");
    assert_eq!(scalar::<i64>(&db, "select count(*) from runledger.run").await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_of_more_resources_than_scan_limit_all_complete() {
    let shop = Shop::of(1).await;
    let handles = enqueue_all((0..600).map(|n| prints(n).resource(format!("account {n:03}"))), shop.db())
        .await
        .unwrap();
    let n_ended = async || scalar::<i64>(shop.db(), "select count(*) from runledger.outcome").await;
    eventually(n_ended, |n| *n == 600).await;
    assert_eq!(handles.len(), 600);
    let first = shop.db().resources(None).await.unwrap();
    let next = shop.db().resources(Some("account 597")).await.unwrap();
    assert_eq!((first.len(), next.len()), (600, 2));
    shop.close().await;
}

#[job]
async fn waits_for_no_printer(n: u64) -> Result<u64> {
    Ok(n)
}

/// Starts a worker for jobs that need a resource and for jobs that need none.
async fn printing_worker(db: &Db) -> Worker {
    let app = App::new(db.clone()).with(jobs![prints, waits_for_no_printer]);
    app.provide(Room::default()).timings(Timings::FAST).start().await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn locked_permit_delays_only_runs_without_alternative_permit() {
    let Fixture { db, database: _database } = Fixture::new().await;
    db.set_permits("scanner", 2).await.unwrap();
    let worker = printing_worker(&db).await;
    for resource in ["printer", "scanner"] {
        soon(prints(1).resource(resource).enqueue(&db).await.unwrap().result()).await.unwrap();
    }
    let mut tx = db.pool().begin().await.unwrap();
    sqlx::query("delete from runledger.permit").execute(&mut *tx).await.unwrap();
    let waits = prints(2).resource("printer").enqueue(&db).await.unwrap();
    let has_another = prints(2).resource("scanner").enqueue(&db).await.unwrap();
    // Each claim would wait 10 s for the permit, and then take one of these runs.
    let others = enqueue_all((0..20).map(waits_for_no_printer), &db).await.unwrap();
    soon(has_another.result()).await.unwrap();
    for run in others {
        until(&db, run.run_id, |info| info.state == RunState::Completed).await;
    }
    assert_eq!(waits.state().await.unwrap(), RunState::Queued);
    tx.rollback().await.unwrap();
    soon(waits.result()).await.unwrap();
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn locked_table_of_permits_delays_only_runs_that_need_one() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = printing_worker(&db).await;
    let mut tx = db.pool().begin().await.unwrap();
    sqlx::query("lock table runledger.permit in access exclusive mode").execute(&mut *tx).await.unwrap();
    let waits = prints(2).resource("printer").enqueue(&db).await.unwrap();
    // If each of them waited for a scan of resources, they would take 10 s each.
    let others = async {
        for n in 0..20 {
            waits_for_no_printer(n).enqueue(&db).await.unwrap().result().await.unwrap();
        }
    };
    soon(others).await;
    assert_eq!(waits.state().await.unwrap(), RunState::Queued);
    tx.rollback().await.unwrap();
    worker.stop().await;
}
