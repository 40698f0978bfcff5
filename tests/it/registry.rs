//! Start-up: an error in a program's jobs stops the program before it claims runs, with its
//! location (behaviour 50).
//!
//! The definitions are written by hand: a job that registered itself would stop every worker of
//! this test binary.

use std::process::Stdio;

use runledger::__private::{Inject, Invocation, Location, RunFuture, call};
use runledger::prelude::*;
use runledger::{ClientError, Definition, FailureKind, Job, Timings};
use runledger_tests::{Fixture, PATIENCE};
use tokio::process::Command;

/// Only a provided value of this type would be found.
#[derive(Debug)]
struct Gateway;

/// A job that injects a type which nothing provides.
#[derive(Debug)]
struct Asks;

impl Job for Asks {
    type Output = ();
    const DEFINITION: &'static Definition =
        &defined("registry.asks", "src/asks.rs", 7).injects(const { &[Inject::of::<Gateway>()] });
}

#[workflow]
async fn registry_asks_in_a_step(wf: &Wf) -> Result<()> {
    Ok(wf.run(call::<Asks>(&[])).await?)
}

const fn defined(name: &'static str, file: &'static str, line: u32) -> Definition {
    Definition::job(name, run, Location::new(file, line, 1, "registry"))
}

fn run(invocation: Invocation) -> RunFuture {
    Box::pin(async move {
        match invocation.inject::<Gateway>() {
            Ok(_) => invocation.finish(Ok::<(), Error>(())),
            Err(finished) => finished,
        }
    })
}

/// Returns the error of a worker that does not start. Also checks that it did not register.
async fn refusal(change: impl FnOnce(App) -> App) -> ClientError {
    let Fixture { db, database: _database } = Fixture::new().await;
    let error = change(App::new(db.clone())).start().await.unwrap_err();
    assert!(db.workers().await.unwrap().is_empty(), "a worker registered in spite of: {error}");
    error
}

#[tokio::test]
async fn two_jobs_with_same_name_fail_startup_with_both_locations() {
    const TWINS: [&Definition; 2] =
        [&defined("registry.twin", "src/one.rs", 3), &defined("registry.twin", "src/two.rs", 14)];
    let error = refusal(|app| app.with(TWINS)).await.to_string();
    assert!(
        error.starts_with(
            "two jobs are called `registry.twin`: one at src/one.rs:3:1, one at src/two.rs:14:1"
        )
    );
    assert!(error.ends_with("give one of them another: `#[job(name = \"…\")]`"), "{error}");
}

#[tokio::test]
async fn alias_equal_to_job_name_fails_startup_with_both_locations() {
    const PAIR: [&Definition; 2] = [
        &defined("registry.old", "src/old.rs", 3),
        &defined("registry.new", "src/new.rs", 9).aliases(&["registry.old"]),
    ];
    let error = refusal(|app| app.with(PAIR)).await.to_string();
    for part in ["`registry.old`", "src/old.rs:3:1", "src/new.rs:9:1"] {
        assert!(error.contains(part), "{part} is not in: {error}");
    }
}

#[tokio::test]
async fn job_given_twice_is_registered_once() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let once = defined_once();
    let worker = App::new(db.clone()).with([once, once]).start().await.unwrap();
    assert_eq!(db.workers().await.unwrap()[0].jobs, ["registry.once"]);
    worker.stop().await;
}

fn defined_once() -> &'static Definition {
    const { &defined("registry.once", "src/once.rs", 1) }
}

#[tokio::test]
async fn empty_job_list_fails_startup() {
    let error = refusal(|app| app.with(jobs![])).await.to_string();
    assert!(error.contains("`App::with` was given no job"), "{error}");
}

#[tokio::test]
async fn crate_jobs_are_registered_only_when_program_imports_crate() {
    let unlinked = error_of(env!("CARGO_BIN_EXE_unlinked")).await;
    assert!(unlinked.contains("no jobs are registered in this binary"), "{unlinked}");
    assert!(unlinked.contains("add `use my_jobs as _;` to main.rs"), "{unlinked}");
    let linked = error_of(env!("CARGO_BIN_EXE_linked")).await;
    assert!(linked.contains("job `billing.charge` (tests/macros/compiles/src/charge.rs:"), "{linked}");
}

/// Returns the output of the program, which ends in failure.
async fn error_of(program: &str) -> String {
    let Fixture { db: _db, database } = Fixture::new().await;
    let mut program = Command::new(program);
    program.env("DATABASE_URL", database.url()).stdin(Stdio::null()).kill_on_drop(true);
    let output = tokio::time::timeout(PATIENCE, program.output()).await.unwrap().unwrap();
    assert!(!output.status.success(), "it started");
    String::from_utf8(output.stderr).unwrap()
}

#[tokio::test]
async fn job_with_unprovided_injection_fails_startup_with_location_and_type() {
    let error = refusal(|app| app.with([Asks::DEFINITION]).provide("something else")).await.to_string();
    for part in
        ["job `registry.asks` (src/asks.rs:7:1)", "registry::Gateway`", "add `.provide(…)` to the app"]
    {
        assert!(error.contains(part), "{part} is not in: {error}");
    }
}

#[tokio::test]
async fn provided_value_is_injected_by_type() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let app = App::new(db.clone()).with([Asks::DEFINITION]).provide(Gateway);
    let worker = app.start().await.unwrap();
    call::<Asks>(&[]).enqueue(&db).await.unwrap().result_within(PATIENCE).await.unwrap();
    worker.stop().await;
}

#[tokio::test]
async fn step_of_unserved_job_with_unprovided_injection_fails_without_retry() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let app = App::new(db.clone()).with(jobs![registry_asks_in_a_step]).timings(Timings::FAST);
    let worker = app.start().await.unwrap();
    let run = registry_asks_in_a_step().enqueue(&db).await.unwrap();
    let error = run.result_within(PATIENCE).await.unwrap_err();
    assert!(matches!(error, ClientError::RunFailed { .. }), "{error:?}");
    let [step] = &run.steps().await.unwrap()[..] else { panic!("one step is recorded") };
    let failure = step.result.as_ref().unwrap_err();
    assert_eq!(failure.kind, FailureKind::Setup);
    assert!(failure.message.starts_with("nothing provides a `"), "{failure}");
    // A retried attempt of the step would have a row here.
    let tries = run.attempts().await.unwrap();
    assert!(tries.iter().all(|one| one.step_key.is_empty()), "{tries:?}");
    worker.stop().await;
}

#[tokio::test]
async fn invalid_job_alias_queue_and_worker_names_fail_startup() {
    const JOB: &Definition = &defined("Charge", "src/a.rs", 1);
    const ALIAS: &Definition = &defined("registry.named", "src/a.rs", 1).aliases(&["1st"]);
    const QUEUE: &Definition = &defined("registry.named", "src/a.rs", 1).queue("high priority");
    let served = || defined_once();
    let refusals = [
        (refusal(|app| app.with([JOB])).await, "job `Charge` does not begin with a lower-case letter"),
        (refusal(|app| app.with([ALIAS])).await, "job `1st` does not begin with a lower-case letter"),
        (refusal(|app| app.with([QUEUE])).await, "queue `high priority` has a character that is not allowed"),
        (refusal(|app| app.with([served()]).queues([""])).await, "queue `` is empty"),
        (
            refusal(|app| app.with([served()]).name("a\nb")).await,
            "worker name `a\\nb` has a control character",
        ),
    ];
    for (error, beginning) in refusals {
        assert!(matches!(error, ClientError::Name(_)), "{error:?}");
        assert!(error.to_string().starts_with(beginning), "{error}");
    }
}
