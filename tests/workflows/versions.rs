//! Versions of code: a run is bound to the version with which it was enqueued. It continues in
//! another version only if that version or an operator says so.

use runledger::__private::{Invocation, Location, RunFuture, STATEMENTS};
use runledger::prelude::*;
use runledger::{
    AnyCall, ClientError, Definition, Graph, GraphHandle, RunState, Timings, Verdict, Worker, enqueue_all,
};
use runledger_tests::rows::{LONG, scalar, soon, until, worker};
use runledger_tests::{Fixture, eventually};
use serde_json::json;
use tokio::process::{Child, Command};
use tokio::sync::Semaphore;

/// Versions of one workflow in one binary. Each records another step before it waits.
macro_rules! version {
    ($module:ident, $step:literal $(, $option:ident = $value:expr)*) => {
        mod $module {
            use runledger::prelude::*;

            #[workflow($($option = $value),*)]
            pub async fn parcel(wf: &Wf, waits: bool) -> Result<String> {
                wf.step($step, || async { Ok::<_, Error>(()) }).await?;
                if waits {
                    wf.signal::<()>("go").await?;
                }
                Ok(stringify!($module).to_owned())
            }
        }
    };
}

version!(one, "pack");
version!(two, "weigh", version = 2);
version!(three, "pack", version = 3, accepts = [1]);

#[job]
async fn canary() -> Result<()> {
    Ok(())
}

/// Gives a worker many opportunities to claim a run that it must not claim.
async fn pass_by(db: &Db) {
    for _ in 0..20 {
        soon(canary().enqueue(db).await.unwrap().result()).await.unwrap();
    }
}

async fn claims<T>(db: &Db, handle: &RunHandle<T>) -> i32 {
    scalar(db, &format!("select claims from runledger.ready where run_id = '{}'", handle.id())).await
}

#[tokio::test(flavor = "multi_thread")]
async fn each_version_serves_runs_enqueued_with_it() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![one::parcel, two::parcel]).await;
    let (first, second) = (one::parcel(false), two::parcel(false));
    let (first, second) = (first.enqueue(&db).await.unwrap(), second.enqueue(&db).await.unwrap());
    assert_eq!(soon(first.result()).await.unwrap(), "one");
    assert_eq!(soon(second.result()).await.unwrap(), "two");
    let (first, second) = (first.info().await.unwrap(), second.info().await.unwrap());
    assert_eq!((first.job.as_str(), first.version), ("parcel", 1));
    assert_eq!((second.job.as_str(), second.version), ("parcel", 2));
    assert_eq!(db.workers().await.unwrap()[0].jobs, ["parcel", "parcel@2"]);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn run_of_unserved_version_stays_queued_and_shows_hint() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let newer = two::parcel(false).enqueue(&db).await.unwrap();
    let old = worker(&db, jobs![one::parcel, canary]).await;
    pass_by(&db).await;
    let unserved = db.unserved().await.unwrap();
    assert_eq!((unserved.len(), unserved[0].version, &unserved[0].other_versions[..]), (1, 2, &[1][..]));
    let hint = "they serve version 1 of it; start one that has version 2, or whose code accepts it (`accepts = [2]`), or move the runs with `RunHandle::pin`";
    assert!(unserved[0].to_string().ends_with(hint), "{}", unserved[0]);
    old.stop().await;
    let older = one::parcel(false).enqueue(&db).await.unwrap();
    let new = worker(&db, jobs![two::parcel, canary]).await;
    assert_eq!(soon(newer.result()).await.unwrap(), "two");
    pass_by(&db).await;
    let info = older.info().await.unwrap();
    assert_eq!((info.state, info.attempt, claims(&db, &older).await), (RunState::Queued, 0, 0));
    new.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn version_accepting_earlier_one_serves_runs_without_changing_their_version() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let run = one::parcel(false).enqueue(&db).await.unwrap();
    let not_accepted = two::parcel(false).enqueue(&db).await.unwrap();
    let worker = worker(&db, jobs![three::parcel, canary]).await;
    assert_eq!(soon(run.result()).await.unwrap(), "three");
    assert_eq!(run.info().await.unwrap().version, 1);
    pass_by(&db).await;
    assert_eq!(not_accepted.state().await.unwrap(), RunState::Queued);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn replay_never_crosses_versions() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let run = one::parcel(true).enqueue(&db).await.unwrap();
    let old = worker(&db, jobs![one::parcel]).await;
    until(&db, run.id(), |info| info.state == RunState::Waiting).await;
    old.stop().await;
    let new = worker(&db, jobs![two::parcel, canary]).await;
    run.signal("go", &()).await.unwrap();
    pass_by(&db).await;
    assert_eq!((run.state().await.unwrap(), claims(&db, &run).await), (RunState::Queued, 1));
    new.stop().await;
    let old = worker(&db, jobs![one::parcel]).await;
    assert_eq!(soon(run.result()).await.unwrap(), "one");
    let keys: Vec<_> = run.steps().await.unwrap().into_iter().map(|step| step.key).collect();
    assert_eq!(keys, ["pack", "signal[go]"]);
    old.stop().await;
}

#[workflow]
async fn sends_both(wf: &Wf) -> Result<String> {
    let (one, two) = (wf.start(one::parcel(false)).await?, wf.start(two::parcel(false)).await?);
    Ok(format!("{} {}", one.result().await?, two.result().await?))
}

#[workflow]
async fn continues_as_the_second(wf: &Wf) -> Result<String> {
    wf.continue_as_new(other::continues_as_the_second()).await
}

mod other {
    use runledger::prelude::*;

    #[workflow(version = 2)]
    pub async fn continues_as_the_second(wf: &Wf) -> Result<String> {
        Ok(wf.run_id().to_string())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn child_gets_called_version_and_continuation_cannot_change_version() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let code = jobs![sends_both, one::parcel, two::parcel, continues_as_the_second];
    let worker = worker(&db, code).await;
    let run = sends_both().enqueue(&db).await.unwrap();
    assert_eq!(soon(run.result()).await.unwrap(), "one two");
    let children = "select string_agg(job, ' ' order by job) from runledger.run where parent_id is not null";
    assert_eq!(scalar::<String>(&db, children).await, "parcel parcel@2");
    let run = continues_as_the_second().enqueue(&db).await.unwrap();
    let ClientError::RunFailed { failure, .. } = soon(run.result()).await.unwrap_err() else { panic!() };
    assert!(failure.to_string().contains("cannot continue as `continues_as_the_second@2`"), "{failure}");
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn call_by_name_uses_newest_registered_or_requested_version() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let by_name = |name: &str| AnyCall::by_name(name, &json!({ "waits": false }));
    let calls = [by_name("parcel"), by_name("parcel").version(2), by_name("parcel").version(1)];
    let mut versions = Vec::new();
    for run in enqueue_all(calls, &db).await.unwrap() {
        versions.push(db.run(run.run_id).info().await.unwrap().version);
    }
    assert_eq!(versions, [3, 2, 1]);
    // The job is in another program, so only its workers know the version.
    let code = defined("versions.elsewhere", 1).version(2);
    let elsewhere = App::new(db.clone()).with([leaked(code)]).start().await.unwrap();
    let run = enqueue_all([by_name("versions.elsewhere").version(2)], &db).await.unwrap();
    assert_eq!(db.run(run[0].run_id).info().await.unwrap().version, 2);
    let refused = enqueue_all([by_name("versions.elsewhere")], &db).await.unwrap_err().to_string();
    let hint = "in version 1, but in version 2: say which with `.version(…)`";
    assert!(refused.contains(hint), "{refused}");
    elsewhere.stop().await;
}

#[tokio::test]
async fn idempotency_key_is_shared_by_all_versions_of_job() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let first = one::parcel(false).idempotency_key("order").enqueue(&db).await.unwrap();
    let again = two::parcel(false).idempotency_key("order").enqueue(&db).await.unwrap();
    assert_eq!((again.id(), again.created()), (first.id(), false));
    assert_eq!(again.info().await.unwrap().version, 1, "the run that is there stays as it is");
}

static GATE: Semaphore = Semaphore::const_new(0);

/// Blocks in its body until the test releases it.
#[job]
async fn held_up() -> Result<()> {
    GATE.acquire().await?.forget();
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn pin_moves_queued_waiting_and_paused_runs_and_is_recorded() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let queued = one::parcel(false).enqueue(&db).await.unwrap();
    let later = one::parcel(false).delay(LONG).enqueue(&db).await.unwrap();
    let paused = one::parcel(false).enqueue(&db).await.unwrap();
    paused.pause("to be moved").await.unwrap();
    let waits = one::parcel(true).enqueue(&db).await.unwrap();
    let old = App::new(db.clone()).with(jobs![one::parcel]).timings(Timings::FAST);
    for run in [&queued, &later, &paused] {
        assert!(run.pin(2).await.unwrap());
    }
    let old = old.start().await.unwrap();
    until(&db, waits.id(), |info| info.state == RunState::Waiting).await;
    old.stop().await;
    // The third version continues the run, although its record is of the first version.
    assert!(waits.pin(3).await.unwrap());
    assert!(!waits.pin(3).await.unwrap(), "it is of that version already");
    assert_eq!(later.info().await.unwrap().state, RunState::Queued, "it keeps its instant");
    let worker = worker(&db, jobs![two::parcel, three::parcel]).await;
    assert_eq!(soon(queued.result()).await.unwrap(), "two");
    paused.resume().await.unwrap();
    assert_eq!(soon(paused.result()).await.unwrap(), "two");
    waits.signal("go", &()).await.unwrap();
    assert_eq!(soon(waits.result()).await.unwrap(), "three");
    let pins = waits.pins().await.unwrap();
    assert_eq!((pins.len(), pins[0].from_version, pins[0].version), (1, 1, 3));
    assert_eq!(later.state().await.unwrap(), RunState::Queued);
    let ended = waits.pin(1).await.unwrap_err();
    assert!(matches!(ended, ClientError::WrongState { state: RunState::Completed, .. }), "{ended}");
    let nobody = db.run(uuid::Uuid::nil()).pin(2).await.unwrap_err();
    assert!(matches!(nobody, ClientError::NoSuchRun { .. }), "{nobody}");
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn running_run_cannot_be_pinned() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![held_up]).await;
    let run = held_up().enqueue(&db).await.unwrap();
    until(&db, run.id(), |info| info.state == RunState::Running).await;
    let refused = run.pin(2).await.unwrap_err();
    assert!(matches!(refused, ClientError::RunIsRunning { .. }), "{refused}");
    assert!(refused.to_string().contains("pause it"), "{refused}");
    assert!(run.pins().await.unwrap().is_empty());
    GATE.add_permits(1);
    soon(run.result()).await.unwrap();
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn run_blocked_by_another_version_resumes_after_pinning_back() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let run = one::parcel(true).enqueue(&db).await.unwrap();
    let old = worker(&db, jobs![one::parcel, two::parcel]).await;
    until(&db, run.id(), |info| info.state == RunState::Waiting).await;
    run.pin(2).await.unwrap();
    run.signal("go", &()).await.unwrap();
    until(&db, run.id(), |info| info.state == RunState::Blocked).await;
    run.pin(1).await.unwrap();
    assert_eq!(run.state().await.unwrap(), RunState::Blocked);
    run.resume().await.unwrap();
    assert_eq!(soon(run.result()).await.unwrap(), "one");
    let versions: Vec<_> =
        run.pins().await.unwrap().iter().map(|pin| (pin.from_version, pin.version)).collect();
    assert_eq!(versions, [(1, 2), (2, 1)]);
    old.stop().await;
}

async fn node<T: runledger::Payload>(graph: &GraphHandle<T>, name: &str) -> uuid::Uuid {
    graph.nodes().await.unwrap().into_iter().find(|node| node.name == name).unwrap().run_id
}

#[tokio::test(flavor = "multi_thread")]
async fn node_pinned_while_dependency_completes_is_queued_in_new_version() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let mut graph = Graph::new("parcels");
    let gate = graph.gate::<bool>("gate");
    let parcel = graph.then(one::parcel, (gate,));
    let graph = graph.result(parcel).enqueue(&db).await.unwrap();
    let parcel = node(&graph, "parcel").await;
    let statement = |name: &str| STATEMENTS.iter().find(|(known, _)| *known == name).unwrap().1;
    let mut pin = db.pool().begin().await.unwrap();
    sqlx::query(statement("lock_runs")).bind(vec![parcel]).execute(&mut *pin).await.unwrap();
    sqlx::query(statement("pin")).bind(parcel).bind("parcel@2").execute(&mut *pin).await.unwrap();
    let decided = tokio::spawn({
        let graph = graph.clone();
        async move { graph.gate("gate").complete(&false).await }
    });
    let released = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock' and query like '-- release:%'";
    eventually(async || scalar::<i64>(&db, released).await, |n| *n == 1).await;
    pin.commit().await.unwrap();
    decided.await.unwrap().unwrap();
    assert_eq!(scalar::<String>(&db, "select job from runledger.ready").await, "parcel@2");
    let worker = worker(&db, jobs![two::parcel]).await;
    assert_eq!(soon(graph.result()).await.unwrap(), "two");
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn graphs_gates_and_map_nodes_cannot_be_pinned() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let mut graph = Graph::new("parcels");
    let gate = graph.gate::<Vec<bool>>("gate");
    graph.map(one::parcel, gate);
    let graph = graph.enqueue(&db).await.unwrap();
    let nodes = graph.nodes().await.unwrap();
    let parts = nodes.iter().map(|node| node.run_id).chain([graph.id()]);
    for part in parts {
        let refused = db.run(part).pin(2).await.unwrap_err();
        assert!(matches!(refused, ClientError::PartHasNoVersions { run_id } if run_id == part), "{refused}");
    }
    let stored = "select count(*) from runledger.run where job like '%@%'";
    assert_eq!(scalar::<i64>(&db, stored).await, 0);
}

const fn defined(name: &'static str, line: u32) -> Definition {
    Definition::job(name, run, Location::new("src/versions.rs", line, 1, "versions"))
}

fn run(invocation: Invocation) -> RunFuture {
    Box::pin(async move { invocation.finish(Ok::<(), Error>(())) })
}

/// Makes a definition static, as in code of the macros.
fn leaked(definition: Definition) -> &'static Definition {
    Box::leak(Box::new(definition))
}

async fn start(definitions: Vec<Definition>) -> Result<(Worker, Db, Fixture), ClientError> {
    let fixture = Fixture::new().await;
    let app = App::new(fixture.db.clone()).with(definitions.into_iter().map(leaked));
    Ok((app.start().await?, fixture.db.clone(), fixture))
}

/// Returns the names that a worker with these definitions serves.
async fn served(definitions: Vec<Definition>) -> Vec<String> {
    let (worker, db, _fixture) = start(definitions).await.unwrap();
    let names = db.workers().await.unwrap().remove(0).jobs;
    worker.stop().await;
    names
}

#[tokio::test]
async fn aliases_are_served_in_every_version_of_job() {
    let renamed = defined("versions.new", 1).aliases(&["versions.old"]).version(3).accepts(&[1]);
    let names = ["versions.new", "versions.new@3", "versions.old", "versions.old@3"];
    assert_eq!(served(vec![renamed]).await, names);
    let beside = defined("versions.new", 2).aliases(&["versions.old"]).version(2);
    let names = [
        "versions.new",
        "versions.new@2",
        "versions.new@3",
        "versions.old",
        "versions.old@2",
        "versions.old@3",
    ];
    assert_eq!(served(vec![renamed, beside]).await, names);
}

#[tokio::test]
async fn duplicate_job_name_and_version_fails_start_with_both_locations() {
    let (one, two) = (defined("versions.twin", 3).version(2), defined("versions.twin", 14).version(2));
    let error = start(vec![one, two]).await.err().unwrap().to_string();
    let words = "two jobs are called `versions.twin` in version 2: one at src/versions.rs:3:1, one at src/versions.rs:14:1";
    assert!(error.starts_with(words), "{error}");
}

#[tokio::test]
async fn versions_with_unshared_idempotency_keys_fail_start_with_both_locations() {
    let (one, two) =
        (defined("versions.key", 3), defined("versions.key", 14).version(2).aliases(&["versions.was"]));
    let error = start(vec![one, two]).await.err().unwrap().to_string();
    for part in ["`versions.key` and `versions.was`", "src/versions.rs:3:1", "src/versions.rs:14:1"] {
        assert!(error.contains(part), "{part} is not in: {error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn version_is_served_by_own_code_before_accepting_version() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let run = one::parcel(false).enqueue(&db).await.unwrap();
    let worker = worker(&db, jobs![three::parcel, one::parcel]).await;
    assert_eq!(soon(run.result()).await.unwrap(), "one");
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn verification_judges_each_run_by_its_serving_version() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let old = worker(&db, jobs![one::parcel, two::parcel]).await;
    let (first, second) = (one::parcel(true), two::parcel(true));
    let (first, second) = (first.enqueue(&db).await.unwrap(), second.enqueue(&db).await.unwrap());
    for run_id in [first.id(), second.id()] {
        until(&db, run_id, |info| info.state == RunState::Waiting).await;
    }
    old.stop().await;
    let verify = async |code: &[&'static Definition]| {
        App::new(db.clone()).with(code.iter().copied()).verify().await.unwrap()
    };
    let both = jobs![one::parcel, two::parcel];
    assert!(verify(&both).await.is_ok());
    let accepting = verify(&jobs![two::parcel, three::parcel]).await;
    assert!(accepting.is_ok(), "the third follows the record of the first: {accepting}");
    let without = verify(&jobs![two::parcel]).await;
    let [finding] = &without.findings[..] else { panic!("{without}") };
    assert_eq!((finding.job.as_str(), finding.run_id), ("parcel", first.id()));
    assert_eq!(finding.verdict, Verdict::NoVersion { version: 1, served: vec![2] });
    assert!(without.to_string().contains("let a newer one accept it: `accepts = [1]`"), "{without}");
    let history = second.export().await.unwrap();
    assert_eq!((history.job.as_str(), history.version), ("parcel", 2));
    let text = history.to_json().unwrap();
    assert!(text.contains("\"version\": 2"), "{text}");
}

fn program(version: &str, fixture: &Fixture) -> Child {
    Command::new(env!("CARGO_BIN_EXE_versioned_worker"))
        .arg(version)
        .env("DATABASE_URL", fixture.database.url())
        .kill_on_drop(true)
        .spawn()
        .unwrap()
}

#[tokio::test]
async fn two_processes_each_serve_their_own_version_in_shared_database() {
    let fixture = Fixture::new().await;
    let db = &fixture.db;
    let (_one, _two) = (program("1", &fixture), program("2", &fixture));
    eventually(async || db.workers().await.unwrap().len(), |n| *n == 2).await;
    let calls = (0..20).map(|n| AnyCall::by_name("versioned", &json!({})).version(1 + n % 2));
    let runs = enqueue_all(calls, db).await.unwrap();
    for run in &runs {
        until(db, run.run_id, |info| info.state == RunState::Waiting).await;
        db.run(run.run_id).signal("go", &()).await.unwrap();
    }
    for run in &runs {
        until(db, run.run_id, |info| info.state == RunState::Completed).await;
    }
    let steps = "select string_agg(distinct job || ' ' || key, ', ' order by job || ' ' || key)
                 from runledger.run join runledger.step using (run_id) where key not like 'signal%'";
    let expected = "versioned pack, versioned send, versioned@2 hand-over, versioned@2 weigh";
    assert_eq!(scalar::<String>(db, steps).await, expected);
    let served =
        "select count(distinct (job, worker_id)) from runledger.run join runledger.outcome using (run_id)";
    assert_eq!(scalar::<i64>(db, served).await, 2, "each version by one process");
}
