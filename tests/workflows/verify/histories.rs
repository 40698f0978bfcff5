//! Histories of runs as files, replayed without a database.

use runledger::prelude::*;
use runledger::{ClientError, History, Verdict, assert_replays};
use runledger_tests::Fixture;
use runledger_tests::rows::{soon, until, worker};
use uuid::Uuid;

use super::stage::{add, asleep, one};

#[workflow]
async fn exported(wf: &Wf, n: u64, ends: bool) -> Result<u64> {
    let sum = wf.run(add(n, 1)).await?;
    let failed = wf.step("failing", || async { Err::<u64, _>(Error::terminal("no")) }).await;
    let (a, b) = tokio::try_join!(one(wf, "a"), one(wf, "b"))?;
    if !ends {
        asleep(wf).await?;
    }
    Ok(sum + a + b + u64::from(failed.is_err()))
}

mod changed {
    use super::{add, one};
    use runledger::prelude::*;

    #[workflow]
    pub async fn exported(wf: &Wf, n: u64, ends: bool) -> Result<u64> {
        assert!(ends || n == 1);
        wf.run(add(n, 1)).await?;
        one(wf, "a").await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn exported_history_round_trips_through_file_and_replays_offline() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![exported]).await;
    let ended = exported(1, true).enqueue(&db).await.unwrap();
    assert_eq!(soon(ended.result()).await.unwrap(), 5);
    let sleeping = exported(1, false).enqueue(&db).await.unwrap();
    until(&db, sleeping.id(), |info| info.cause.as_deref() == Some("slept")).await;
    worker.stop().await;

    for (run, state, n_steps) in [(ended, "completed", 4), (sleeping, "queued", 5)] {
        let history = run.export().await.unwrap();
        assert_eq!((history.state.as_str(), history.steps.len()), (state, n_steps));
        let path = std::env::temp_dir().join(format!("runledger-{}.json", run.id()));
        history.to_file(&path).unwrap();
        let read = History::from_file(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(read, history);
        assert_replays(&read, &App::offline().with(jobs![exported])).await;
        let verdict = read.replays(&App::offline().with(jobs![changed::exported])).await.unwrap();
        assert_eq!(verdict.step(), Some("failing"), "{verdict}");
        let verdict = read.replays(&App::offline().with(jobs![add])).await.unwrap();
        assert_eq!(verdict, Verdict::NoCode);
    }
    let error = db.run(Uuid::nil()).export().await.unwrap_err();
    assert!(matches!(error, ClientError::NoSuchRun { .. }), "{error}");
}

#[tokio::test]
#[should_panic(expected = "breaks: step `a` stands where `failing` was recorded (step 2)")]
async fn diverging_history_fails_assert_replays_with_step() {
    let history = History::from_json(
        r#"{
            "format": 1, "run_id": "01890000-0000-7000-8000-000000000000", "job": "exported", "state": "queued", "attempt": 1,
            "input": {"n": 1, "ends": false},
            "steps": [
                {"key": "add", "ordinal": 0, "fingerprint": 5597219712173568902, "output": 2, "seen_len": 0},
                {"key": "failing", "ordinal": 1, "fingerprint": 0, "failure": {"kind": "error", "message": "no"}, "seen_len": 1}
            ]
        }"#,
    );
    assert_replays(&history.unwrap(), &App::offline().with(jobs![changed::exported])).await;
}
