//! Behaviours 8, 9 and 10: which run is claimed, when, and by whom.

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use runledger::__private::without_polls;
use runledger::prelude::*;
use runledger::{Payload, RunHandle, RunState, Timings, Worker, enqueue_all};
use runledger_tests::proxy::{Fault, Proxy};
use runledger_tests::rows::{execute, scalar, soon, until, worker_without_polls};
use runledger_tests::{Fixture, PATIENCE, eventually};
use tokio::sync::{Barrier, Notify, Semaphore};
use uuid::Uuid;

/// The numbers of runs, in the order in which they started.
#[derive(Clone, Debug, Default)]
struct Log(Arc<Mutex<Vec<u32>>>);

impl Log {
    fn numbers(&self) -> Vec<u32> {
        self.0.lock().unwrap().clone()
    }
}

#[job]
async fn claim_logged(n: u32, #[inject] log: &Log) -> Result<()> {
    log.0.lock().unwrap().push(n);
    Ok(())
}

#[job(priority = 7)]
async fn claim_urgent(n: u32, #[inject] log: &Log) -> Result<()> {
    log.0.lock().unwrap().push(n);
    Ok(())
}

#[job]
async fn claim_plain() -> Result<()> {
    Ok(())
}

#[job]
async fn claim_other() -> Result<()> {
    Ok(())
}

#[job(backoff = "3s..3s")]
async fn claim_fails_once(#[inject] context: &Context) -> Result<()> {
    if context.attempt() == 1 { Err("not yet")? } else { Ok(()) }
}

#[job]
async fn claim_names_its_delay(#[inject] context: &Context) -> Result<()> {
    if context.attempt() == 1 { Err(Error::retry_after("not yet", Duration::from_secs(3))) } else { Ok(()) }
}

#[job]
async fn claim_meets_the_others(#[inject] barrier: &Arc<Barrier>) -> Result<()> {
    barrier.wait().await;
    Ok(())
}

/// Counts the bodies that run now and at most, and lets them end.
#[derive(Clone, Debug)]
struct Gauge {
    present: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
    door: Arc<Semaphore>,
}

impl Gauge {
    fn new() -> Self {
        Self { present: Arc::default(), most: Arc::default(), door: Arc::new(Semaphore::new(0)) }
    }

    fn present(&self) -> usize {
        self.present.load(Ordering::SeqCst)
    }
}

#[job]
async fn claim_gauged(#[inject] gauge: &Gauge) -> Result<()> {
    let present = gauge.present.fetch_add(1, Ordering::SeqCst) + 1;
    gauge.most.fetch_max(present, Ordering::SeqCst);
    gauge.door.acquire().await?.forget();
    gauge.present.fetch_sub(1, Ordering::SeqCst);
    Ok(())
}

fn seconds_ago(seconds: u64) -> SystemTime {
    SystemTime::now() - Duration::from_secs(seconds)
}

async fn serve_logged(db: &Db, log: &Log) -> Worker {
    let app = App::new(db.clone()).with(jobs![claim_logged, claim_urgent]).provide(log.clone());
    app.concurrency(1).start().await.unwrap()
}

/// Waits until the worker has nothing to do and reports that it sleeps.
async fn asleep(db: &Db) {
    let sleeping = "select count(*) from runledger.worker where state = 'active' and sleeping";
    let ask = async || sqlx::query_scalar::<_, i64>(sleeping).fetch_one(db.pool()).await.unwrap();
    eventually(ask, |n| *n == 1).await;
}

/// An enqueue notifies only a few sleeping workers, so each of them must be able to take the run.
#[tokio::test(flavor = "multi_thread")]
async fn worker_without_free_slot_is_not_reported_asleep() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let log = Log::default();
    let app = App::new(db.clone()).with(jobs![claim_logged, claim_gated]).provide(log.clone());
    let worker = app.concurrency(1).start().await.unwrap();
    asleep(&db).await;
    let handle = claim_gated(0).enqueue(&db).await.unwrap();
    let n_asleep = async || scalar::<i64>(&db, "select count(*) from runledger.worker where sleeping").await;
    until(&db, handle.id(), |info| info.state == RunState::Running).await;
    eventually(n_asleep, |n_asleep| *n_asleep == 0).await;
    GATES[0].notify_one();
    asleep(&db).await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn worker_reports_sleep_again_after_lost_reply() {
    let Fixture { db, database } = Fixture::new().await;
    let proxy = Proxy::start(database.url()).await.unwrap();
    let through = Db::connect(proxy.url()).await.unwrap();
    let worker = App::new(through).with(jobs![claim_gated]).concurrency(1).start().await.unwrap();
    asleep(&db).await;
    // The lost reply is to the report that the worker is awake, because no slot is free.
    proxy.arm("-- worker_sleep", Fault::LoseReply);
    claim_gated(1).enqueue(&db).await.unwrap();
    eventually(async || proxy.n_faults(), |n_faults| *n_faults == 1).await;
    GATES[1].notify_one();
    asleep(&db).await;
    worker.stop().await;
}

static GATES: [Notify; 2] = [const { Notify::const_new() }; 2];

#[job]
async fn claim_gated(gate: usize) -> Result<()> {
    GATES[gate].notified().await;
    Ok(())
}

/// Returns how long after its due time the run was claimed, in seconds of the database's clock.
async fn lateness(db: &Db, run_id: Uuid) -> f64 {
    let late =
        "select extract(epoch from started_at - start_at)::float8 from runledger.run_state where run_id = $1";
    sqlx::query_scalar(late).bind(run_id).fetch_one(db.pool()).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn higher_priority_is_claimed_first_then_earliest_due_then_oldest() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let (log, same) = (Log::default(), seconds_ago(5));
    let calls = [
        claim_logged(4).start_at(same),
        claim_logged(5).start_at(same),
        claim_logged(3).start_at(seconds_ago(20)),
        claim_logged(2).priority(1),
        claim_logged(1).priority(9),
        claim_logged(6).priority(-3).start_at(seconds_ago(99)),
    ];
    enqueue_all(calls, &db).await.unwrap();
    let worker = serve_logged(&db, &log).await;
    eventually(async || log.numbers(), |done| done.len() == 6).await;
    worker.stop().await;
    assert_eq!(log.numbers(), [1, 2, 3, 4, 5, 6]);
}

#[tokio::test(flavor = "multi_thread")]
async fn job_priority_orders_claims_across_jobs() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let log = Log::default();
    claim_logged(2).start_at(seconds_ago(60)).enqueue(&db).await.unwrap();
    claim_urgent(1).enqueue(&db).await.unwrap();
    claim_urgent(3).priority(-1).enqueue(&db).await.unwrap();
    let worker = serve_logged(&db, &log).await;
    eventually(async || log.numbers(), |done| done.len() == 3).await;
    worker.stop().await;
    assert_eq!(log.numbers(), [1, 2, 3]);
}

#[tokio::test(flavor = "multi_thread")]
async fn urgent_run_is_claimed_before_end_of_backlog() {
    const BACKLOG: u32 = 600;
    let Fixture { db, database: _database } = Fixture::new().await;
    let log = Log::default();
    enqueue_all((0..BACKLOG).map(claim_logged), &db).await.unwrap();
    let worker = serve_logged(&db, &log).await;
    eventually(async || log.numbers(), |done| !done.is_empty()).await;
    claim_logged(BACKLOG).priority(3).enqueue(&db).await.unwrap();
    let done = eventually(async || log.numbers(), |done| done.contains(&BACKLOG)).await;
    worker.stop().await;
    assert!(done.len() < BACKLOG as usize, "{} were claimed before it", done.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn future_run_is_claimed_at_start_time_and_not_before() {
    let Fixture { db, database: _database } = Fixture::new().await;
    // The worker polls once an hour. Only a wake-up for the due time explains a claim.
    let worker = worker_without_polls(&db, jobs![claim_plain]).await;
    asleep(&db).await;
    let delayed = claim_plain().delay(Duration::from_millis(700)).enqueue(&db).await.unwrap();
    let dated = claim_plain().start_at(SystemTime::now() + Duration::from_millis(900));
    let dated = dated.enqueue(&db).await.unwrap();
    for run in [delayed, dated] {
        run.result_within(PATIENCE).await.unwrap();
        let late = lateness(&db, run.id()).await;
        assert!(late >= 0.0, "claimed {} s before its instant", -late);
    }
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn distant_future_run_does_not_delay_claim_of_nearer_one() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker_without_polls(&db, jobs![claim_plain]).await;
    for _ in 0..3 {
        asleep(&db).await;
        // The run an hour away must not hide the run that is due soon.
        claim_plain().delay(Duration::from_secs(3600)).enqueue(&db).await.unwrap();
        let soon = claim_plain().delay(Duration::from_millis(200)).enqueue(&db).await.unwrap();
        soon.result_within(PATIENCE).await.unwrap();
        let late = lateness(&db, soon.id()).await;
        assert!(late >= 0.0, "claimed {} s before its instant", -late);
    }
    worker.stop().await;
}

/// Returns the seconds from the failure of the first attempt to the planned start of the second.
async fn planned(db: &Db, run_id: Uuid) -> f64 {
    let planned = "select extract(epoch from ready_at - ended_at)::float8
                   from runledger.ready join runledger.attempt using (run_id) where run_id = $1";
    let ask =
        async || sqlx::query_scalar::<_, f64>(planned).bind(run_id).fetch_optional(db.pool()).await.unwrap();
    eventually(ask, Option::is_some).await.unwrap_or_default()
}

/// Returns the seconds from the end of the first attempt to the start of the second.
async fn pause<T: Payload + std::fmt::Debug>(run: &RunHandle<T>) -> f64 {
    run.result_within(PATIENCE).await.unwrap();
    let attempts = run.attempts().await.unwrap();
    assert_eq!(attempts.len(), 2);
    attempts[1].started_at.unwrap().duration_since(attempts[0].ended_at).unwrap().as_secs_f64()
}

#[tokio::test(flavor = "multi_thread")]
async fn three_second_backoff_or_retry_delay_is_honoured_after_failure() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker_without_polls(&db, jobs![claim_fails_once, claim_names_its_delay]).await;
    let backoff = claim_fails_once().enqueue(&db).await.unwrap();
    let named = claim_names_its_delay().enqueue(&db).await.unwrap();
    let planned = planned(&db, backoff.id()).await;
    assert!((3.0..=3.3).contains(&planned), "planned after {planned} s");
    let took = pause(&backoff).await;
    assert!(took >= 3.0, "fired after {took} s");
    let took = pause(&named).await;
    assert!(took >= 3.0, "fired after {took} s");
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn worker_never_claims_unregistered_job() {
    let Fixture { db, database: _database } = Fixture::new().await;
    // Runs of an unknown job, older and at least as urgent as the runs of the known job.
    let foreign = [claim_other(), claim_other().priority(9), claim_other().start_at(seconds_ago(60))];
    enqueue_all(foreign, &db).await.unwrap();
    let worker = App::new(db.clone()).with(jobs![claim_plain]).start().await.unwrap();
    claim_plain().enqueue(&db).await.unwrap().result_within(PATIENCE).await.unwrap();
    asleep(&db).await;
    let untouched = "select count(*) from runledger.ready where job = 'claim_other' and claims = 0 and cause = 'enqueued'";
    let untouched: i64 = sqlx::query_scalar(untouched).fetch_one(db.pool()).await.unwrap();
    assert_eq!(untouched, 3);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn five_workers_claim_five_runs_one_each() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let barrier = Arc::new(Barrier::new(5));
    let mut workers = Vec::new();
    for _ in 0..5 {
        let own = Db::connect_with((*db.pool().connect_options()).clone(), 3).await.unwrap();
        // Each worker has one slot, and no body ends before all five have started.
        let app = App::new(own).with(jobs![claim_meets_the_others]).provide(Arc::clone(&barrier));
        workers.push(app.concurrency(1).start().await.unwrap());
    }
    let runs = enqueue_all((0..5).map(|_| claim_meets_the_others()), &db).await.unwrap();
    let mut took_part = HashSet::new();
    for run in &runs {
        let run = RunHandle::attach(claim_meets_the_others, &db, run.run_id);
        run.result_within(PATIENCE).await.unwrap();
        took_part.extend(run.attempts().await.unwrap().iter().map(|attempt| attempt.worker_id));
    }
    assert_eq!(took_part, workers.iter().map(Worker::id).collect());
    for worker in workers {
        worker.stop().await;
    }
}

async fn watch_leases(db: &Db) {
    sqlx::raw_sql(
        "create table leased (run_id uuid, worker_id bigint, token uuid);
         create function note_lease() returns trigger language plpgsql set search_path = public as
             $$ begin insert into leased values (new.run_id, new.worker_id, new.token); return new; end $$;
         create trigger note_lease after insert on runledger.lease for each row execute function note_lease();",
    )
    .execute(db.pool())
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_workers_never_claim_same_attempt() {
    const RUNS: usize = 300;
    let Fixture { db, database: _database } = Fixture::new().await;
    watch_leases(&db).await;
    let mut workers = Vec::new();
    for _ in 0..4 {
        let own = Db::connect_with((*db.pool().connect_options()).clone(), 3).await.unwrap();
        workers.push(App::new(own).with(jobs![claim_plain]).concurrency(3).start().await.unwrap());
    }
    let runs = enqueue_all((0..RUNS).map(|_| claim_plain()), &db).await.unwrap();
    let n_ended = async || {
        let count = "select count(*) from runledger.outcome where state = 'completed'";
        sqlx::query_scalar::<_, i64>(count).fetch_one(db.pool()).await.unwrap()
    };
    eventually(n_ended, |ended| usize::try_from(*ended) == Ok(RUNS)).await;
    for worker in workers {
        worker.stop().await;
    }
    let leased: Vec<Uuid> =
        sqlx::query_scalar("select run_id from leased").fetch_all(db.pool()).await.unwrap();
    let distinct: HashSet<&Uuid> = leased.iter().collect();
    assert_eq!((leased.len(), distinct.len(), runs.len()), (RUNS, RUNS, RUNS));
}

#[tokio::test(flavor = "multi_thread")]
async fn running_bodies_never_exceed_concurrency_limit() {
    const RUNS: usize = 40;
    let Fixture { db, database: _database } = Fixture::new().await;
    let gauge = Gauge::new();
    let app = App::new(db.clone()).with(jobs![claim_gauged]).provide(gauge.clone());
    let worker = app.concurrency(3).start().await.unwrap();
    enqueue_all((0..RUNS).map(|_| claim_gauged()), &db).await.unwrap();
    eventually(async || gauge.present(), |present| *present == 3).await;
    let held = async || db.workers().await.unwrap()[0].n_held;
    assert_eq!(held().await, 3);
    gauge.door.add_permits(RUNS);
    let n_left = async || {
        let count = "select count(*) from runledger.run_state where state <> 'completed'";
        sqlx::query_scalar::<_, i64>(count).fetch_one(db.pool()).await.unwrap()
    };
    eventually(n_left, |left| *left == 0).await;
    worker.stop().await;
    assert_eq!(gauge.most.load(Ordering::SeqCst), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn freed_slot_is_refilled_without_waiting_for_poll() {
    const RUNS: usize = 12;
    let Fixture { db, database: _database } = Fixture::new().await;
    let gauge = Gauge::new();
    let app = App::new(db.clone()).with(jobs![claim_gauged]).provide(gauge.clone());
    let app = app.timings(without_polls(Timings::FAST));
    let worker = app.concurrency(2).start().await.unwrap();
    let runs = enqueue_all((0..RUNS).map(|_| claim_gauged()), &db).await.unwrap();
    for n_ended in 0..RUNS {
        let wanted = 2.min(RUNS - n_ended);
        eventually(async || gauge.present(), |present| *present == wanted).await;
        gauge.door.add_permits(1);
    }
    for run in &runs {
        RunHandle::attach(claim_gauged, &db, run.run_id).result_within(PATIENCE).await.unwrap();
    }
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_refused_as_batch_are_claimed_separately() {
    let Fixture { db, database: _database } = Fixture::new().await;
    execute(
        &db,
        "create function public.refuse_many() returns trigger language plpgsql as $$ begin
             if (select count(*) from taken) > 2 then raise 'too many at once' using errcode = '57014'; end if;
             return null;
         end $$;
         create trigger refuse_many after insert on runledger.lease referencing new table as taken
         for each statement execute function public.refuse_many()",
    )
    .await;
    let log = Log::default();
    let runs = enqueue_all((0..20).map(claim_logged), &db).await.unwrap();
    let worker = App::new(db.clone()).with(jobs![claim_logged]).provide(log.clone()).start().await.unwrap();
    for run in runs {
        soon(RunHandle::attach(claim_logged, &db, run.run_id).result()).await.unwrap();
    }
    assert_eq!(log.numbers().len(), 20);
    worker.stop().await;
}
