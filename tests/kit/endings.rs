//! Workflows that end in other ways than by returning: by compensation, in slices, by a deadline.
//! They survive every crash too.

use std::time::Duration;

use runledger::prelude::*;
use runledger::testing::{Crashes, Testing};
use runledger::{Error, RunHandle, RunState};

const DAY: Duration = Duration::from_secs(86_400);

const TABLE: &str = "create table deed (n serial, what text not null)";

#[job]
async fn book(what: &str, #[inject] tx: &mut Tx) -> Result<String> {
    sqlx::query("insert into deed (what) values ($1)").bind(what).execute(&mut **tx).await?;
    Ok(what.to_owned())
}

#[job]
async fn unbook(what: &str, #[inject] tx: &mut Tx) -> Result<()> {
    sqlx::query("insert into deed (what) values ($1)").bind(format!("not {what}")).execute(&mut **tx).await?;
    Ok(())
}

async fn kit() -> Testing {
    let test = Testing::new().await.unwrap();
    sqlx::raw_sql(TABLE).execute(test.db().pool()).await.unwrap();
    test
}

async fn deeds(db: &Db) -> Vec<String> {
    sqlx::query_scalar("select what from deed order by n").fetch_all(db.pool()).await.unwrap()
}

fn is_thorough(crashes: &Crashes, at_least: usize) {
    assert!(crashes.n_crashes() >= at_least, "{crashes}");
    assert_eq!(crashes.n_left_out(), 0, "{crashes}");
}

#[workflow]
async fn trip(wf: &Wf) -> Result<()> {
    let saga = wf.saga();
    saga.run(book("flight"), |what| unbook(what)).await?;
    saga.run(book("hotel"), |what| unbook(what)).await?;
    Err(Error::terminal("no car is left"))
}

#[tokio::test]
#[ignore = "slow: `cargo exhaustive`"]
async fn failed_saga_survives_every_crash_compensating_once_in_reverse_order() {
    let test = kit().await.with(jobs![trip, book, unbook]);
    let crashes = test
        .crash_everywhere(trip())
        .expect_state(RunState::Failed)
        .invariant(|end| async move {
            let error = end.result().unwrap_err().to_string();
            assert!(error.contains("no car is left"), "{error}");
            assert_eq!(deeds(end.db()).await, ["flight", "hotel", "not hotel", "not flight"]);
            Ok(())
        })
        .await
        .unwrap();
    is_thorough(&crashes, 24);
}

/// Races for two cars, keeps the first, then compensates it.
#[workflow]
async fn picks(wf: &Wf) -> Result<()> {
    let saga = wf.saga();
    wf.race(["red", "blue"].map(|car| saga.run(book(car).key(car), |what| unbook(what)))).await?;
    saga.compensate().await;
    Ok(())
}

#[tokio::test]
#[ignore = "slow: `cargo exhaustive`"]
async fn race_in_saga_survives_every_crash_and_is_fully_compensated() {
    let test = kit().await.with(jobs![picks, book, unbook]);
    let crashes = test
        .crash_everywhere(picks())
        .invariant(|end| async move {
            end.result()?;
            let deeds = deeds(end.db()).await;
            let count = |deed: &str| deeds.iter().filter(|what| *what == deed).count();
            for car in ["red", "blue"] {
                assert_eq!(count(car), count(&format!("not {car}")), "{deeds:?}");
            }
            assert!(count("red") + count("blue") >= 1 && count("red") < 2 && count("blue") < 2, "{deeds:?}");
            Ok(())
        })
        .await
        .unwrap();
    // Runs differ in which of the two is recorded.
    assert!(crashes.n_crashes() >= 12, "{crashes}");
}

#[workflow]
async fn stocks(wf: &Wf) -> Result<i64> {
    let n = wf
        .tx("stock", |mut tx| async move {
            let insert = "insert into deed (what) values ('stock') returning n::int8";
            let n: i64 = sqlx::query_scalar(insert).fetch_one(&mut *tx).await?;
            book("follow-up").enqueue(&mut *tx).await?;
            Ok::<_, Error>(n)
        })
        .await?;
    wf.emit(&"stocked");
    wf.publish("n", &n).await?;
    Ok(n)
}

#[tokio::test]
#[ignore = "slow: `cargo exhaustive`"]
async fn inline_transaction_with_enqueue_emit_and_publish_survives_every_crash() {
    let test = kit().await.with(jobs![stocks, book]);
    let crashes = test
        .crash_everywhere(stocks())
        .invariant(|end| async move {
            let stocked = deeds(end.db()).await.into_iter().filter(|what| what == "stock").count();
            assert_eq!(stocked, 1);
            let follow_ups = "select count(*) from runledger.run where job = 'book'";
            let n: i64 = sqlx::query_scalar(follow_ups).fetch_one(end.db().pool()).await?;
            assert_eq!(n, 1, "the run that the transaction enqueues is there once");
            let handle = RunHandle::attach(stocks, end.db(), end.run_id());
            let lines: Vec<String> =
                handle.output(0).await?.into_iter().map(|line| line.decode()).collect::<Result<_, _>>()?;
            assert_eq!(lines, ["stocked"]);
            assert_eq!(handle.query::<i64>("n").await?.as_ref(), Some(end.result()?));
            Ok(())
        })
        .await
        .unwrap();
    is_thorough(&crashes, 12);
}

#[workflow]
async fn nightly(wf: &Wf, day: u32) -> Result<u32> {
    if day == 4 {
        return Ok(day); // without any record
    }
    wf.run(book(&format!("night {day} {}", wf.uuid()))).await?;
    wf.continue_as_new(nightly(day + 1).delay(DAY)).await
}

#[tokio::test]
#[ignore = "slow: `cargo exhaustive`"]
async fn continue_as_new_loop_survives_every_crash() {
    let test = kit().await.with(jobs![nightly, book]);
    let crashes = test
        .crash_everywhere(nightly(1))
        .invariant(|end| async move {
            assert_eq!(end.result().unwrap(), &4);
            let nights: Vec<String> =
                deeds(end.db()).await.iter().map(|night| night[..7].to_owned()).collect();
            assert_eq!(nights, ["night 1", "night 2", "night 3"]);
            Ok(())
        })
        .await
        .unwrap();
    is_thorough(&crashes, 24);
}

#[workflow]
async fn patient(wf: &Wf) -> Result<()> {
    wf.run(book("seat")).await?;
    Ok(wf.signal("never").await?)
}

#[tokio::test]
#[ignore = "slow: `cargo exhaustive`"]
async fn run_cancelled_by_deadline_survives_every_crash() {
    let test = kit().await.with(jobs![patient, book]);
    let crashes = test
        .crash_everywhere(patient().deadline(30 * DAY))
        .expect_state(RunState::Cancelled)
        .invariant(|end| async move {
            let error = end.result().unwrap_err().to_string();
            assert!(error.contains("deadline"), "{error}");
            assert_eq!(deeds(end.db()).await, ["seat"]);
            let handle = RunHandle::attach(patient, end.db(), end.run_id());
            assert_eq!(handle.state().await?, RunState::Cancelled);
            Ok(())
        })
        .await
        .unwrap();
    is_thorough(&crashes, 12);
}
