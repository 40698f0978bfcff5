//! Stored arguments and outputs, as newer code reads them, and the wishes in a body's error
//! (behaviour 7).

use std::path::Path;
use std::time::Duration;

use runledger::prelude::*;
use runledger::{AnyCall, ClientError, Failure, FailureKind, Job, RunState, Worker, enqueue_all};
use runledger_tests::{Fixture, PATIENCE, eventually};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use uuid::Uuid;

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Order {
    lines: Vec<Line>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Line {
    sku: String,
    quantity: u32,
}

/// The first version had only `id`.
#[job]
async fn payload_grown(
    id: u32,
    note: Option<String>,
    #[default = 3] factor: u32,
    #[default] tags: Vec<String>,
    #[default = "EUR"] currency: &str,
) -> Result<String> {
    Ok(format!("{id} {note:?} {factor} {tags:?} {currency}"))
}

#[job]
async fn payload_count(order: Order) -> Result<u32> {
    Ok(order.lines.iter().map(|line| line.quantity).sum())
}

#[workflow]
async fn payload_count_in_a_step(wf: &Wf, order: Order) -> Result<u32> {
    Ok(wf.run(payload_count(order)).await?)
}

#[job]
async fn payload_borrow(sku: &str, tags: &[String], root: &Path, order: &Order) -> Result<String> {
    Ok(format!("{sku} {tags:?} {} {}", root.display(), order.lines.len()))
}

/// All borrowed values are dropped before the step runs.
#[workflow]
async fn payload_lend(wf: &Wf, sku: &str) -> Result<String> {
    let step = {
        let (tags, order) = (vec![format!("{sku}!")], Order { lines: vec![] });
        wf.run(payload_borrow(&sku.to_uppercase(), &tags, Path::new("/r"), &order))
    };
    Ok(step.await?)
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Seen {
    run_id: Uuid,
    tenant: String,
    attempt: u32,
    step_key: Option<String>,
    idempotency_key: Uuid,
}

/// Fails in its first attempt with its context as the error, and returns the context of its second.
#[job(backoff = "1ms..1ms")]
async fn payload_look(#[inject] context: &Context) -> Result<Seen> {
    let seen = Seen {
        run_id: context.run_id(),
        tenant: context.tenant().to_owned(),
        attempt: context.attempt(),
        step_key: context.step_key().map(str::to_owned),
        idempotency_key: context.idempotency_key(),
    };
    if context.attempt() == 1 { Err(serde_json::to_string(&seen)?.into()) } else { Ok(seen) }
}

#[workflow]
async fn payload_look_twice(wf: &Wf) -> Result<(Seen, Seen)> {
    Ok((wf.run(payload_look()).await?, wf.run(payload_look().key("other")).await?))
}

#[job(backoff = "1ms..1ms", max_attempts = 3)]
async fn payload_fail(how: &str) -> anyhow::Result<()> {
    use anyhow::Context as _;
    let declined = Err(std::io::Error::other("card declined"));
    match how {
        "terminal" => declined.terminal().context("charging")?,
        "later" => declined.retry_after(Duration::from_secs(3600)).context("charging")?,
        _ => declined.context("charging")?,
    }
    Ok(())
}

#[job(max_attempts = 1)]
async fn payload_fail_with_text() -> Result<(), String> {
    Err("plain text".to_owned())
}

#[job(max_attempts = 1)]
async fn payload_fail_with_a_type() -> Result<(), std::num::ParseIntError> {
    "x".parse::<u8>().map(drop)
}

#[job]
async fn payload_not_a_number() -> Result<f64> {
    Ok(f64::NAN)
}

async fn start(db: &Db) -> Worker {
    let jobs = jobs![
        payload_grown,
        payload_count,
        payload_count_in_a_step,
        payload_borrow,
        payload_lend,
        payload_look,
        payload_look_twice,
        payload_fail,
        payload_fail_with_text,
        payload_fail_with_a_type,
        payload_not_a_number,
    ];
    App::new(db.clone()).with(jobs).start().await.unwrap()
}

async fn run<J: Job>(db: &Db, call: Call<J>) -> (RunHandle<J::Output>, Result<J::Output, ClientError>) {
    let run = call.enqueue(db).await.unwrap();
    let result = run.result_within(PATIENCE).await;
    (run, result)
}

fn failure<T: std::fmt::Debug>(result: Result<T, ClientError>) -> Failure {
    match result {
        Err(ClientError::RunFailed { failure, .. }) => failure,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn rows_queued_before_argument_was_added_are_still_decoded() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let calls = [
        json!({"id": 7}),
        json!({"id": 7, "note": null, "currency": "USD"}),
        json!({"id": 7, "note": "n", "factor": 2, "tags": ["t"], "removed_since": [1]}),
    ];
    let queued =
        enqueue_all(calls.map(|input| AnyCall::by_name("payload_grown", &input)), &db).await.unwrap();
    let worker = start(&db).await;
    let mut outputs = Vec::new();
    for run in queued {
        outputs
            .push(RunHandle::attach(payload_grown, &db, run.run_id).result_within(PATIENCE).await.unwrap());
    }
    assert_eq!(outputs, ["7 None 3 [] EUR", "7 None 3 [] USD", r#"7 Some("n") 2 ["t"] EUR"#]);
    worker.stop().await;
}

#[tokio::test]
async fn undecodable_payload_fails_once_naming_path_without_affecting_its_batch() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let line = |quantity: Value| json!({"order": {"lines": [{"sku": "a", "quantity": quantity}]}});
    let inputs = [
        (line(json!(1)), None),
        (
            line(json!("many")),
            Some("the value at `$.order.lines[0].quantity` does not fit its type: invalid type: string"),
        ),
        (
            line(json!(-1)),
            Some("the value at `$.order.lines[0].quantity` does not fit its type: invalid value"),
        ),
        (json!({}), Some("argument `order` is missing: ")),
        (json!([1]), Some("the value at `$` does not fit its type: ")),
        (line(json!(2)), None),
    ];
    for job in ["payload_count", "payload_count_in_a_step"] {
        let calls = inputs.iter().map(|(input, _)| AnyCall::by_name(job, input));
        let queued = enqueue_all(calls, &db).await.unwrap();
        let worker = start(&db).await;
        for (run, (input, expected)) in queued.iter().zip(&inputs) {
            let run = RunHandle::attach(payload_count, &db, run.run_id);
            let result = run.result_within(PATIENCE).await;
            let Some(beginning) = expected else {
                assert!(result.is_ok(), "{input}: {result:?}");
                continue;
            };
            let failure = failure(result);
            assert_eq!(failure.kind, FailureKind::Decode, "{failure}");
            assert!(failure.message.starts_with(beginning), "{failure}");
            assert_eq!(
                (run.info().await.unwrap().attempt, run.attempts().await.unwrap().len()),
                (1, 1),
                "{input}"
            );
        }
        worker.stop().await;
    }
}

#[tokio::test]
async fn call_owns_copies_of_borrowed_arguments() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = start(&db).await;
    let (_, output) = run(&db, payload_lend("pen")).await;
    assert_eq!(output.unwrap(), r#"PEN ["pen!"] /r 0"#);
    worker.stop().await;
}

#[tokio::test]
async fn run_context_has_stable_idempotency_key_and_counts_attempts() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = start(&db).await;
    let (run, second) = run(&db, payload_look().tenant("acme")).await;
    let second = second.unwrap();
    assert_eq!((second.run_id, &*second.tenant, second.attempt), (run.id(), "acme", 2));
    assert_eq!(second.step_key, None);
    let first = run.attempts().await.unwrap()[0].error.clone().unwrap();
    let first: Seen = serde_json::from_str(&first.message).unwrap();
    assert_eq!(first, Seen { attempt: 1, ..second });
    worker.stop().await;
}

#[tokio::test]
async fn step_context_has_step_key_and_own_idempotency_key() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = start(&db).await;
    let (run, seen) = run(&db, payload_look_twice().tenant("acme")).await;
    let (one, other) = seen.unwrap();
    assert_eq!((one.run_id, &*one.tenant, one.attempt), (run.id(), "acme", 2));
    assert_eq!(one.step_key.as_deref(), Some("payload_look"));
    assert_eq!(other.step_key.as_deref(), Some("payload_look[other]"));
    assert_ne!(one.idempotency_key, other.idempotency_key);
    worker.stop().await;
}

#[tokio::test]
async fn terminal_error_fails_run_at_once_through_anyhow() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = start(&db).await;
    let (run, result) = run(&db, payload_fail("terminal")).await;
    let failure = failure(result);
    assert_eq!(
        (failure.kind, failure.to_string()),
        (FailureKind::Error, "charging: card declined".to_owned())
    );
    assert_eq!(run.attempts().await.unwrap().len(), 1);
    worker.stop().await;
}

#[tokio::test]
async fn unclassified_error_is_retried_by_job_policy() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = start(&db).await;
    let (run, result) = run(&db, payload_fail("as the policy says")).await;
    assert_eq!(failure(result).to_string(), "charging: card declined");
    assert_eq!(run.attempts().await.unwrap().len(), 3);
    worker.stop().await;
}

#[tokio::test]
async fn error_with_delay_schedules_next_attempt_through_anyhow() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = start(&db).await;
    let run = payload_fail("later").enqueue(&db).await.unwrap();
    let tried = eventually(async || run.attempts().await.unwrap(), |tried| !tried.is_empty()).await;
    let info = run.info().await.unwrap();
    assert_eq!((info.state, info.attempt), (RunState::Queued, 1));
    let delay = info.ready_at.unwrap().duration_since(tried[0].ended_at).unwrap();
    assert_eq!(delay, Duration::from_secs(3600));
    worker.stop().await;
}

#[tokio::test]
async fn error_with_delay_fails_run_without_attempts_left() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = start(&db).await;
    let (run, result) = run(&db, payload_fail("later").max_attempts(1)).await;
    assert_eq!(failure(result).to_string(), "charging: card declined");
    assert_eq!(run.attempts().await.unwrap().len(), 1);
    worker.stop().await;
}

#[tokio::test]
async fn any_error_type_is_recorded_with_its_message() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = start(&db).await;
    assert_eq!(failure(run(&db, payload_fail_with_text()).await.1).message, "plain text");
    let message = failure(run(&db, payload_fail_with_a_type()).await.1).message;
    assert_eq!(message, "invalid digit found in string");
    worker.stop().await;
}

#[tokio::test]
async fn unstorable_output_fails_run_once_and_says_body_ran() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = start(&db).await;
    let (run, result) = run(&db, payload_not_a_number()).await;
    let failure = failure(result);
    assert_eq!(failure.kind, FailureKind::Encode);
    assert!(failure.message.starts_with("the output cannot be stored, though the body ran"), "{failure}");
    assert_eq!(run.attempts().await.unwrap().len(), 1);
    worker.stop().await;
}

/// Returns the corpus entries that are text, and values at the limits.
fn jsonb_candidates() -> Vec<String> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/payload");
    let entries =
        std::fs::read_dir(corpus).unwrap().map(|entry| std::fs::read(entry.unwrap().path()).unwrap());
    let mut texts: Vec<String> = entries.filter_map(|entry| String::from_utf8(entry).ok()).collect();
    let zeros = |n: usize| "0".repeat(n);
    texts.extend([
        format!("0.{}1", zeros(16_382)),
        format!("0.{}1", zeros(16_383)),
        format!("1{}", zeros(131_071)),
        format!("1{}", zeros(131_072)),
    ]);
    let plain = [
        "0e-16383",
        "0e-16384",
        "1e131071",
        "1e131072",
        "0.1e131072",
        "0.1e131073",
        "0e99999999999",
        "1.5e-16382",
        "1.5e-16383",
        "01",
        "-",
        "-0",
        "1.",
        ".5",
        "1e",
        "1e+",
        "+1",
        "[1,]",
        "{\"a\":1,}",
        "{\"a\" 1}",
        "[]",
        "{}",
        " [ ] ",
        "\u{b}1",
        "nul",
        "true",
        "\"\u{7f}\"",
        "\"\t\"",
        r#""\x""#,
        r#""\u00""#,
        r#""\ud83d\ude00""#,
        r#""\ud83d""#,
        r#""\ude00\ud83d""#,
        r#""\u0000""#,
        r#"{"\u0000":1}"#,
        "",
        "1 2",
    ];
    texts.extend(plain.map(str::to_owned));
    texts
}

#[tokio::test]
async fn fuzz_oracle_accepts_same_json_as_server_jsonb() {
    let fixture = Fixture::new().await;
    for text in jsonb_candidates().iter().filter(|text| !text.contains('\0')) {
        let cast = sqlx::query("select $1::text::jsonb is not null").bind(text);
        let reads = cast.execute(fixture.db.pool()).await.is_ok();
        let shown: String = text.chars().take(60).collect();
        assert_eq!(fuzzed::jsonb::reads(text), reads, "`{shown}`, {} bytes", text.len());
    }
}
