//! Size limits of payloads: each at its limit, and one byte beyond.

use std::collections::BTreeMap;

use runledger::prelude::*;
use runledger::{ClientError, FailureKind, Limits, PayloadError};
use runledger_tests::Fixture;
use runledger_tests::rows::{scalar, soon, worker};

/// The limit of every kind of payload except inputs.
const LIMIT: usize = 200;

/// Returns a text that takes `bytes` bytes as JSON.
fn text(bytes: usize) -> String {
    "x".repeat(bytes - 2)
}

/// A database with small limits for everything but inputs, with or without a codec. Encrypted
/// payloads are longer, but the limits apply to the plain ones.
async fn limited(sealed: bool) -> Fixture {
    let Fixture { db, database } = Fixture::new().await;
    let limits = Limits::DEFAULT.output(LIMIT).step(LIMIT).signal(LIMIT).published(LIMIT);
    let db = db.with_limits(limits.emitted(LIMIT).progress(LIMIT).config(LIMIT));
    Fixture { db: if sealed { db.with_codec(crate::words::codec()) } else { db }, database }
}

#[job(max_attempts = 3, backoff = "1ms..1ms")]
async fn gives(bytes: usize) -> Result<String> {
    Ok(text(bytes))
}

#[job(max_attempts = 3, backoff = "1ms..1ms")]
async fn gives_in_a_transaction(bytes: usize, #[inject] tx: &mut Tx) -> Result<String> {
    let _ = tx;
    Ok(text(bytes))
}

#[job(max_attempts = 3, backoff = "1ms..1ms")]
async fn says(how: String, bytes: usize, #[inject] context: &Context) -> Result<()> {
    match how.as_str() {
        "progress" => context.progress(&text(bytes)).await,
        _ => context.emit(&text(bytes)).await,
    }
}

/// A workflow that continues after a step whose output is too large.
#[workflow]
async fn works(wf: &Wf, how: String, bytes: usize) -> Result<String> {
    let failed = match how.as_str() {
        "call" => wf.run(gives(bytes)).await.err(),
        "transaction" => wf.run(gives_in_a_transaction(bytes)).await.err(),
        "step" => wf.step("big", || async { Ok::<_, Error>(text(bytes)) }).await.err(),
        "publish" => wf.publish("big", &text(bytes)).await.err(),
        "child" => wf.start(takes(text(bytes))).await.err(),
        "emit" => {
            wf.emit(&text(bytes));
            None
        }
        "anew" => return wf.continue_as_new(works(text(bytes), 0)).await,
        _ => None,
    };
    wf.step("after", || async { Ok::<_, Error>(()) }).await?;
    Ok(failed.map(|error| error.failure().to_string()).unwrap_or_default())
}

#[job]
async fn takes(text: String) -> Result<()> {
    drop(text);
    Ok(())
}

fn of_too_large(said: &str, what: &str) -> bool {
    let words = format!("{what} has {} bytes of JSON, and at most {LIMIT} are allowed", LIMIT + 1);
    said.contains(&words) && said.contains("store it in a table or an object store and pass its key")
}

#[tokio::test(flavor = "multi_thread")]
async fn run_with_output_beyond_limit_fails_without_retry() {
    for sealed in [false, true] {
        let Fixture { db, database: _database } = limited(sealed).await;
        let worker = worker(&db, jobs![gives, gives_in_a_transaction]).await;
        let [plain, in_transaction] =
            [LIMIT, LIMIT + 1].map(|bytes| (gives(bytes), gives_in_a_transaction(bytes)));
        for (n, (one, other)) in [plain, in_transaction].into_iter().enumerate() {
            let ended = [
                soon(one.enqueue(&db).await.unwrap().result()).await,
                soon(other.enqueue(&db).await.unwrap().result()).await,
            ];
            for ended in ended {
                match ended {
                    Ok(output) => assert_eq!((n, output.len() + 2), (0, LIMIT)),
                    Err(ClientError::RunFailed { failure, .. }) => {
                        assert_eq!((n, failure.kind), (1, FailureKind::Encode));
                        assert!(of_too_large(&failure.message, "the output"), "{failure}");
                    }
                    Err(error) => panic!("{error}"),
                }
            }
        }
        let tried = "select count(*) from runledger.attempt";
        assert_eq!(scalar::<i64>(&db, tried).await, 0, "it is not tried again");
        worker.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn step_output_or_publication_beyond_limit_fails_without_retry() {
    for sealed in [false, true] {
        let Fixture { db, database: _database } = limited(sealed).await;
        let worker = worker(&db, jobs![works, gives, gives_in_a_transaction]).await;
        let hows = [
            ("call", "the output of step `gives`"),
            ("transaction", "the output of step `gives_in_a_transaction`"),
            ("step", "the output of step `big`"),
            ("publish", "the value that step `publish:big` publishes"),
        ];
        for (how, what) in hows {
            let fits = works(how.into(), LIMIT).enqueue(&db).await.unwrap();
            assert_eq!(soon(fits.result()).await.unwrap(), "", "{how}");
            let beyond = works(how.into(), LIMIT + 1).enqueue(&db.clone().with_limits(Limits::DEFAULT)).await;
            let beyond = beyond.unwrap();
            let error = soon(beyond.result()).await;
            // The failure text is longer than an output may be here.
            let ClientError::RunFailed { failure, .. } = error.unwrap_err() else { panic!("{how}") };
            assert!(failure.message.contains("the output has"), "{failure}");
            let steps = beyond.steps().await.unwrap();
            assert_eq!(steps[1].key, "after", "the code goes on");
            let said = steps[0].result.as_ref().unwrap_err().to_string();
            assert!(said.contains(what) && said.contains(&format!("at most {LIMIT}")), "{how}: {said}");
        }
        assert_eq!(
            scalar::<i64>(&db, "select count(*) from runledger.attempt where step_key <> ''").await,
            0
        );
        worker.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn progress_or_emitted_line_beyond_limit_fails_body() {
    let Fixture { db, database: _database } = limited(true).await;
    let worker = worker(&db, jobs![says, works]).await;
    for (how, what) in [("progress", "the progress"), ("emit", "a line of output")] {
        soon(says(how.into(), LIMIT).enqueue(&db).await.unwrap().result()).await.unwrap();
        let beyond = says(how.into(), LIMIT + 1).enqueue(&db).await.unwrap();
        let ClientError::RunFailed { failure, .. } = soon(beyond.result()).await.unwrap_err() else {
            panic!()
        };
        assert!(of_too_large(&failure.message, what), "{failure}");
    }
    soon(works("emit".into(), LIMIT).enqueue(&db).await.unwrap().result()).await.unwrap();
    let beyond = works("emit".into(), LIMIT + 1).enqueue(&db).await.unwrap();
    assert!(matches!(soon(beyond.result()).await, Err(ClientError::RunFailed { .. })));
    assert_eq!(scalar::<i64>(&db, "select count(*) from runledger.output").await, 2);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn input_beyond_limit_is_refused_wherever_run_starts() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let object = |bytes| takes(text(bytes - "{\"text\":}".len()));
    let small = db.clone().with_limits(Limits::DEFAULT.input(LIMIT));
    object(LIMIT).enqueue(&small).await.unwrap();
    let error = object(LIMIT + 1).enqueue(&small).await.unwrap_err();
    let ClientError::Encode { source: source @ PayloadError::TooLarge { path, .. }, job } = &error else {
        panic!("{error:?}")
    };
    assert_eq!((job.as_str(), path.as_str()), ("takes", "$.text"));
    assert!(of_too_large(&source.to_string(), "the input"), "{source}");
    assert_eq!(scalar::<i64>(&db, "select count(*) from runledger.run").await, 1, "nothing is written");
    let worker = worker(&small, jobs![works, takes]).await;
    let child = works("child".into(), LIMIT).enqueue(&small).await.unwrap();
    let said = soon(child.result()).await.unwrap();
    assert!(said.contains("the input has"), "{said}");
    let anew = works("anew".into(), LIMIT).enqueue(&small).await.unwrap();
    let ClientError::RunFailed { failure, .. } = soon(anew.result()).await.unwrap_err() else { panic!() };
    assert!(failure.message.contains("the input has"), "{failure}");
    worker.stop().await;
}

#[tokio::test]
async fn configuration_beyond_limit_is_refused() {
    for sealed in [false, true] {
        let Fixture { db, database: _database } = limited(sealed).await;
        let object = |bytes: usize| BTreeMap::from([("text", text(bytes - "{\"text\":}".len()))]);
        db.set_job_config("takes", 1, &object(LIMIT)).await.unwrap();
        let error = db.set_job_config("takes", 1, &object(LIMIT + 1)).await.unwrap_err();
        let ClientError::EncodeConfig { source, .. } = &error else { panic!("{error:?}") };
        assert!(of_too_large(&source.to_string(), "the configuration of job `takes`"), "{source}");
        let stored = db.job_configs().await.unwrap();
        assert_eq!(stored[0].value::<BTreeMap<String, String>>().unwrap()["text"].len(), LIMIT - 11);
    }
}

#[tokio::test]
async fn signal_beyond_limit_is_refused() {
    let Fixture { db, database: _database } = limited(true).await;
    let handle = crate::words::waits().enqueue(&db).await.unwrap();
    handle.signal("word", &text(LIMIT)).await.unwrap();
    let error = handle.signal("word", &text(LIMIT + 1)).await.unwrap_err();
    let ClientError::EncodeSignal { source, .. } = &error else { panic!("{error:?}") };
    assert!(of_too_large(&source.to_string(), "the payload of signal `word`"), "{source}");
    assert_eq!(scalar::<i64>(&db, "select count(*) from runledger.signal").await, 1);
}

#[job(max_attempts = 1)]
async fn fails_at_length(bytes: usize) -> Result<()> {
    Err("e".repeat(bytes).into())
}

#[tokio::test(flavor = "multi_thread")]
async fn failure_beyond_limit_is_truncated() {
    let Fixture { db, database: _database } = limited(true).await;
    let db = db.with_limits(Limits::DEFAULT.error(LIMIT));
    let worker = worker(&db, jobs![fails_at_length]).await;
    for (bytes, end) in [(LIMIT, "ee"), (LIMIT + 1, "e… (1 bytes more)")] {
        let handle = fails_at_length(bytes).enqueue(&db).await.unwrap();
        let ClientError::RunFailed { failure, .. } = soon(handle.result()).await.unwrap_err() else {
            panic!()
        };
        assert!(failure.message.ends_with(end), "{failure}");
        assert_eq!(failure.message.matches('e').count() - usize::from(bytes > LIMIT) * 2, LIMIT);
    }
    worker.stop().await;
}
