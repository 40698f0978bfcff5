//! Steps inside steps are refused. The refusal affects only the inner step.

use std::sync::Mutex;
use std::time::Duration;

use futures::FutureExt;
use runledger::prelude::*;
use runledger::{ClientError, Graph, StepError, enqueue_all};
use runledger_tests::rows::scalar;
use runledger_tests::{Fixture, PATIENCE};

#[job]
async fn nested_plain(n: u64) -> Result<u64> {
    Ok(n + 1)
}

#[workflow]
async fn nested_in_the_closure(wf: &Wf) -> Result<u64> {
    Ok(wf.step("outer", || wf.run(nested_plain(1))).await?)
}

#[workflow]
async fn nested_after_a_panic(wf: &Wf) -> Result<bool> {
    let panicking =
        wf.step("panicking", || async { if true { panic!("boom") } else { Ok::<(), Error>(()) } });
    Ok(panicking.max_attempts(1).await.is_err())
}

#[workflow]
async fn nested_innocent(wf: &Wf, n: u64) -> Result<u64> {
    Ok(wf.run(nested_plain(n)).await?)
}

async fn worker(fixture: &Fixture) -> runledger::Worker {
    let jobs = jobs![nested_plain, nested_in_the_closure, nested_after_a_panic, nested_innocent];
    App::new(fixture.db.clone()).with(jobs).start().await.unwrap()
}

#[tokio::test]
async fn step_built_in_closure_of_another_step_is_refused() {
    let fixture = Fixture::new().await;
    let worker = worker(&fixture).await;
    let refused = nested_in_the_closure().enqueue(&fixture.db).await.unwrap().result_within(PATIENCE).await;
    let Err(ClientError::RunFailed { failure, .. }) = refused else { panic!("{refused:?}") };
    assert!(failure.to_string().contains("was started inside the body of another step"), "{failure}");
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inline_step_panic_leaves_steps_of_other_runs_unaffected() {
    let fixture = Fixture::new().await;
    let worker = worker(&fixture).await;
    assert!(
        nested_after_a_panic().enqueue(&fixture.db).await.unwrap().result_within(PATIENCE).await.unwrap()
    );
    let runs = enqueue_all((0..100).map(nested_innocent), &fixture.db).await.unwrap();
    for (n, run) in (0..).zip(runs) {
        let handle = RunHandle::attach(nested_innocent, &fixture.db, run.run_id);
        assert_eq!(handle.result_within(PATIENCE).await.unwrap(), n + 1);
    }
    worker.stop().await;
}

/// Awaits in the body of a step a value built outside. A replay would never see that await.
#[workflow]
async fn nested_awaits(wf: &Wf, what: String) -> Result<u64> {
    let outcome = match what.as_str() {
        "a step" => {
            let inner = wf.run(nested_plain(1)).shared();
            wf.step("outer", || inner.clone()).await
        }
        "a wait" => {
            let inner = wf.signal::<u64>("number").shared();
            wf.step("outer", || inner.clone()).await
        }
        "a race" => {
            let inner = wf.race([wf.run(nested_plain(1))]).shared();
            wf.step("outer", || inner.clone().map(|first| first.map(|(_, n)| n))).await
        }
        // A wait that has started is refused like any other, and the workflow may still end it.
        _ => {
            let inner = Mutex::new(wf.signal::<u64>("number"));
            let wait = || std::future::poll_fn(|cx| inner.lock().unwrap().poll_unpin(cx));
            tokio::select! {
                biased;
                _ = wait() => {}
                () = std::future::ready(()) => {}
            }
            wf.step("outer", wait).await
        }
    };
    Ok(outcome?)
}

#[tokio::test(flavor = "multi_thread")]
async fn step_body_cannot_await_outer_step_wait_or_race() {
    let fixture = Fixture::new().await;
    let worker = App::new(fixture.db.clone()).with(jobs![nested_awaits, nested_plain]).start().await.unwrap();
    for what in ["a step", "a wait", "a race", "a wait that has begun"] {
        let run = nested_awaits(what.to_owned()).enqueue(&fixture.db).await.unwrap();
        let refused = run.result_within(PATIENCE).await;
        let Err(ClientError::RunFailed { failure, .. }) = refused else { panic!("{what}: {refused:?}") };
        let said = failure.to_string();
        assert!(said.contains("was awaited inside the body of another step"), "{what}: {said}");
        let keys: Vec<String> = run.steps().await.unwrap().into_iter().map(|step| step.key).collect();
        assert_eq!(keys, ["outer"], "{what}: nothing of the inner one is done");
    }
    worker.stop().await;
}

#[workflow]
async fn nested_continues(wf: &Wf, round: u64, calls_it_inside: bool) -> Result<u64> {
    if round > 0 {
        return Ok(round);
    }
    let anew = || wf.continue_as_new::<_, Result<u64, StepError>>(nested_continues(1, false));
    if calls_it_inside {
        let built = Mutex::new(None);
        wf.step("outer", || async {
            *built.lock().unwrap() = Some(anew());
            Ok::<_, Error>(())
        })
        .await?;
        let built = built.lock().unwrap().take();
        return match built {
            Some(built) => Ok(built.await?),
            // The step was recorded, so its body did not run.
            None => Ok(round),
        };
    }
    Ok(wf.step("outer", anew).await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn workflow_cannot_continue_as_new_inside_step_body() {
    let fixture = Fixture::new().await;
    let worker = App::new(fixture.db.clone()).with(jobs![nested_continues]).start().await.unwrap();
    for calls_it_inside in [false, true] {
        let run = nested_continues(0, calls_it_inside).enqueue(&fixture.db).await.unwrap();
        let refused = run.result_within(PATIENCE).await;
        let Err(ClientError::RunFailed { failure, .. }) = refused else { panic!("{refused:?}") };
        let said = failure.to_string();
        assert!(said.contains("`continue_as_new` was started inside the body of another step"), "{said}");
    }
    worker.stop().await;
}

#[workflow]
async fn nested_branches(wf: &Wf) -> Result<()> {
    wf.step("outer", || async {
        drop(wf.branch("left"));
        Ok::<_, Error>(())
    })
    .await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn branch_cannot_be_created_inside_step_body() {
    let fixture = Fixture::new().await;
    let worker = App::new(fixture.db.clone()).with(jobs![nested_branches]).start().await.unwrap();
    let refused = nested_branches().enqueue(&fixture.db).await.unwrap().result_within(PATIENCE).await;
    let Err(ClientError::RunFailed { failure, .. }) = refused else { panic!("{refused:?}") };
    assert!(
        failure.to_string().contains("`branch` was started inside the body of another step"),
        "{failure}"
    );
    worker.stop().await;
}

#[job(max_attempts = 2)]
async fn nested_much_later() -> Result<()> {
    Err(Error::retry_after("later", Duration::from_secs(3_000_000_000)))
}

#[tokio::test]
async fn far_future_retry_does_not_keep_worker_from_other_runs() {
    let fixture = Fixture::new().await;
    let worker =
        App::new(fixture.db.clone()).with(jobs![nested_much_later, nested_plain]).start().await.unwrap();
    let later = nested_much_later().enqueue(&fixture.db).await.unwrap();
    runledger_tests::eventually(async || later.attempts().await.unwrap().len(), |n| *n == 1).await;
    let plain = nested_plain(1).enqueue(&fixture.db).await.unwrap();
    assert_eq!(plain.result_within(PATIENCE).await.unwrap(), 2);
    worker.stop().await;
}

/// Draws a random number in the closure that builds a compensation.
#[workflow]
async fn nested_in_an_undo(wf: &Wf) -> Result<u64> {
    Ok(wf.saga().run(nested_plain(1), |n| nested_plain(n + wf.random() % 2)).await?)
}

/// Compensates a step in the body of another step.
#[workflow]
async fn nested_undo(wf: &Wf) -> Result<u64> {
    let saga = wf.saga();
    let n = saga.run(nested_plain(1), |n| nested_plain(*n)).await?;
    let saga = Mutex::new(Some(saga));
    wf.step("outer", || async {
        let taken = saga.lock().unwrap().take();
        if let Some(taken) = taken {
            taken.compensate().await;
        }
        Ok::<_, Error>(())
    })
    .await?;
    Ok(n)
}

#[tokio::test(flavor = "multi_thread")]
async fn random_in_compensation_closure_and_compensate_in_step_are_refused() {
    let fixture = Fixture::new().await;
    let jobs = jobs![nested_in_an_undo, nested_undo, nested_plain];
    let worker = App::new(fixture.db.clone()).with(jobs).start().await.unwrap();
    let asks = nested_in_an_undo().enqueue(&fixture.db).await.unwrap().result_within(PATIENCE).await;
    let takes_back = nested_undo().enqueue(&fixture.db).await.unwrap().result_within(PATIENCE).await;
    for (refused, what) in [(asks, "random"), (takes_back, "saga.compensate")] {
        let Err(ClientError::RunFailed { failure, .. }) = refused else { panic!("{what}: {refused:?}") };
        let said = format!("`{what}` was started inside the body of another step");
        assert!(failure.to_string().contains(&said), "{failure}");
    }
    worker.stop().await;
}

/// Calls the engine between its steps.
#[workflow]
async fn asks_between(wf: &Wf, what: String, #[inject] db: &Db) -> Result<u64> {
    let own = RunHandle::attach(asks_between, db, wf.run_id());
    match what.as_str() {
        "enqueue" => drop(nested_plain(1).enqueue(db).await?),
        "enqueue_all" => drop(enqueue_all([nested_plain(1), nested_plain(2)], db).await?),
        "enqueue in a transaction" => drop(nested_plain(1).enqueue(&mut db.begin().await?).await?),
        "submit a graph" => {
            let mut graph = Graph::new("nested");
            graph.call(nested_plain(1));
            drop(graph.enqueue(db).await?);
        }
        "signal" => drop(own.signal("self", &1).await?),
        "signal in a transaction" => drop(own.signal("self", &1).send(&mut db.begin().await?).await?),
        "wait for itself" => return Ok(own.result().await?),
        "ask for its state" => drop(own.state().await?),
        "cancel" => drop(own.cancel("by itself").await?),
        _ => return Err(what.into()),
    }
    Ok(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn client_calls_between_workflow_steps_are_refused_without_retry() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let app = App::new(db.clone()).with(jobs![asks_between]).provide(db.clone());
    let worker = app.start().await.unwrap();
    let asked = [
        "enqueue",
        "enqueue_all",
        "enqueue in a transaction",
        "submit a graph",
        "signal",
        "signal in a transaction",
        "wait for itself",
        "ask for its state",
        "cancel",
    ];
    for what in asked {
        let run = asks_between(what.to_owned()).enqueue(&db).await.unwrap();
        let refused = run.result_within(PATIENCE).await;
        let Err(ClientError::RunFailed { failure, .. }) = refused else { panic!("{what}: {refused:?}") };
        assert!(failure.message.contains("between the steps of a workflow"), "{what}: {failure}");
        assert_eq!(run.info().await.unwrap().attempt, 1, "{what}: another attempt would ask again");
    }
    let n_runs: i64 = scalar(&db, "select count(*) from runledger.run").await;
    assert_eq!(n_runs, asked.len() as i64, "nothing was written");
    assert_eq!(scalar::<i64>(&db, "select count(*) from runledger.signal").await, 0);
    worker.stop().await;
}

#[job]
async fn asks_in_a_job(#[inject] db: &Db) -> Result<u64> {
    Ok(nested_plain(1).enqueue(db).await?.result().await?)
}

/// Makes the same calls where a replay skips them.
#[workflow]
async fn asks_within(wf: &Wf, #[inject] db: &Db) -> Result<u64> {
    let of_job = wf.run(asks_in_a_job()).await?;
    let of_step = wf
        .step("asks", || async { Ok::<_, Error>(nested_plain(2).enqueue(db).await?.result().await?) })
        .await?;
    wf.tx("sends", |mut tx| async move { nested_plain(3).enqueue(&mut tx).await.map(drop) }).await?;
    Ok(of_job + of_step)
}

#[tokio::test(flavor = "multi_thread")]
async fn client_calls_inside_steps_are_executed() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let app = App::new(db.clone()).with(jobs![asks_within, asks_in_a_job, nested_plain]).provide(db.clone());
    let worker = app.start().await.unwrap();
    let run = asks_within().enqueue(&db).await.unwrap();
    assert_eq!(run.result_within(PATIENCE).await.unwrap(), 5);
    assert_eq!(scalar::<i64>(&db, "select count(*) from runledger.run").await, 4);
    worker.stop().await;
}
