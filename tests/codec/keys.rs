//! Rotated keys, missing keys, and payloads in the wrong place.

use runledger::prelude::*;
use runledger::{AesGcm, ClientError, Failure, FailureKind, PayloadError, RunInfo, RunState};
use runledger_tests::Fixture;
use runledger_tests::rows::{execute, scalar, soon, until, worker};

use crate::words::{codec, everything, jobs, run_everything, sealed, tells, waits};

fn why(info: &RunInfo) -> &Failure {
    info.error.as_ref().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn encrypted_values_are_decrypted_as_written() {
    let Fixture { db, database: _database } = sealed().await;
    let worker = worker(&db, jobs()).await;
    let handle = run_everything(&db, "abc", true).await;
    assert_eq!(handle.result().await.unwrap(), "abc");
    assert_eq!(handle.query::<String>("state").await.unwrap().as_deref(), Some("abc"));
    let lines: Vec<String> =
        handle.output(1).await.unwrap().iter().map(|line| line.decode().unwrap()).collect();
    assert!(lines.len() >= 4 && lines.iter().all(|line| line == "abc"), "{lines:?}");
    let steps = handle.steps().await.unwrap();
    let result = |key: &str| steps.iter().find(|step| step.key == key).unwrap().result.clone();
    assert_eq!(result("tells"), Ok("\"abc\"".to_owned()));
    assert_eq!(result("signal[word]"), Ok("\"abc\"".to_owned()));
    assert_eq!(result("fails_with").unwrap_err().message, "no abc");
    let attempts = handle.attempts().await.unwrap();
    assert!(attempts.iter().any(|attempt| {
        attempt.error.as_ref().is_some_and(|error| error.message == "the first try of abc")
    }));
    assert_eq!(handle.step_progress::<String>("tells").await.unwrap().as_deref(), Some("abc"));
    let failed = run_everything(&db, "def", false).await;
    let Err(ClientError::RunFailed { failure, .. }) = failed.result().await else { panic!() };
    assert_eq!(failure.to_string(), "step `fails_with[last]` failed: no def");
    assert_eq!(why(&failed.info().await.unwrap()), &failure);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn run_started_before_codec_continues_and_encrypts_new_steps() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let plain = worker(&db, jobs()).await;
    let handle = everything("abc".into(), 1, true).enqueue(&db).await.unwrap();
    until(&db, handle.id(), |info| info.state == RunState::Waiting).await;
    plain.stop().await;
    handle.signal("word", "abc").await.unwrap();
    let db = db.with_codec(codec());
    let worker = worker(&db, jobs()).await;
    assert_eq!(soon(handle.with_db(&db).result()).await.unwrap(), "abc");
    let n_sealed = "select count(*) from runledger.step where output ->> '$sealed' is not null";
    assert!(scalar::<i64>(&db, n_sealed).await > 0, "what is written now is sealed");
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn key_rotates_while_runs_are_in_flight() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let old = db.clone().with_codec(AesGcm::new("2026", [1; 32]));
    let first = worker(&old, jobs()).await;
    let handle = everything("abc".into(), 1, true).enqueue(&old).await.unwrap();
    until(&old, handle.id(), |info| info.state == RunState::Waiting).await;
    first.stop().await;
    let db = db.with_codec(AesGcm::new("2027", [2; 32]).with_previous_key("2026", [1; 32]));
    let second = worker(&db, jobs()).await;
    let handle = handle.with_db(&db);
    handle.signal("word", "abc").await.unwrap();
    assert_eq!(soon(handle.result()).await.unwrap(), "abc");
    let keys = "select array_agg(distinct split_part(output ->> '$sealed', ':', 1) order by split_part(output ->> '$sealed', ':', 1))
                from runledger.step where output ->> '$sealed' is not null";
    assert_eq!(scalar::<Vec<String>>(&db, keys).await, ["2026", "2027"]);
    second.stop().await;
}

/// A worker that cannot read a run parks it. With the key, the run resumes where it was.
#[tokio::test(flavor = "multi_thread")]
async fn run_with_missing_key_is_blocked_and_resumes_with_key() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let sealed = db.clone().with_codec(codec());
    let others = [
        (db.clone(), "sealed under key `present`, and this program has no codec"),
        (
            db.clone().with_codec(AesGcm::new("other", [8; 32])),
            "under key `present`, which this program does not have",
        ),
        (db.clone().with_codec(AesGcm::new("present", [8; 32])), "does not open under key `present`"),
    ];
    for (other, words) in others {
        let handle = tells("abc".into()).max_attempts(2).enqueue(&sealed).await.unwrap();
        let blind = worker(&other, jobs()).await;
        let blocked = until(&other, handle.id(), |info| info.state == RunState::Blocked).await;
        let failure = why(&blocked);
        assert_eq!(failure.kind, FailureKind::Sealed);
        assert!(failure.to_string().contains(words), "{failure}");
        assert_eq!(blocked.attempt, 0, "no attempt is spent");
        let error = handle.with_db(&other).result().await.unwrap_err();
        assert!(matches!(error, ClientError::RunBlocked { .. }), "{error}");
        blind.stop().await;
        let seeing = worker(&sealed, jobs()).await;
        handle.resume().await.unwrap();
        assert_eq!(soon(handle.result()).await.unwrap(), "abc");
        let error = handle.with_db(&other).result().await.unwrap_err();
        assert!(matches!(error, ClientError::Unreadable { .. }), "{error}");
        assert_eq!(
            handle.with_db(&other).attempts().await.unwrap().len(),
            3,
            "who looks sees what can be seen"
        );
        seeing.stop().await;
    }
}

/// A run does not receive a signal that its worker cannot read.
#[tokio::test(flavor = "multi_thread")]
async fn undecryptable_signal_is_left_until_worker_has_key() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let sealed = db.clone().with_codec(codec());
    let blind = worker(&db, jobs()).await;
    let handle = waits().enqueue(&db).await.unwrap();
    handle.with_db(&sealed).signal("word", "abc").await.unwrap();
    until(&db, handle.id(), |info| info.state == RunState::Blocked).await;
    assert_eq!(scalar::<i64>(&db, "select count(*) from runledger.signal where taken_by is null").await, 1);
    assert_eq!(scalar::<i64>(&db, "select count(*) from runledger.step").await, 0);
    blind.stop().await;
    let seeing = worker(&sealed, jobs()).await;
    handle.resume().await.unwrap();
    assert_eq!(soon(handle.with_db(&sealed).result()).await.unwrap(), "abc");
    seeing.stop().await;
}

/// Every table in which two encrypted payloads could be swapped, with the statement that swaps
/// them.
const SWAPS: [&str; 4] = [
    "update runledger.run set input = other.input from runledger.run as other where other.run_id <> run.run_id",
    "update runledger.outcome set output = other.output from runledger.outcome as other where other.run_id <> outcome.run_id",
    "update runledger.step set output = other.output from runledger.step as other
     where other.run_id = step.run_id and other.key <> step.key and step.key like 'tells%' and other.key like 'tells%'",
    "update runledger.output set value = other.value from runledger.output as other
     where other.run_id = output.run_id and other.position <> output.position and other.step_key = output.step_key",
];

#[workflow]
async fn tells_twice(wf: &Wf, word: String) -> Result<String> {
    let one = wf.run(tells(word.clone())).await?;
    let two = wf.run(tells(word)).await?;
    wf.emit("one");
    wf.emit("two");
    let _: String = wf.signal("word").await?;
    Ok(one + &two)
}

#[tokio::test(flavor = "multi_thread")]
async fn swapped_encrypted_payloads_do_not_decrypt() {
    for swap in SWAPS {
        let Fixture { db, database: _database } = sealed().await;
        let first = worker(&db, jobs![tells_twice, tells]).await;
        let handle = tells_twice("abc".into()).enqueue(&db).await.unwrap();
        until(&db, handle.id(), |info| info.state == RunState::Waiting).await;
        for word in ["def", "ghi"] {
            soon(tells(word.into()).enqueue(&db).await.unwrap().result()).await.unwrap();
        }
        first.stop().await;
        execute(&db, swap).await;
        handle.signal("word", "go").await.unwrap();
        let second = worker(&db, jobs![tells_twice, tells]).await;
        if swap.contains("outcome") {
            let id: uuid::Uuid = scalar(&db, "select min(run_id::text)::uuid from runledger.outcome").await;
            let error = RunHandle::attach(tells, &db, id).result().await.unwrap_err();
            let ClientError::Unreadable { source: PayloadError::Open { source, .. }, .. } = error else {
                panic!("{error:?}")
            };
            assert!(source.to_string().contains("it belongs to another run or step"), "{source}");
        } else if swap.contains("output set") {
            let error = handle.output(1).await.unwrap_err();
            assert!(matches!(error, ClientError::Unreadable { .. }), "{error:?}");
        } else {
            let blocked = until(&db, handle.id(), |info| info.state == RunState::Blocked).await;
            assert_eq!(why(&blocked).kind, FailureKind::Sealed, "{swap}");
        }
        second.stop().await;
    }
}

/// The first step of introducing a codec: programs that decrypt are deployed before programs that
/// encrypt.
#[tokio::test(flavor = "multi_thread")]
async fn decoder_reads_encrypted_payload_and_writes_plain() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let reading = db.clone().with_decoder(codec());
    let worker = worker(&reading, jobs()).await;
    let handle = tells("abc".into()).enqueue(&db.with_codec(codec())).await.unwrap();
    assert_eq!(soon(handle.result()).await.unwrap(), "abc");
    let output = "select output::text from runledger.outcome";
    assert_eq!(scalar::<String>(&reading, output).await, "\"abc\"");
    worker.stop().await;
}
