//! Job configuration by operators: bodies read it without a deploy, in the version that the code
//! knows.

use std::collections::BTreeMap;
use std::time::Duration;

use runledger::prelude::*;
use runledger::{ClientError, FailureKind, JobConfig, Verdict};
use runledger_tests::rows::{execute, soon, until, worker};
use runledger_tests::{Fixture, eventually};
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;

/// The old form.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Rate {
    per_second: u32,
}

/// The new form.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Rates {
    per_second: BTreeMap<String, u32>,
}

fn rates(eu: u32) -> Rates {
    Rates { per_second: BTreeMap::from([("eu".to_owned(), eu)]) }
}

#[job(aliases = ["paid"])]
async fn pays_at(#[inject] context: &Context) -> Result<(Option<Rate>, Option<Rates>)> {
    Ok((context.config(1)?, context.config(2)?))
}

/// Returns the configuration that a new run reads.
async fn given(db: &Db) -> (Option<Rate>, Option<Rates>) {
    soon(pays_at().enqueue(db).await.unwrap().result()).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn config_change_takes_effect_on_running_and_starting_workers() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let runs_on = worker(&db, jobs![pays_at]).await;
    assert_eq!(given(&db).await, (None, None));
    assert!(db.set_job_config("pays_at", 1, &Rate { per_second: 5 }).await.unwrap());
    eventually(async || given(&db).await.0, |rate| *rate == Some(Rate { per_second: 5 })).await;
    assert!(!db.set_job_config("pays_at", 1, &Rate { per_second: 5 }).await.unwrap(), "as it was");
    execute(&db, r#"update runledger.config set config = '{"per_second": 6}'"#).await;
    eventually(async || given(&db).await.0, |rate| *rate == Some(Rate { per_second: 6 })).await;
    runs_on.stop().await;

    assert!(db.set_job_config("pays_at", 1, &Rate { per_second: 7 }).await.unwrap());
    let waits = pays_at().enqueue(&db).await.unwrap();
    let starts = worker(&db, jobs![pays_at]).await;
    assert_eq!(soon(waits.result()).await.unwrap(), (Some(Rate { per_second: 7 }), None));
    assert!(db.delete_job_config("pays_at", 1).await.unwrap());
    eventually(async || given(&db).await.0, Option::is_none).await;
    assert!(!db.delete_job_config("pays_at", 1).await.unwrap(), "nothing is stored any more");
    starts.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn config_versions_coexist_under_current_and_former_job_names() {
    let Fixture { db, database: _database } = Fixture::new().await;
    db.set_job_config("paid", 1, &Rate { per_second: 5 }).await.unwrap();
    db.set_job_config("pays_at", 2, &rates(9)).await.unwrap();
    let worker = worker(&db, jobs![pays_at]).await;
    assert_eq!(given(&db).await, (Some(Rate { per_second: 5 }), Some(rates(9))));
    // The present name of the job takes precedence.
    db.set_job_config("pays_at", 1, &Rate { per_second: 6 }).await.unwrap();
    eventually(async || given(&db).await, |given| given.0 == Some(Rate { per_second: 6 })).await;
    assert!(db.delete_job_config("pays_at", 2).await.unwrap());
    eventually(async || given(&db).await, |given| given.1.is_none()).await;

    let stored = db.job_configs().await.unwrap();
    let [of_old_name, of_name] = &stored[..] else { panic!("{stored:?}") };
    let shown = |config: &JobConfig| (config.job.clone(), config.version, config.config.clone());
    assert_eq!(shown(of_old_name), ("paid".to_owned(), 1, r#"{"per_second":5}"#.to_owned()));
    assert_eq!(shown(of_name), ("pays_at".to_owned(), 1, r#"{"per_second":6}"#.to_owned()));
    assert!(of_old_name.changed_at < of_name.changed_at);
    assert_eq!(of_name.value::<Rate>().unwrap(), Rate { per_second: 6 });
    let wrong = of_name.value::<Rates>().unwrap_err();
    assert!(matches!(&wrong, ClientError::DecodeConfig { version: 1, .. }), "{wrong}");
    assert!(!format!("{stored:?}").contains("per_second"), "{stored:?}");
    worker.stop().await;
}

#[job(max_attempts = 1_000_000, backoff = "1ms..10ms")]
async fn pays_when_configured(#[inject] context: &Context) -> Result<u32> {
    let rate: Rate = context.config(1)?.ok_or("nothing is configured")?;
    Ok(rate.per_second)
}

#[tokio::test(flavor = "multi_thread")]
async fn undecodable_config_fails_attempt_with_path_and_retry_rereads_it() {
    let Fixture { db, database: _database } = Fixture::new().await;
    db.set_job_config("pays_when_configured", 1, &rates(9)).await.unwrap();
    let worker = worker(&db, jobs![pays_when_configured]).await;
    let run = pays_when_configured().enqueue(&db).await.unwrap();
    until(&db, run.id(), |info| info.attempt > 1).await;
    let failed = run.attempts().await.unwrap();
    let failure = failed[0].error.as_ref().unwrap();
    assert_eq!(failure.kind, FailureKind::Error);
    assert!(
        failure.message.contains("version 1 of the configuration of job `pays_when_configured`"),
        "{failure}"
    );
    assert!(
        failure.message.contains("does not fit") && failure.message.contains("db.set_job_config"),
        "{failure}"
    );
    assert!(failure.causes.iter().any(|cause| cause.contains("$.per_second")), "{failure}");
    db.set_job_config("pays_when_configured", 1, &Rate { per_second: 5 }).await.unwrap();
    assert_eq!(soon(run.result()).await.unwrap(), 5, "it is no reason to fail for good");
    worker.stop().await;
}

static BEGUN: Semaphore = Semaphore::const_new(0);
static MAY_END: Semaphore = Semaphore::const_new(0);

#[job]
async fn asks_twice(waits: bool, #[inject] context: &Context) -> Result<(Option<Rate>, Option<Rate>)> {
    let first = context.config(1)?;
    if waits {
        BEGUN.add_permits(1);
        MAY_END.acquire().await?.forget();
    }
    Ok((first, context.config(1)?))
}

#[tokio::test(flavor = "multi_thread")]
async fn config_stays_constant_within_attempt() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let [old, new] = [5, 6].map(|per_second| Rate { per_second });
    db.set_job_config("asks_twice", 1, &old).await.unwrap();
    let worker = worker(&db, jobs![asks_twice]).await;
    let slow = asks_twice(true).enqueue(&db).await.unwrap();
    soon(BEGUN.acquire()).await.unwrap().forget();
    db.set_job_config("asks_twice", 1, &new).await.unwrap();
    let ask = async || soon(asks_twice(false).enqueue(&db).await.unwrap().result()).await.unwrap();
    eventually(ask, |given| *given == (Some(new.clone()), Some(new.clone()))).await;
    MAY_END.add_permits(1);
    assert_eq!(soon(slow.result()).await.unwrap(), (Some(old.clone()), Some(old)));
    worker.stop().await;
}

#[workflow]
async fn pays_in_steps(wf: &Wf, #[inject] context: &Context) -> Result<(u32, Option<u32>)> {
    let called = wf.run(pays_when_configured()).await?;
    let own = wf.step("own", || async { context.config::<BTreeMap<String, u32>>(1) }).await?;
    Ok((called, own.and_then(|own| own.get("own").copied())))
}

#[tokio::test(flavor = "multi_thread")]
async fn step_reads_config_of_called_job_and_rereads_on_retry() {
    let Fixture { db, database: _database } = Fixture::new().await;
    db.set_job_config("pays_in_steps", 1, &BTreeMap::from([("own", 8)])).await.unwrap();
    let worker = worker(&db, jobs![pays_in_steps, pays_when_configured]).await;
    let run = pays_in_steps().enqueue(&db).await.unwrap();
    let failed = async || run.attempts().await.unwrap().len();
    eventually(failed, |n_failed| *n_failed > 0).await;
    db.set_job_config("pays_when_configured", 1, &Rate { per_second: 5 }).await.unwrap();
    assert_eq!(soon(run.result()).await.unwrap(), (5, Some(8)));
    assert_eq!(run.info().await.unwrap().attempt, 1, "one attempt of the run, and several tries of its step");
    worker.stop().await;
}

#[workflow(max_attempts = 9)]
async fn asks_between_steps(wf: &Wf, #[inject] context: &Context) -> Result<Option<u32>> {
    let own: Option<Rate> = context.config(1)?;
    wf.sleep(Duration::from_secs(3600)).await?;
    Ok(own.map(|own| own.per_second))
}

#[tokio::test(flavor = "multi_thread")]
async fn verify_finds_config_read_between_steps_and_workflow_fails_terminally() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let run = asks_between_steps().enqueue(&db).await.unwrap();
    let found = App::new(db.clone()).with(jobs![asks_between_steps]).verify().await.unwrap();
    let verdicts: Vec<_> = found.findings.iter().map(|finding| &finding.verdict).collect();
    assert!(matches!(verdicts[..], [Verdict::Breaks { .. }]), "{found}");
    let worker = worker(&db, jobs![asks_between_steps]).await;
    let Err(ClientError::RunFailed { failure, .. }) = soon(run.result()).await else { panic!() };
    assert!(failure.to_string().contains("between the steps of a workflow"), "{failure}");
    assert_eq!(run.info().await.unwrap().attempt, 1);
    worker.stop().await;
}

#[tokio::test]
async fn invalid_job_config_is_refused_without_write() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let unknown = db.set_job_config("pays_att", 1, &Rate { per_second: 5 }).await.unwrap_err();
    assert!(unknown.to_string().contains("did you mean `pays_at`"), "{unknown}");
    let of_ours = db.set_job_config("runledger.graph", 1, &Rate { per_second: 5 }).await.unwrap_err();
    assert!(matches!(of_ours, ClientError::UnknownJob { .. } | ClientError::Name(_)), "{of_ours}");
    for version in [0, u32::MAX] {
        let refused = db.set_job_config("pays_at", version, &Rate { per_second: 5 }).await.unwrap_err();
        assert!(refused.to_string().contains(&format!("cannot have version {version}")), "{refused}");
    }
    let number = db.set_job_config("pays_at", 1, &5).await.unwrap_err();
    assert!(number.to_string().contains("is not a JSON object"), "{number}");
    let lossy = db.set_job_config("pays_at", 1, &BTreeMap::from([("rate", f64::NAN)])).await.unwrap_err();
    assert!(
        matches!(&lossy, ClientError::EncodeConfig { job, version: 1, .. } if job == "pays_at"),
        "{lossy}"
    );
    assert!(db.job_configs().await.unwrap().is_empty(), "nothing was written");
    assert!(!db.delete_job_config("pays_at", u32::MAX).await.unwrap());
}
