//! Compensations: the jobs of the recorded calls, in runs that continue and in runs that
//! compensate.

use runledger::prelude::*;
use runledger::{ClientError, FailureKind, History, RunState, Verdict, assert_replays};
use runledger_tests::rows::{soon, until, worker};
use runledger_tests::{Fixture, eventually};

use super::stage::{self, Case, Expected, add, asleep, by_name, changes, definition, held, quick};
use super::steps::renamed;

/// The old jobs of compensations.
mod before {
    use super::stage;
    use runledger::prelude::*;

    /// Defines jobs with one number as their parameter.
    macro_rules! jobs_of_a_number {
        ($($function:ident $name:literal)*) => {
            $(#[job(name = $name)]
            pub async fn $function(n: u64) -> Result<u64> {
                Ok(n)
            })*
        };
    }
    jobs_of_a_number! {
        kept "verify.unbook.kept"
        aliased "verify.unbook.aliased"
        taking_more "verify.unbook.taking_more"
        accepted "verify.unbook.accepted"
        done "verify.unbook.done"
        moved "verify.unbook.moved"
        gone "verify.unbook.gone"
        retyped "verify.unbook.retyped"
        needing_more "verify.unbook.needing_more"
        newer "verify.unbook.newer"
        grown "verify.unbook.grown"
    }

    /// Defines jobs that never end, so that a step stays uncompensated.
    macro_rules! jobs_that_hang {
        ($($function:ident $name:literal)*) => {
            $(#[job(name = $name)]
            pub async fn $function(n: u64, #[inject] context: &Context) -> Result<u64> {
                stage::gate_of(context.run_id()).add_permits(1);
                std::future::pending::<()>().await;
                Ok(n)
            })*
        };
    }
    jobs_that_hang! {
        hanging "verify.unbook.hanging"
        hanging_gone "verify.unbook.hanging_gone"
        hanging_retyped "verify.unbook.hanging_retyped"
    }
}

/// The new jobs of compensations.
mod after {
    use super::asleep;
    use runledger::prelude::*;

    #[job(name = "verify.unbook.kept")]
    pub async fn kept(n: u64) -> Result<u64> {
        Ok(n)
    }
    #[job(name = "verify.unbook.by_its_new_name", aliases = ["verify.unbook.aliased"])]
    pub async fn aliased(n: u64) -> Result<u64> {
        Ok(n)
    }
    #[job(name = "verify.unbook.taking_more")]
    pub async fn taking_more(n: u64, #[default] why: String) -> Result<usize> {
        let _ = n;
        Ok(why.len())
    }
    #[job(name = "verify.unbook.accepted", version = 2, accepts = [1])]
    pub async fn accepted(n: u64) -> Result<u64> {
        Ok(n)
    }
    #[job(name = "verify.unbook.moved_away")]
    pub async fn moved(n: u64) -> Result<u64> {
        Ok(n)
    }
    #[job(name = "verify.unbook.retyped")]
    pub async fn retyped(n: String, #[inject] tx: &mut Tx) -> Result<usize> {
        sqlx::query("select 1").execute(&mut **tx).await?;
        Ok(n.len())
    }
    #[job(name = "verify.unbook.needing_more")]
    pub async fn needing_more(n: u64, why: String) -> Result<usize> {
        let _ = n;
        Ok(why.len())
    }
    #[job(name = "verify.unbook.newer", version = 2)]
    pub async fn newer(n: u64) -> Result<u64> {
        Ok(n)
    }
    #[workflow(name = "verify.unbook.grown")]
    pub async fn grown(wf: &Wf, n: u64) -> Result<u64> {
        asleep(wf).await?;
        Ok(n)
    }
    #[job(name = "verify.unbook.hanging")]
    pub async fn hanging(n: u64) -> Result<u64> {
        Ok(n)
    }
    #[job(name = "verify.unbook.hanging_retyped")]
    pub async fn hanging_retyped(n: String) -> Result<usize> {
        Ok(n.len())
    }
}

/// The jobs of the old code.
pub fn before() -> impl Iterator<Item = &'static runledger::Definition> {
    use before::{
        accepted, aliased, done, gone, grown, hanging, hanging_gone, hanging_retyped, kept, moved,
        needing_more, newer, retyped, taking_more,
    };
    jobs![
        accepted,
        aliased,
        done,
        gone,
        grown,
        hanging,
        hanging_gone,
        hanging_retyped,
        kept,
        moved,
        needing_more,
        newer,
        retyped,
        taking_more
    ]
    .into_iter()
}

/// The jobs of the new code.
pub fn after() -> impl Iterator<Item = &'static runledger::Definition> {
    use after::{
        accepted, aliased, grown, hanging, hanging_retyped, kept, moved, needing_more, newer, retyped,
        taking_more,
    };
    jobs![
        accepted,
        aliased,
        grown,
        hanging,
        hanging_retyped,
        kept,
        moved,
        needing_more,
        newer,
        retyped,
        taking_more
    ]
    .into_iter()
}

// With the new code, each run fails where it continues, and compensates.
changes! {
    an_undo_of_the_same_job({}) Fine
    old (wf: &Wf) { wf.saga().run(quick(1), |n| before::kept(*n)).await?; held(wf, "c").await }
    new (wf: &Wf) { wf.saga().run(quick(1), |n| after::kept(*n)).await?; Err("no more".into()) }

    a_job_that_can_be_undone_renamed_with_an_alias({}) Fine
    old (wf: &Wf) { wf.saga().run(renamed::before(1), |n| before::kept(*n)).await?; held(wf, "c").await }
    new (wf: &Wf) { wf.saga().run(renamed::after(1), |n| after::kept(*n)).await?; Err("no more".into()) }

    an_undo_of_a_job_renamed_with_an_alias({}) Fine
    old (wf: &Wf) { wf.saga().run(quick(1), |n| before::aliased(*n)).await?; held(wf, "c").await }
    new (wf: &Wf) { wf.saga().run(quick(1), |n| after::aliased(*n)).await?; Err("no more".into()) }

    an_undo_of_a_job_that_takes_more_with_a_default({}) Fine
    old (wf: &Wf) { wf.saga().run(quick(1), |n| before::taking_more(*n)).await?; held(wf, "c").await }
    new (wf: &Wf) {
        wf.saga().run(quick(1), |n| after::taking_more(*n, String::new())).await?;
        Err("no more".into())
    }

    an_undo_of_a_version_that_the_new_one_accepts({}) Fine
    old (wf: &Wf) { wf.saga().run(quick(1), |n| before::accepted(*n)).await?; held(wf, "c").await }
    new (wf: &Wf) { wf.saga().run(quick(1), |n| after::accepted(*n)).await?; Err("no more".into()) }

    an_undo_that_the_code_does_not_ask_for_any_more({}) Fine
    old (wf: &Wf) { wf.saga().run(quick(1), |n| before::kept(*n)).await?; held(wf, "c").await }
    new (wf: &Wf) { wf.run(quick(1)).await?; Err("no more".into()) }

    an_undo_that_is_done_by_a_job_that_is_gone({}) Fine
    old (wf: &Wf) {
        let saga = wf.saga();
        saga.run(quick(1), |n| before::done(*n)).await?;
        saga.compensate().await;
        held(wf, "c").await
    }
    new (wf: &Wf) {
        let saga = wf.saga();
        saga.run(quick(1), |n| after::kept(*n)).await?;
        saga.compensate().await;
        Err("no more".into())
    }

    an_undo_under_way_by_the_same_job({}) Fine
    old (wf: &Wf) { wf.saga().run(quick(1), |n| before::hanging(*n)).await?; Err("no more".into()) }
    new (wf: &Wf) { wf.saga().run(quick(1), |n| after::hanging(*n)).await?; Err("no more".into()) }

    an_undo_of_a_job_renamed({}) Breaks("compensate[quick]", "no code for job `verify.unbook.moved`")
    old (wf: &Wf) { wf.saga().run(quick(1), |n| before::moved(*n)).await?; held(wf, "c").await }
    new (wf: &Wf) { wf.saga().run(quick(1), |n| after::moved(*n)).await?; Err("no more".into()) }

    an_undo_of_a_job_that_is_gone({}) Breaks("compensate[quick]", "no code for job `verify.unbook.gone`")
    old (wf: &Wf) { wf.saga().run(quick(1), |n| before::gone(*n)).await?; held(wf, "c").await }
    new (wf: &Wf) { wf.run(quick(1)).await?; Err("no more".into()) }

    an_undo_in_the_code_by_a_job_that_is_gone({}) Breaks("compensate[quick]", "no code for job `verify.unbook.gone`")
    old (wf: &Wf) { wf.saga().run(quick(1), |n| before::gone(*n)).await?; held(wf, "c").await }
    new (wf: &Wf) {
        let saga = wf.saga();
        saga.run(quick(1), |n| after::kept(*n)).await?;
        saga.compensate().await;
        Ok(0)
    }

    an_undo_of_another_type({}) Breaks("compensate[quick]", "the value at `$.n` does not fit its type")
    old (wf: &Wf) { wf.saga().run(quick(1), |n| before::retyped(*n)).await?; held(wf, "c").await }
    new (wf: &Wf) { wf.saga().run(quick(1), |n| after::retyped(n.to_string())).await?; Err("no more".into()) }

    an_undo_that_needs_more({}) Breaks("compensate[quick]", "argument `why` is missing")
    old (wf: &Wf) { wf.saga().run(quick(1), |n| before::needing_more(*n)).await?; held(wf, "c").await }
    new (wf: &Wf) {
        wf.saga().run(quick(1), |n| after::needing_more(*n, String::new())).await?;
        Err("no more".into())
    }

    an_undo_of_a_version_that_is_gone({}) Breaks("compensate[quick]", "no code for version 1 of job `verify.unbook.newer`")
    old (wf: &Wf) { wf.saga().run(quick(1), |n| before::newer(*n)).await?; held(wf, "c").await }
    new (wf: &Wf) { wf.saga().run(quick(1), |n| after::newer(*n)).await?; Err("no more".into()) }

    an_undo_that_is_a_workflow_now({}) Breaks("compensate[quick]", "workflow `verify.unbook.grown` cannot compensate a step")
    old (wf: &Wf) { wf.saga().run(quick(1), |n| before::grown(*n)).await?; held(wf, "c").await }
    new (wf: &Wf) { wf.run(quick(1)).await?; Err("no more".into()) }

    an_undo_under_way_by_a_job_that_is_gone({}) Breaks("compensate[quick]", "no code for job `verify.unbook.hanging_gone`")
    old (wf: &Wf) { wf.saga().run(quick(1), |n| before::hanging_gone(*n)).await?; Err("no more".into()) }
    new (wf: &Wf) { wf.run(quick(1)).await?; Err("no more".into()) }

    an_undo_under_way_of_another_type({}) Breaks("compensate[quick]", "the value at `$.n` does not fit its type")
    old (wf: &Wf) { wf.saga().run(quick(1), |n| before::hanging_retyped(*n)).await?; Err("no more".into()) }
    new (wf: &Wf) {
        wf.saga().run(quick(1), |n| after::hanging_retyped(n.to_string())).await?;
        Err("no more".into())
    }
}

/// Checks that a run of this case compensates and fails with the new code, or is parked as it
/// compensates.
pub async fn assert_undone_or_parked(db: &Db, case: &Case, run_id: uuid::Uuid) {
    let state = async || db.run(run_id).info().await.unwrap();
    let info = eventually(state, |info| matches!(info.state, RunState::Blocked | RunState::Failed)).await;
    let expected = if case.expected == Expected::Fine { RunState::Failed } else { RunState::Blocked };
    assert_eq!(info.state, expected, "{}: {:?}", case.name, info.error);
    if let Expected::Breaks(step, _) = case.expected {
        let failure = info.error.unwrap();
        assert!(info.compensating || failure.kind == FailureKind::Setup, "{}: {failure}", case.name);
        assert!(failure.message.contains(step), "{}: {failure}", case.name);
    }
}

/// A workflow that books a car and a room with compensations, and then ends as `then` says.
macro_rules! books {
    ($code:ident $step:literal $unroom:literal ($room:ty) $undo:expr) => {
        mod $code {
            use super::{add, asleep, quick};
            use runledger::prelude::*;

            #[job(name = "verify.uncar")]
            pub async fn uncar(n: u64) -> Result<u64> {
                Ok(n)
            }
            #[job(name = $unroom)]
            pub async fn unroom(room: $room) -> Result<bool> {
                Ok(format!("{room:?}").is_empty())
            }
            #[workflow(name = "verify.books")]
            pub async fn books(wf: &Wf, then: String) -> Result<u64> {
                let (cars, rooms) = (wf.saga(), wf.saga());
                cars.run(quick(1).key($step), |n| uncar(*n)).await?;
                rooms.run(add(1, 1), $undo).await?;
                match then.as_str() {
                    "sleeps" => asleep(wf).await?,
                    "compensates one and fails" => {
                        cars.compensate().await;
                        0
                    }
                    _ => 0,
                };
                Err("no more".into())
            }
        }
    };
}
/// All jobs of one variant.
macro_rules! of {
    ($code:ident) => {
        jobs![$code::books, $code::uncar, $code::unroom, add, quick]
    };
}

books! { present "car" "verify.unroom" (u64) |n| unroom(*n) }
books! { of_another_step "bus" "verify.unroom" (u64) |n| unroom(*n) }
books! { of_another_undo "car" "verify.unroom_by_another_name" (u64) |n| unroom(*n) }
books! { of_another_type "car" "verify.unroom" (Vec<u64>) |n| unroom(vec![*n]) }

#[tokio::test(flavor = "multi_thread")]
async fn compensated_history_replays_until_workflow_or_compensation_changes() {
    use present::books;
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, of!(present)).await;
    let mut histories = Vec::new();
    for then in ["fails", "sleeps", "compensates one and fails"] {
        let run = books(then.into()).enqueue(&db).await.unwrap();
        if then == "sleeps" {
            until(&db, run.id(), |info| info.cause.as_deref() == Some("slept")).await;
            run.cancel("not needed").await.unwrap();
        }
        assert!(soon(run.result()).await.is_err());
        histories.push((then, run.export().await.unwrap()));
    }
    worker.stop().await;
    for (then, history) in &histories {
        let state = if *then == "sleeps" { "cancelled" } else { "failed" };
        let undone = |history: &History| {
            history.steps.iter().filter(|step| step.key.starts_with("compensate[")).count()
        };
        assert_eq!((history.state.as_str(), undone(history)), (state, 2), "{then}");
        let present = App::offline().with(of!(present));
        assert_replays(history, &present).await;
        let apps = [
            (App::offline().with(of!(of_another_step)), "quick[car]"),
            (App::offline().with(of!(of_another_undo)), "compensate[add]"),
            (App::offline().with(of!(of_another_type)), "compensate[add]"),
        ];
        for (app, step) in apps {
            let verdict = history.replays(&app).await.unwrap();
            assert!(matches!(verdict, Verdict::Breaks { .. }), "{then}: {verdict}");
            assert_eq!(verdict.step(), Some(step), "{then}: {verdict}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_blocking_compensation_is_finding_and_run_counts_once() {
    use present::books;
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, of!(present)).await;
    let run = books("sleeps".into()).enqueue(&db).await.unwrap();
    until(&db, run.id(), |info| info.cause.as_deref() == Some("slept")).await;
    worker.stop().await;
    let verification = App::new(db.clone()).with(jobs![books, add, quick]).verify().await.unwrap();
    let steps: Vec<_> = verification.findings.iter().map(|found| found.verdict.step()).collect();
    assert_eq!(
        steps,
        [Some("compensate[add]"), Some("compensate[quick[car]]")],
        "in the order of the compensations: {verification}"
    );
    assert_eq!((verification.n_runs, verification.n_replaying), (1, 0));
    assert!(verification.to_string().starts_with("0 of 1 runs in flight replay, 1 do not"), "{verification}");
}

#[tokio::test(flavor = "multi_thread")]
async fn compensating_run_needs_its_job_but_not_matching_code() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![present::books, present::uncar, add, quick]).await;
    let run = present::books("fails".into()).enqueue(&db).await.unwrap();
    let error = soon(run.result()).await.unwrap_err();
    assert!(matches!(error, ClientError::RunBlocked { .. }), "{error}");
    worker.stop().await;
    let app = || App::new(db.clone()).with(jobs![present::uncar, present::unroom]);
    let verification = app().verify().await.unwrap();
    assert_eq!(verification.findings[0].verdict, Verdict::NoCode, "no worker of this program would claim it");
    let verification = app().with(jobs![of_another_step::books]).verify().await.unwrap();
    assert!(verification.is_ok(), "its code is not run any more: {verification}");
}
