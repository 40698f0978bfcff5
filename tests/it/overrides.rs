//! Overrides that operators set for jobs, without a deploy and permanently.

use std::time::Duration;

use runledger::prelude::*;
use runledger::{ClientError, JobOverrides, Payload, RunState, SyncMode};
use runledger_tests::rows::{scalar, soon, until, worker};
use runledger_tests::{Fixture, eventually};

#[job(aliases = ["paid"])]
async fn pays(n: u64) -> Result<u64> {
    Ok(n)
}

#[job]
async fn mails(n: u64) -> Result<u64> {
    Ok(n)
}

#[job(max_attempts = 4, backoff = "1ms..1ms")]
async fn fails_each_time() -> Result<()> {
    Err("on purpose".into())
}

#[job(max_attempts = 1)]
async fn never_comes_to_an_end() -> Result<()> {
    std::future::pending().await
}

#[workflow]
async fn tries_as_a_step(wf: &Wf) -> Result<Vec<u64>> {
    let paid = wf.run(pays(1)).await?;
    wf.run(fails_each_time()).await.unwrap_err();
    Ok(vec![paid])
}

/// Returns the attempt number of a failed run.
async fn attempts<T: Payload + std::fmt::Debug>(run: &RunHandle<T>) -> i32 {
    soon(run.result()).await.unwrap_err();
    run.info().await.unwrap().attempt
}

#[tokio::test(flavor = "multi_thread")]
async fn disabled_job_is_not_claimed_until_enabled_while_others_run() {
    let Fixture { db, database: _database } = Fixture::new().await;
    db.set_overrides("pays", JobOverrides::new().disabled("the provider is down")).await.unwrap();
    let worker = worker(&db, jobs![pays, mails]).await;
    let waits = pays(1).enqueue(&db).await.unwrap();
    for n in 0..3 {
        assert_eq!(soon(mails(n).enqueue(&db).await.unwrap().result()).await.unwrap(), n);
    }
    let info = waits.info().await.unwrap();
    assert_eq!((info.state, info.attempt), (RunState::Queued, 0));
    let stored = db.overrides().await.unwrap();
    assert_eq!(stored.len(), 1);
    assert_eq!(
        (stored[0].job.as_str(), stored[0].overrides.why_disabled()),
        ("pays", Some("the provider is down"))
    );
    assert!(db.clear_overrides("pays").await.unwrap());
    assert_eq!(soon(waits.result()).await.unwrap(), 1, "without a restart");
    assert!(!db.clear_overrides("pays").await.unwrap(), "nothing is said of it any more");

    db.set_overrides("paid", JobOverrides::new().disabled("by its old name")).await.unwrap();
    let disabled = async || {
        let run = pays(2).enqueue(&db).await.unwrap();
        soon(mails(2).enqueue(&db).await.unwrap().result()).await.unwrap();
        run.info().await.unwrap().state
    };
    // The worker learns of it with a heartbeat.
    eventually(disabled, |state| *state == RunState::Queued).await;
    worker.stop().await;
}

/// An override that a worker reads at its start may be gone by its first heartbeat.
#[tokio::test(flavor = "multi_thread")]
async fn job_enabled_right_after_worker_start_is_claimed() {
    let Fixture { db, database: _database } = Fixture::new().await;
    for n in 0..5 {
        db.set_overrides("pays", JobOverrides::new().disabled("for a moment")).await.unwrap();
        let worker = worker(&db, jobs![pays]).await;
        db.clear_overrides("pays").await.unwrap();
        assert_eq!(soon(pays(n).enqueue(&db).await.unwrap().result()).await.unwrap(), n);
        worker.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn overrides_apply_on_later_workers_and_call_options_take_precedence() {
    let Fixture { db, database: _database } = Fixture::new().await;
    db.set_overrides("fails_each_time", JobOverrides::new().max_attempts(2)).await.unwrap();
    db.set_overrides("never_comes_to_an_end", JobOverrides::new().timeout(Duration::from_millis(50)))
        .await
        .unwrap();
    for _deploy in 0..2 {
        let worker = worker(&db, jobs![fails_each_time, never_comes_to_an_end, tries_as_a_step, pays]).await;
        assert_eq!(attempts(&fails_each_time().enqueue(&db).await.unwrap()).await, 2);
        assert_eq!(attempts(&fails_each_time().max_attempts(3).enqueue(&db).await.unwrap()).await, 3);
        assert_eq!(attempts(&never_comes_to_an_end().enqueue(&db).await.unwrap()).await, 1);
        worker.stop().await;
    }
    let backoff = JobOverrides::new().backoff(Duration::from_secs(3600), Duration::from_secs(3600));
    db.set_overrides("fails_each_time", backoff).await.unwrap();
    let worker = worker(&db, jobs![fails_each_time]).await;
    let run = fails_each_time().enqueue(&db).await.unwrap();
    until(&db, run.id(), |info| info.state == RunState::Queued && info.attempt == 1).await;
    let far = "select count(*) from runledger.ready where ready_at > now() + interval '30 minutes'";
    assert_eq!(scalar::<i64>(&db, far).await, 1, "what was said before is forgotten, and this holds");
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn step_follows_attempt_override_and_disabled_job_runs_as_step() {
    let Fixture { db, database: _database } = Fixture::new().await;
    db.set_overrides("fails_each_time", JobOverrides::new().max_attempts(2)).await.unwrap();
    db.set_overrides("pays", JobOverrides::new().disabled("its own runs only")).await.unwrap();
    let worker = worker(&db, jobs![fails_each_time, tries_as_a_step, pays]).await;
    let run = tries_as_a_step().enqueue(&db).await.unwrap();
    assert_eq!(soon(run.result()).await.unwrap(), [1]);
    let tried = "select count(*) from runledger.attempt where step_key = 'fails_each_time'";
    assert_eq!(scalar::<i64>(&db, tried).await, 1, "the second is how the step ended");
    worker.stop().await;
}

#[tokio::test]
async fn apply_overrides_writes_only_differences_and_replace_mode_deletes_others() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let two = || JobOverrides::new().max_attempts(2).backoff(Duration::from_secs(2), Duration::from_secs(1));
    db.set_overrides("mails", JobOverrides::new().timeout(Duration::ZERO)).await.unwrap();
    assert_eq!(db.apply_overrides([("pays", two())], SyncMode::Merge).await.unwrap(), 1);
    assert_eq!(db.apply_overrides([("pays", two())], SyncMode::Merge).await.unwrap(), 0, "as it was");
    let of =
        |jobs: Vec<runledger::StoredOverrides>| jobs.into_iter().map(|stored| stored.job).collect::<Vec<_>>();
    assert_eq!(of(db.overrides().await.unwrap()), ["mails", "pays"]);
    assert_eq!(db.apply_overrides([("pays", two())], SyncMode::Replace).await.unwrap(), 1);
    assert_eq!(of(db.overrides().await.unwrap()), ["pays"]);
    assert_eq!(db.overrides().await.unwrap()[0].overrides, two());

    let unknown = db
        .apply_overrides([("pays", JobOverrides::new()), ("pay", two())], SyncMode::Replace)
        .await
        .unwrap_err();
    assert!(unknown.to_string().contains("did you mean `pays`"), "{unknown}");
    let twice = db.apply_overrides([("pays", two()), ("pays", two())], SyncMode::Merge).await.unwrap_err();
    assert!(twice.to_string().contains("name job `pays` twice"), "{twice}");
    let of_ours = db.set_overrides("runledger.graph", two()).await.unwrap_err();
    assert!(matches!(of_ours, ClientError::UnknownJob { .. } | ClientError::Name(_)), "{of_ours}");
    assert_eq!(of(db.overrides().await.unwrap()), ["pays"], "nothing was written");
    assert_eq!(db.apply_overrides(Vec::<(String, JobOverrides)>::new(), SyncMode::Replace).await.unwrap(), 1);
    assert_eq!(of(db.overrides().await.unwrap()), [""; 0]);
}
