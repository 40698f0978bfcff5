//! Deliberate defects: the kit finds each, and names the fault that shows it.

use std::collections::HashSet;
use std::sync::{LazyLock, Mutex};
use std::time::Duration;

use runledger::RunState;
use runledger::prelude::*;
use runledger::testing::{CrashError, Testing};
use uuid::Uuid;

const TABLE: &str = "create table booking (what text not null)";

async fn insert(db: &Db, what: &str) -> Result<()> {
    sqlx::query("insert into booking values ($1)").bind(what).execute(db.pool()).await?;
    Ok(())
}

async fn n_booked(db: &Db) -> i64 {
    sqlx::query_scalar("select count(*) from booking").fetch_one(db.pool()).await.unwrap()
}

#[job]
async fn nothing() -> Result<()> {
    Ok(())
}

/// Has a side effect between steps, which a replay repeats.
#[workflow(allow(io))]
async fn effect_outside_a_step(wf: &Wf, #[inject] db: &Db) -> Result<()> {
    wf.run(nothing().key("before")).await?;
    sqlx::query("insert into booking values ('sale')").execute(db.pool()).await?;
    wf.run(nothing().key("after")).await?;
    Ok(())
}

/// A step without an idempotency key for its effect. Each execution repeats the effect.
#[job]
async fn book_anew(#[inject] db: &Db) -> Result<()> {
    insert(db, "sale").await
}

#[workflow]
async fn step_that_is_not_idempotent(wf: &Wf) -> Result<()> {
    Ok(wf.run(book_anew()).await?)
}

static SEEN: LazyLock<Mutex<HashSet<Uuid>>> = LazyLock::new(Mutex::default);

/// Branches on a value that only this process knows.
#[workflow]
async fn decides_on_what_is_not_recorded(wf: &Wf) -> Result<()> {
    let is_first = SEEN.lock().unwrap().insert(wf.run_id());
    wf.run(nothing().key(if is_first { "one way" } else { "another way" })).await?;
    wf.run(nothing().key("end")).await?;
    Ok(())
}

/// Returns a different result in each execution, although every step is unchanged.
#[workflow]
async fn result_that_is_not_recorded(wf: &Wf) -> Result<usize> {
    let n = n_times(wf.run_id());
    wf.run(nothing()).await?;
    Ok(n)
}

/// Returns how often this process has called this function with the id.
fn n_times(run_id: Uuid) -> usize {
    static TIMES: LazyLock<Mutex<Vec<Uuid>>> = LazyLock::new(Mutex::default);
    let mut times = TIMES.lock().unwrap();
    times.push(run_id);
    times.iter().filter(|it| **it == run_id).count()
}

async fn kit() -> Testing {
    let test = Testing::new().await.unwrap().provide_with(Clone::clone);
    sqlx::raw_sql(TABLE).execute(test.db().pool()).await.unwrap();
    test
}

fn broken(error: CrashError) -> (String, String, String) {
    let text = error.to_string();
    match error {
        CrashError::Broken { fault, problem, .. } => (fault, problem, text),
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn side_effect_outside_step_is_detected() {
    let test = kit().await.with(jobs![effect_outside_a_step, nothing]);
    let error = test
        .crash_everywhere(effect_outside_a_step())
        .invariant(|end| async move {
            assert_eq!(n_booked(end.db()).await, 1, "one booking");
            Ok(())
        })
        .await
        .unwrap_err();
    let (fault, problem, text) = broken(error);
    assert!(problem.contains("one booking"), "{problem}");
    assert!(text.contains(&format!("RUNLEDGER_CRASH_ONLY='{fault}'")), "{text}");
}

#[tokio::test]
async fn invariant_error_is_reported_with_its_cause() {
    let test = kit().await.with(jobs![nothing]);
    let error = test
        .crash_everywhere(nothing())
        .invariant(|_| async {
            Err(anyhow::Error::msg("the bank is closed").context("the books cannot be checked"))?
        })
        .await
        .unwrap_err();
    assert!(error.to_string().contains("the books cannot be checked: the bank is closed"), "{error}");
}

#[tokio::test]
async fn non_idempotent_step_is_detected() {
    let test = kit().await.with(jobs![step_that_is_not_idempotent, book_anew]);
    let once = |end: runledger::testing::Ended<()>| async move {
        let n = n_booked(end.db()).await;
        if n == 1 { Ok(()) } else { Err(format!("{n} bookings"))? }
    };
    for fault in [
        "killed before the commit of step `book_anew`",
        "delivered step `book_anew` twice",
        "stalled in step `book_anew` past its lease",
    ] {
        let error = test.crash_everywhere(step_that_is_not_idempotent()).invariant(once).only(fault);
        let (met, problem, _) = broken(error.await.unwrap_err());
        assert_eq!((met.as_str(), problem.as_str()), (fault, "the invariant does not hold: 2 bookings"));
    }
    let survived = test.crash_everywhere(step_that_is_not_idempotent()).invariant(once);
    let survived = survived.only("killed after the commit of step `book_anew`").await.unwrap();
    assert_eq!(survived.n_crashes(), 1, "recorded, it is not run again");
}

#[tokio::test]
async fn branch_on_unrecorded_value_is_detected() {
    let test = kit().await.with(jobs![decides_on_what_is_not_recorded, nothing]);
    let error = test.crash_everywhere(decides_on_what_is_not_recorded()).await.unwrap_err();
    let (_, problem, _) = broken(error);
    assert!(problem.starts_with("the run is blocked: "), "{problem}");
    assert!(problem.contains("nothing[one way]") && problem.contains("nothing[another way]"), "{problem}");
}

#[tokio::test]
async fn result_changed_by_replay_is_detected() {
    let test = kit().await.with(jobs![result_that_is_not_recorded, nothing]);
    let error = test.crash_everywhere(result_that_is_not_recorded()).await.unwrap_err();
    let (_, problem, _) = broken(error);
    assert_eq!(problem, "the run is completed with 2, and without a fault it was completed with 1");
}

#[workflow]
async fn never_the_same(wf: &Wf) -> Result<Uuid> {
    Ok(wf.uuid())
}

#[workflow]
async fn waits_for_ever(wf: &Wf) -> Result<()> {
    wf.run(nothing()).await?;
    Err(Error::terminal("refused"))
}

#[tokio::test]
async fn difference_without_fault_is_not_attributed_to_crash() {
    let test = kit().await.with(jobs![never_the_same]);
    let error = test.crash_everywhere(never_the_same()).await.unwrap_err().to_string();
    assert!(error.starts_with("`never_the_same` without any fault: "), "{error}");
    assert!(error.contains("two runs without a fault differ already"), "{error}");
}

#[tokio::test]
async fn workflow_failure_without_fault_is_reported() {
    let test = kit().await.with(jobs![waits_for_ever, nothing]);
    let error = test.crash_everywhere(waits_for_ever()).await.unwrap_err();
    assert!(matches!(error, CrashError::WithoutFault { .. }), "{error:?}");
    let said = error.to_string();
    assert!(said.starts_with("`waits_for_ever` without any fault: the run is failed with "), "{said}");
    assert!(said.contains("refused") && said.contains("`.expect_state(RunState::Failed)`"), "{said}");
}

/// An invariant on rows alone also holds for a workflow that does nothing.
#[tokio::test]
async fn workflow_failure_without_fault_is_reported_despite_invariant() {
    let test = kit().await.with(jobs![waits_for_ever, nothing]);
    let at_most_one = |end: runledger::testing::Ended<()>| async move {
        assert!(n_booked(end.db()).await <= 1);
        Ok(())
    };
    let error = test.crash_everywhere(waits_for_ever()).invariant(at_most_one).await.unwrap_err();
    assert!(matches!(error, CrashError::WithoutFault { .. }), "{error:?}");
}

#[tokio::test]
async fn expected_failure_survives_crashes_and_invariant_may_demand_more() {
    let test = kit().await.with(jobs![waits_for_ever, nothing]);
    let crashes = test.crash_everywhere(waits_for_ever()).expect_state(RunState::Failed);
    assert!(crashes.await.unwrap().n_crashes() > 8);
    let wants = test.crash_everywhere(waits_for_ever()).expect_state(RunState::Failed);
    let wants = wants.invariant(|end| async move {
        end.result().unwrap();
        Ok(())
    });
    let error = wants.await.unwrap_err().to_string();
    assert!(
        error.starts_with("`waits_for_ever` without any fault: the invariant does not hold: "),
        "{error}"
    );
}

#[tokio::test]
async fn missing_expected_failure_is_reported() {
    let test = kit().await.with(jobs![nothing]);
    let error = test.crash_everywhere(nothing()).expect_state(RunState::Failed).await.unwrap_err();
    let said = error.to_string();
    assert!(
        said.contains("without any fault: the run is completed with null, and it had to be failed"),
        "{said}"
    );
}

/// Fails if its process has started it twice.
#[workflow]
async fn fails_when_it_is_replayed(wf: &Wf) -> Result<()> {
    wf.run(nothing()).await?;
    if n_times(wf.run_id()) > 1 { Err(Error::terminal("replayed")) } else { Ok(()) }
}

#[tokio::test]
async fn run_failure_only_after_crash_is_detected_despite_invariant() {
    let test = kit().await.with(jobs![fails_when_it_is_replayed, nothing]);
    let crashes = test.crash_everywhere(fails_when_it_is_replayed()).invariant(|_| async { Ok(()) });
    let (_, problem, _) = broken(crashes.await.unwrap_err());
    assert!(
        problem.starts_with("the run is failed with ") && problem.contains("it was completed"),
        "{problem}"
    );
}

#[tokio::test]
async fn fault_count_is_limited_and_unknown_fault_lists_known_ones() {
    let test = kit().await.with(jobs![waits_for_ever, nothing]);
    let fails_always = || test.crash_everywhere(waits_for_ever()).expect_state(RunState::Failed);
    let some = fails_always().at_most(3).seed(7).await.unwrap();
    assert_eq!((some.n_crashes() + some.n_missed(), some.n_left_out() > 5), (3, true));
    let error = fails_always().only("no such fault").await.unwrap_err().to_string();
    assert!(error.contains("killed before the commit of step `nothing`"), "{error}");
}

#[tokio::test]
async fn crash_test_with_existing_runs_is_refused() {
    let test = kit().await.with(jobs![nothing]);
    test.start(nothing()).await.unwrap().result().await.unwrap();
    assert!(matches!(test.crash_everywhere(nothing()).await, Err(CrashError::Setup { .. })));
}

#[workflow]
async fn waits_for_a_signal(wf: &Wf) -> Result<bool> {
    Ok(wf.signal("never").await?)
}

#[workflow]
async fn leaves_a_child_that_waits(wf: &Wf) -> Result<()> {
    let _left = wf.start(waits_for_a_signal()).await?;
    Ok(())
}

#[tokio::test]
async fn abandoned_child_that_never_ends_is_reported() {
    let test = Testing::new().await.unwrap().with(jobs![leaves_a_child_that_waits, waits_for_a_signal]);
    let error = test.crash_everywhere(leaves_a_child_that_waits()).await.unwrap_err();
    assert!(matches!(error, CrashError::WithoutFault { .. }), "{error:?}");
    let said = error.to_string();
    assert!(
        said.contains("the run is completed, but 1 of the runs that it started have not ended"),
        "{said}"
    );
}

#[job]
async fn enqueues(#[inject] tx: &mut Tx) -> Result<()> {
    decides_on_what_is_not_recorded().enqueue(tx).await?;
    Ok(())
}

#[workflow]
async fn enqueues_a_run_that_blocks(wf: &Wf) -> Result<()> {
    Ok(wf.run(enqueues()).await?)
}

#[tokio::test]
async fn enqueued_run_blocked_by_crash_is_reported() {
    let jobs = jobs![enqueues_a_run_that_blocks, enqueues, decides_on_what_is_not_recorded, nothing];
    let test = Testing::new().await.unwrap().with(jobs);
    let (_, problem, _) = broken(test.crash_everywhere(enqueues_a_run_that_blocks()).await.unwrap_err());
    let said = "a run of `decides_on_what_is_not_recorded` that it has enqueued is blocked with";
    assert!(problem.starts_with(said), "{problem}");
}

/// Each run has a different key.
#[workflow]
async fn step_that_is_not_idempotent_under_a_random_key(wf: &Wf) -> Result<()> {
    Ok(wf.run(book_anew().key(wf.uuid())).await?)
}

#[tokio::test]
async fn step_with_random_key_meets_its_faults() {
    let test = kit().await.with(jobs![step_that_is_not_idempotent_under_a_random_key, book_anew]);
    let crashes = test.crash_everywhere(step_that_is_not_idempotent_under_a_random_key());
    let crashes = crashes.invariant(|end| async move {
        assert_eq!(n_booked(end.db()).await, 1, "one booking");
        Ok(())
    });
    let (fault, ..) = broken(crashes.await.unwrap_err());
    assert!(fault.contains("`book_anew[*]`"), "{fault}");
}

#[workflow]
async fn two_steps_with_uuids(wf: &Wf) -> Result<()> {
    wf.run(nothing().key(Uuid::from_u128(1))).await?;
    wf.run(nothing().key(Uuid::from_u128(2))).await?;
    Ok(())
}

#[tokio::test]
async fn each_step_with_uuid_key_is_delivered_twice() {
    let test = kit().await.with(jobs![two_steps_with_uuids, nothing]);
    let error = test.crash_everywhere(two_steps_with_uuids()).only("none").await.unwrap_err().to_string();
    for name in ["delivered step `nothing[*]` twice", "delivered step `nothing[*] (number 2)` twice"] {
        assert!(error.contains(name), "{error}");
    }
    let crashes = test.crash_everywhere(two_steps_with_uuids()).await.unwrap();
    assert_eq!(crashes.n_missed(), 0, "{crashes}");
}

#[workflow]
async fn repeats_itself(wf: &Wf) -> Result<()> {
    loop {
        wf.sleep(Duration::from_hours(24)).await?;
    }
}

#[job]
async fn enqueues_what_goes_on(#[inject] tx: &mut Tx) -> Result<()> {
    repeats_itself().enqueue(&mut *tx).await?;
    decides_on_what_is_not_recorded().enqueue(tx).await?;
    Ok(())
}

#[workflow]
async fn enqueues_runs_that_go_on(wf: &Wf) -> Result<()> {
    Ok(wf.run(enqueues_what_goes_on()).await?)
}

/// One enqueued run never ends, and another worker would serve the other.
#[tokio::test]
async fn unfinished_enqueued_runs_are_not_reported() {
    let test = kit().await.with(jobs![enqueues_runs_that_go_on, enqueues_what_goes_on, repeats_itself]);
    let crashes = test.crash_everywhere(enqueues_runs_that_go_on()).await.unwrap();
    assert!(crashes.n_crashes() > 5, "{crashes}");
}

/// Runs a test of this program again, with an environment variable.
async fn again_with(test: &str, variable: &str, value: &str) {
    let mut again = tokio::process::Command::new(std::env::current_exe().unwrap());
    let output = again.args(["--exact", test]).env(variable, value).output().await.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

#[tokio::test]
async fn environment_variable_overrides_fault_chosen_by_test() {
    const OTHER: &str = "no such fault";
    if std::env::var("RUNLEDGER_CRASH_ONLY").as_deref() != Ok(OTHER) {
        let test = "planted::environment_variable_overrides_fault_chosen_by_test";
        return again_with(test, "RUNLEDGER_CRASH_ONLY", OTHER).await;
    }
    let test = kit().await.with(jobs![nothing]);
    let error = test.crash_everywhere(nothing()).only("commit").await.unwrap_err();
    assert!(matches!(&error, CrashError::NoSuchFault { only, .. } if only == OTHER), "{error:?}");
}

#[tokio::test]
async fn environment_variable_overrides_seed_chosen_by_test() {
    const OTHER: &str = "no number";
    if std::env::var("RUNLEDGER_CRASH_SEED").as_deref() != Ok(OTHER) {
        let test = "planted::environment_variable_overrides_seed_chosen_by_test";
        return again_with(test, "RUNLEDGER_CRASH_SEED", OTHER).await;
    }
    let test = kit().await.with(jobs![nothing]);
    let error = test.crash_everywhere(nothing()).seed(1).await.unwrap_err();
    assert!(matches!(&error, CrashError::Seed { value } if value == OTHER), "{error:?}");
}
