//! Reruns and forks of runs with encrypted payloads, which are bound to their run.

use runledger::prelude::*;
use runledger::{ClientError, RunState};
use runledger_tests::Fixture;
use runledger_tests::rows::{execute, scalar, soon, until, worker};

use crate::words::{codec, fails_with, jobs, run_everything, sealed, tells, untells};

const SWITCH: &str = "create table switch (is_on boolean); insert into switch values (false)";

/// Fails until it is switched on.
#[job(max_attempts = 1)]
async fn may_fail(word: String, #[inject] tx: &mut Tx) -> Result<String> {
    let is_on: bool = sqlx::query_scalar("select is_on from switch").fetch_one(&mut **tx).await?;
    if is_on { Ok(word) } else { Err(format!("not {word} yet").into()) }
}

/// Has a failed step that it handles, a child that fails at first, and two signals, of which the
/// last is not yet consumed when it fails.
#[workflow]
async fn tries(wf: &Wf, word: String) -> Result<String> {
    let told = wf.run(tells(word.clone())).await?;
    assert!(wf.run(fails_with(told.clone())).await.is_err());
    let sent: String = wf.signal("word").await?;
    let child = wf.start(may_fail(sent)).await?;
    let given = child.result().await?;
    let left: String = wf.signal("word").await?;
    Ok(format!("{told} {given} {left}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn encrypted_run_is_revived_with_steps_child_and_signals() {
    let Fixture { db, database: _database } = sealed().await;
    execute(&db, SWITCH).await;
    let handle = tries("abc".into()).enqueue(&db).await.unwrap();
    for word in ["def", "ghi"] {
        handle.signal("word", word).await.unwrap();
    }
    let worker = worker(&db, jobs![tries, tells, fails_with, may_fail]).await;
    assert!(soon(handle.result()).await.is_err());
    execute(&db, "update switch set is_on = true").await;
    let revived = handle.revive(RunState::Failed).await.unwrap();
    assert_eq!(soon(revived.result()).await.unwrap(), "abc def ghi");
    let steps = revived.steps().await.unwrap();
    let failed = steps.iter().find(|step| step.key == "fails_with").unwrap();
    assert_eq!(failed.result.as_ref().unwrap_err().message, "no abc");
    assert!(steps.iter().filter(|step| step.claim == 0).count() >= 4, "they are taken over: {steps:?}");
    worker.stop().await;
}

/// Records progress, and fails for good in its first run.
#[job(max_attempts = 1)]
async fn comes_to(word: String, #[inject] context: &Context) -> Result<String> {
    match context.last_progress::<String>().await? {
        Some(said) => Ok(said),
        None => {
            context.progress(&word).await?;
            Err(Error::terminal("not yet"))
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn revived_job_keeps_encrypted_progress() {
    let Fixture { db, database: _database } = sealed().await;
    let worker = worker(&db, jobs![comes_to]).await;
    let handle = comes_to("abc".into()).enqueue(&db).await.unwrap();
    assert!(soon(handle.result()).await.is_err());
    let revived = handle.revive(RunState::Failed).await.unwrap();
    assert_eq!(soon(revived.result()).await.unwrap(), "abc");
    let plain = "select count(*) from runledger.progress where value ->> '$sealed' is null";
    assert_eq!(scalar::<i64>(&db, plain).await, 0);
    worker.stop().await;
}

/// Compensates a step, and then may fail.
#[workflow]
async fn turns_back(wf: &Wf, word: String) -> Result<String> {
    let saga = wf.saga();
    let told = saga.run(tells(word.clone()), |told| untells(told.clone())).await?;
    saga.compensate().await;
    wf.run(may_fail(told)).await?;
    saga_of_a_fork(wf, word).await
}

/// A fork compensates this step although its origin did not.
async fn saga_of_a_fork(wf: &Wf, word: String) -> Result<String> {
    let saga = wf.saga();
    let told = saga.run(tells(word).key("kept"), |told| untells(told.clone())).await?;
    if wf.run(is_switched_on()).await? {
        saga.compensate().await;
    }
    Ok(told)
}

#[job]
async fn is_switched_on(#[inject] tx: &mut Tx) -> Result<bool> {
    Ok(sqlx::query_scalar("select is_on from switch").fetch_one(&mut **tx).await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn encrypted_compensations_carry_over_to_revived_run_and_fork() {
    let Fixture { db, database: _database } = sealed().await;
    execute(&db, SWITCH).await;
    let worker = worker(&db, jobs![turns_back, tells, untells, may_fail, is_switched_on]).await;
    let handle = turns_back("abc".into()).enqueue(&db).await.unwrap();
    assert!(soon(handle.result()).await.is_err());
    execute(&db, "update switch set is_on = true").await;
    let revived = handle.revive(RunState::Failed).await.unwrap();
    assert_eq!(soon(revived.result()).await.unwrap(), "abc");
    let keys = |steps: Vec<runledger::StepInfo>| steps.into_iter().map(|step| step.key).collect::<Vec<_>>();
    let undone = |keys: &[String]| keys.iter().filter(|key| key.starts_with("compensate[")).count();
    assert_eq!(undone(&keys(revived.steps().await.unwrap())), 2, "one of its own");
    execute(&db, "update switch set is_on = false").await;
    let again = revived.fork("tells[kept]").await.unwrap();
    assert_eq!(soon(again.result()).await.unwrap(), "abc");
    execute(&db, "update switch set is_on = true").await;
    let fork = again.fork("is_switched_on").await.unwrap();
    assert_eq!(soon(fork.result()).await.unwrap(), "abc");
    assert_eq!(undone(&keys(fork.steps().await.unwrap())), 2, "one that was given to it with its step");
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn encrypted_run_forks_and_reruns_across_continue_as_new() {
    let Fixture { db, database: _database } = sealed().await;
    let worker = worker(&db, jobs()).await;
    let handle = run_everything(&db, "abc", true).await;
    let fork = handle.fork("signal[word]").await.unwrap();
    assert_eq!(soon(fork.result()).await.unwrap(), "abc");
    assert_eq!(fork.query::<String>("state").await.unwrap().as_deref(), Some("abc"));
    let again = handle.rerun().await.unwrap();
    for _ in 0..2 {
        again.signal("word", "abc").await.unwrap();
    }
    assert_eq!(soon(again.result()).await.unwrap(), "abc");
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn client_without_codec_cannot_rerun_encrypted_run() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let sealed = db.clone().with_codec(codec());
    let worker = worker(&sealed, jobs()).await;
    let handle = tells("abc".into()).enqueue(&sealed).await.unwrap();
    soon(handle.result()).await.unwrap();
    let error = handle.with_db(&db).rerun().await.unwrap_err();
    assert!(matches!(error, ClientError::Unreadable { .. }), "{error}");
    assert_eq!(scalar::<i64>(&db, "select count(*) from runledger.run").await, 1);
    let again = handle.rerun().await.unwrap();
    assert_eq!(soon(again.result()).await.unwrap(), "abc");
    worker.stop().await;
    // A payload that only looks encrypted is copied unchanged.
    let call = tells("\"$sealed\"".into()).enqueue(&db).await.unwrap();
    call.cancel("not needed").await.unwrap();
    until(&db, call.id(), |info| info.state == RunState::Cancelled).await;
    assert!(call.rerun().await.unwrap().created());
}
