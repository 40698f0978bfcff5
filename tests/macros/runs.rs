//! The expansions of the `compiles` crate on a real worker: arguments are encoded, stored, decoded
//! and injected, and outputs are settled.

use compiles::charge::{Gateway, Order, charge, checkout, record_sale};
use compiles::{facades, hostile, payloads};
use runledger::__private::DefinitionOf;
use runledger::{AnyCall, App, Call, ClientError, Job, RunHandle, Worker, enqueue_all};
use runledger_tests::{Fixture, PATIENCE};
use serde_json::{Value, json};
use sqlx::Connection;

/// Starts a worker that serves the jobs of the crate and of its facade, but not those of the test
/// support.
async fn start(fixture: &Fixture) -> Worker {
    let gateway = Gateway { prefix: ">".to_owned() };
    let app = App::new(fixture.db.clone()).with(crate::definitions::of_the_crate());
    let app = app.provide(gateway).provide(3_u8).provide(1_u32);
    app.start().await.unwrap()
}

async fn run<J: Job>(call: Call<J>) -> Result<J::Output, ClientError> {
    let fixture = Fixture::new().await;
    let worker = start(&fixture).await;
    let result = call.enqueue(&fixture.db).await.unwrap().result_within(PATIENCE).await;
    worker.stop().await;
    result
}

/// Runs a stored payload, as any program might have written it.
async fn run_stored<Arguments, F, J>(function: F, job: &str, input: Value) -> Result<J::Output, ClientError>
where
    F: DefinitionOf<Arguments, Job = J>,
    J: Job,
{
    let fixture = Fixture::new().await;
    let submitted = enqueue_all([AnyCall::by_name(job, &input)], &fixture.db).await.unwrap();
    let worker = start(&fixture).await;
    let result = RunHandle::attach(function, &fixture.db, submitted[0].run_id).result_within(PATIENCE).await;
    worker.stop().await;
    result
}

/// Returns the stored input of a call.
async fn stored<J: Job>(call: Call<J>) -> Value {
    let fixture = Fixture::new().await;
    let run = call.enqueue(&fixture.db).await.unwrap();
    let mut connection = fixture.database.connect().await.unwrap();
    let input: String = sqlx::query_scalar("select input::text from runledger.run where run_id = $1")
        .bind(run.id())
        .fetch_one(&mut connection)
        .await
        .unwrap();
    connection.close().await.unwrap();
    serde_json::from_str(&input).unwrap()
}

const ORDER: Order = Order { cents: 5 };

#[tokio::test]
async fn call_stores_arguments_by_name_without_injected_values() {
    let expected = json!({"order": {"cents": 5}, "currency": "EUR", "factor": 2, "note": null});
    assert_eq!(stored(charge(ORDER, "EUR", 2, None)).await, expected);
    assert_eq!(stored(checkout(ORDER)).await, json!({"order": {"cents": 5}}));
    assert_eq!(stored(hostile::r#type(4)).await, json!({"match": 4}));
}

#[tokio::test]
async fn payload_without_arguments_is_empty_object() {
    #[expect(deprecated, reason = "it is the job without arguments")]
    let call = compiles::charge::old_charge();
    assert_eq!(stored(call).await, json!({}));
}

#[tokio::test]
async fn attribute_options_become_run_options() {
    let fixture = Fixture::new().await;
    let info = charge(ORDER, "EUR", 2, None).enqueue(&fixture.db).await.unwrap().info().await.unwrap();
    assert_eq!((&*info.job, &*info.queue, info.priority), ("billing.charge", "payments", -5));
    let worker = start(&fixture).await;
    let jobs = &fixture.db.workers().await.unwrap()[0].jobs;
    assert!(jobs.contains(&"old.charge".to_owned()), "{jobs:?}");
    worker.stop().await;
}

#[tokio::test]
async fn job_receives_arguments_and_injected_values() {
    let output = run(charge(ORDER, "EUR", 2, Some("!".to_owned()))).await.unwrap();
    assert_eq!(output, ">10EUR!");
}

#[tokio::test]
async fn workflow_receives_context_and_arguments() {
    assert_eq!(run(checkout(ORDER)).await.unwrap(), ">753");
}

#[tokio::test]
async fn run_under_alias_is_served_by_renamed_job() {
    let input = json!({"order": {"cents": 5}, "currency": "EUR"});
    assert_eq!(run_stored(charge, "old.charge", input).await.unwrap(), ">15EUR");
}

#[tokio::test]
async fn empty_payload_uses_every_default() {
    let output = run_stored(payloads::defaults, "defaults", json!({})).await.unwrap();
    assert_eq!(output, "0EURx[1, 2]/tmpSome(4)(1, \"\")");
}

#[tokio::test]
async fn borrowed_arguments_arrive_unchanged() {
    let names = ["a".to_owned(), "b".to_owned()];
    let call = payloads::scan(&names, "/r".as_ref(), "/b".as_ref(), &vec![1, 2], &Some(3));
    assert_eq!(run(call).await.unwrap(), "a,b/r/b[1, 2]Some(3)");
}

#[tokio::test]
async fn transactional_job_commits_with_its_result() {
    let fixture = Fixture::new().await;
    let mut connection = fixture.database.connect().await.unwrap();
    sqlx::raw_sql("create table sales (cents bigint)").execute(&mut connection).await.unwrap();
    let worker = start(&fixture).await;
    let sale = record_sale(7).enqueue(&fixture.db).await.unwrap();
    assert_eq!(sale.result_within(PATIENCE).await.unwrap(), 7);
    let sales: Vec<i64> =
        sqlx::query_scalar("select cents from sales").fetch_all(&mut connection).await.unwrap();
    assert_eq!(sales, [7]);
    worker.stop().await;
}

#[tokio::test]
async fn parameters_named_like_generated_locals_keep_their_values() {
    let call = hostile::internals(1, 2, 4, 8, hostile::Definition, hostile::Job::One, 16);
    assert_eq!(run(call).await.unwrap(), 32);
    assert_eq!(run(hostile::with_tx(1, 2)).await.unwrap(), 3);
    assert_eq!(run(hostile::with_wf(1)).await.unwrap(), 8);
    assert_eq!(run(hostile::r#type(4)).await.unwrap(), 4);
}

#[tokio::test]
async fn job_name_in_its_own_body_means_call() {
    assert_eq!(run(hostile::again(3)).await.unwrap(), 2);
}

#[tokio::test]
async fn facade_reaches_library_through_its_own_path() {
    assert_eq!(run(facades::through(1)).await.unwrap(), 1);
    assert_eq!(run(facades::flow(1)).await.unwrap(), 8);
}
