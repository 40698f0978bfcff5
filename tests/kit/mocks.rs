//! A run under test: its database, mocks and signals.

use std::sync::atomic::{AtomicU32, Ordering};

use runledger::prelude::*;
use runledger::testing::Testing;
use runledger::{ClientError, FailureKind};
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Order {
    id: u64,
    cents: u64,
}

struct Gateway;

impl Gateway {
    fn charge(&self, cents: u64) -> Result<String> {
        Err(Error::terminal(format!("nobody may charge {cents} cents in a test")))
    }
}

#[job(backoff = "1h..2h")]
async fn charge(order: Order, note: &str, #[inject] gateway: &Gateway) -> Result<String> {
    gateway.charge(order.cents + u64::from(note.is_empty()))
}

#[job]
async fn ship(order: &Order) -> Result<u64> {
    Ok(order.id)
}

#[workflow]
async fn checkout(wf: &Wf, order: Order) -> Result<(String, u64)> {
    let receipt = wf.run(charge(order.clone(), "first")).await?;
    let is_approved: bool = wf.signal("approval").await?;
    if !is_approved {
        Err("refused")?;
    }
    Ok((receipt, wf.run(ship(&order)).await?))
}

fn order() -> Order {
    Order { id: 7, cents: 4200 }
}

async fn kit() -> Testing {
    Testing::new().await.unwrap().with(jobs![checkout, charge, ship])
}

async fn an_order_is_paid_once() {
    let test = kit().await.mock(charge, |order: Order, note: String| async move {
        Ok(format!("{note}: {} cents", order.cents))
    });
    let run = test.start(checkout(order())).await.unwrap();
    run.signal("approval", &true).await.unwrap();
    assert_eq!(run.result().await.unwrap(), ("first: 4200 cents".to_owned(), 7));
    assert_eq!((test.calls(charge), test.calls(ship)), (1, 1), "mocked or not, bodies are counted");
    let keys: Vec<String> = run.steps().await.unwrap().into_iter().map(|step| step.key).collect();
    assert_eq!(keys, ["charge", "signal[approval]", "ship"]);
}

#[tokio::test]
async fn mock_replaces_step_and_other_steps_execute() {
    an_order_is_paid_once().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn mocked_workflow_completes_on_multi_thread_runtime() {
    an_order_is_paid_once().await;
}

#[tokio::test]
async fn mock_replaces_run_and_needs_no_injected_value() {
    let test = kit().await.mock(charge, |_: Order, _: String| async { Ok("paid".to_owned()) });
    let run = test.start(charge(order(), "")).await.unwrap();
    assert_eq!(run.result().await.unwrap(), "paid");
}

#[tokio::test]
async fn unmocked_job_requires_its_injected_value() {
    let error = kit().await.start(checkout(order())).await.unwrap_err();
    assert!(error.to_string().contains("Gateway"), "{error}");
    let test = kit().await.provide(Gateway);
    let run = test.start(checkout(order())).await.unwrap();
    let ClientError::RunFailed { failure, .. } = run.result().await.unwrap_err() else { panic!() };
    assert!(failure.to_string().contains("nobody may charge 4200 cents"), "{failure}");
}

#[tokio::test]
async fn failing_mock_follows_retry_policy_of_its_job() {
    let tries = AtomicU32::new(0);
    let test =
        kit().await.signals([("approval", true)]).auto_advance_time().mock(
            charge,
            move |_: Order, _: String| {
                let try_number = tries.fetch_add(1, Ordering::Relaxed);
                async move {
                    if try_number < 2 { Err("connection reset")? } else { Ok(format!("try {try_number}")) }
                }
            },
        );
    let run = test.start(checkout(order())).await.unwrap();
    assert_eq!(run.result().await.unwrap().0, "try 2", "two pauses of an hour are over at once");
    assert_eq!(test.calls(charge), 3);
}

#[tokio::test]
async fn scripted_signals_are_sent_when_run_waits_for_them() {
    let test = kit()
        .await
        .signals([("approval", false)])
        .mock(charge, |_: Order, _: String| async { Ok(String::new()) });
    let run = test.start(checkout(order())).await.unwrap();
    let ClientError::RunFailed { failure, .. } = run.result().await.unwrap_err() else { panic!() };
    assert_eq!((failure.kind, failure.message.as_str()), (FailureKind::Error, "refused"));
    assert_eq!(test.calls(ship), 0);
}

#[derive(Default)]
struct Outside(AtomicU32);

#[job]
async fn meets(#[inject] outside: &Outside) -> Result<u32> {
    Ok(outside.0.fetch_add(1, Ordering::Relaxed) + 1)
}

#[tokio::test]
async fn fake_is_created_per_database_and_visible_to_test() {
    for _ in 0..2 {
        let test = Testing::new().await.unwrap().with(jobs![meets]).provide_shared_fake(Outside::default);
        assert_eq!(test.start(meets()).await.unwrap().result().await.unwrap(), 1);
        assert_eq!(test.fake::<Outside>().unwrap().0.load(Ordering::Relaxed), 1);
    }
}

#[job]
async fn books(#[inject] db: &Db, #[inject] tx: &mut Tx) -> Result<bool> {
    let theirs: String = sqlx::query_scalar("select current_database()").fetch_one(&mut **tx).await?;
    let ours: String = sqlx::query_scalar("select current_database()").fetch_one(db.pool()).await?;
    Ok(ours == theirs)
}

#[tokio::test]
async fn value_can_be_provided_from_test_database() {
    let test = Testing::new().await.unwrap().with(jobs![books]).provide_with(Clone::clone);
    assert!(test.start(books()).await.unwrap().result().await.unwrap());
}

#[tokio::test]
async fn transactional_job_cannot_be_mocked() {
    let test = Testing::new().await.unwrap().with(jobs![books]).mock(books, || async { Ok(true) });
    let error = test.start(books()).await.unwrap_err();
    assert!(error.to_string().starts_with("job `books` is transactional"), "{error}");
}

#[tokio::test]
async fn database_is_dropped_with_its_test() {
    let test = Testing::new().await.unwrap();
    let url = test.url();
    assert!(Db::connect(&url).await.is_ok());
    drop(test);
    assert!(Db::connect(&url).await.is_err());
}
