//! Histories of encrypted runs as files, and replays of encrypted runs in flight.

use runledger::prelude::*;
use runledger::{History, RunState, Verdict};
use runledger_tests::Fixture;
use runledger_tests::rows::{soon, until, worker};

use crate::words::{codec, everything, jobs, sealed, tells};

/// For the tenant `other`, calls a job with another input than the recorded one.
#[workflow]
async fn passes(wf: &Wf, word: String) -> Result<String> {
    let other = wf.tenant() == "other";
    let told = wf.run(tells(if other { format!("{word}!") } else { word })).await?;
    let _: String = wf.signal("word").await?;
    Ok(told)
}

#[tokio::test(flavor = "multi_thread")]
async fn exported_history_is_plain_and_replays_without_key() {
    let Fixture { db, database: _database } = sealed().await;
    let worker = worker(&db, jobs![passes, tells]).await;
    let handle = passes("xyz".into()).enqueue(&db).await.unwrap();
    until(&db, handle.id(), |info| info.state == RunState::Waiting).await;
    let history = handle.export().await.unwrap();
    assert!(!format!("{history:?}").contains("xyz"), "its `Debug` shows nothing");
    let text = history.to_json().unwrap();
    assert!(text.contains("xyz") && text.contains("\"keyed\": true"), "{text}");
    let history = History::from_json(&text).unwrap();
    let app = || App::offline().with(jobs![passes, tells]);
    assert_eq!(history.replays(&app()).await.unwrap(), Verdict::Replays);
    assert_eq!(history.replays(&app().codec(codec())).await.unwrap(), Verdict::Replays);
    let mut changed = history;
    changed.tenant = "other".into();
    assert_eq!(changed.replays(&app()).await.unwrap(), Verdict::Replays, "inputs cannot be compared");
    let verdict = changed.replays(&app().codec(codec())).await.unwrap();
    assert!(matches!(verdict, Verdict::Breaks { .. }), "with the key they are: {verdict}");
    worker.stop().await;
}

mod changed {
    use runledger::prelude::*;

    #[job]
    pub async fn untells(word: u64) -> Result<u64> {
        Ok(word)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn verify_reports_unreadable_compensation_without_showing_value() {
    let Fixture { db, database: _database } = sealed().await;
    let worker = worker(&db, jobs()).await;
    let handle = everything("xyz".into(), 1, true).enqueue(&db).await.unwrap();
    until(&db, handle.id(), |info| info.state == RunState::Waiting).await;
    worker.stop().await;
    let app = App::new(db.clone()).with(jobs![everything, tells, changed::untells]);
    let verified = app.verify().await.unwrap();
    assert_eq!(verified.findings[0].verdict.step(), Some("compensate[tells]"), "{verified}");
    assert!(!format!("{verified} {verified:?}").contains("xyz"), "{verified}");
    let app = App::new(db.clone()).with(jobs![everything, tells]);
    let verified = app.verify().await.unwrap();
    assert!(verified.to_string().contains("no code for job `untells`"), "{verified}");
}

#[tokio::test(flavor = "multi_thread")]
async fn encrypted_runs_verify_only_with_codec() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let sealed = db.clone().with_codec(codec());
    let worker = worker(&sealed, jobs()).await;
    let handle = everything("xyz".into(), 1, true).enqueue(&sealed).await.unwrap();
    until(&sealed, handle.id(), |info| info.state == RunState::Waiting).await;
    let verified = App::new(sealed.clone()).with(jobs()).verify().await.unwrap();
    assert!(verified.is_ok() && verified.n_runs == 1, "{verified}");
    let blind = App::new(db.clone()).with(jobs()).verify().await.unwrap();
    assert!(matches!(blind.findings[0].verdict, Verdict::Undecodable { .. }), "{blind}");
    assert!(blind.to_string().contains("this program has no codec"), "{blind}");
    handle.signal("word", "xyz").await.unwrap();
    soon(handle.result()).await.unwrap();
    worker.stop().await;
}
