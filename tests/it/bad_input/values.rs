//! Arguments and outputs that cannot be stored.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};

use runledger::prelude::*;
use runledger::{ClientError, FailureKind};
use runledger_tests::Fixture;
use serde_json::{Value, json};

use super::told;

/// Above the limits for the size and the depth of stored values.
const TOO_LARGE: usize = 1 << 20;
const TOO_DEEP: usize = 80;

#[job(name = "bad_input.text")]
async fn text(note: BTreeMap<String, String>) -> Result<usize> {
    Ok(note.len())
}

#[job(name = "bad_input.number")]
async fn number(rates: Vec<f64>) -> Result<usize> {
    Ok(rates.len())
}

#[job(name = "bad_input.value")]
async fn value(value: Value) -> Result<usize> {
    Ok(value.to_string().len())
}

static N_BODIES: AtomicU32 = AtomicU32::new(0);

#[job(name = "bad_input.output", max_attempts = 3, backoff = "1ms..1ms")]
async fn output(what: &str) -> Result<BTreeMap<String, Value>> {
    N_BODIES.fetch_add(1, Ordering::Relaxed);
    let value = match what {
        "nul" => json!(["a\0b"]),
        "large" => json!("x".repeat(TOO_LARGE)),
        _ => nested(TOO_DEEP),
    };
    Ok(BTreeMap::from([("it".to_owned(), value)]))
}

static N_STEPS: AtomicU32 = AtomicU32::new(0);

#[workflow(name = "bad_input.step", max_attempts = 1)]
async fn step(wf: &Wf) -> Result<f64> {
    let rate = wf.step("rate", || async {
        N_STEPS.fetch_add(1, Ordering::Relaxed);
        Ok::<_, Error>(f64::NAN)
    });
    Ok(rate.await?)
}

/// JSON has no keys of this type.
#[workflow(name = "bad_input.pairs", max_attempts = 1)]
async fn pairs(wf: &Wf) -> Result<usize> {
    let pairs = wf.step("pairs", || async {
        N_STEPS.fetch_add(1, Ordering::Relaxed);
        Ok::<_, Error>(BTreeMap::from([((1, 2), 3)]))
    });
    Ok(pairs.await?.len())
}

fn nested(depth: usize) -> Value {
    (0..depth).fold(json!(1), |inner, _| json!([inner]))
}

#[tokio::test]
async fn unstorable_argument_is_refused_with_its_path_and_writes_nothing() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let nul = BTreeMap::from([("for whom".to_owned(), "a\0b".to_owned())]);
    let refused = [
        (
            text(nul).enqueue(&db).await.map(drop),
            "the text at `$.note[\"for whom\"]` contains a NUL character",
        ),
        (
            number(vec![1.0, f64::NAN]).enqueue(&db).await.map(drop),
            "the number at `$.rates[1]` is infinite or not a number",
        ),
        (number(vec![f64::INFINITY]).enqueue(&db).await.map(drop), "the number at `$.rates[0]`"),
        (value(nested(TOO_DEEP)).enqueue(&db).await.map(drop), "levels deep at `$.value[0][0]"),
        (
            value(json!({ "a": "x".repeat(TOO_LARGE) })).enqueue(&db).await.map(drop),
            "at most 1048576 are allowed (passed at `$.value.a`)",
        ),
    ];
    for (answer, words) in refused {
        let error = answer.unwrap_err();
        assert!(matches!(error, ClientError::Encode { .. }), "{error:?}");
        assert!(told(&error).starts_with("the input of job `bad_input."), "{}", told(&error));
        assert!(told(&error).contains(words), "{}", told(&error));
    }
    let n_runs: i64 =
        sqlx::query_scalar("select count(*) from runledger.run").fetch_one(db.pool()).await.unwrap();
    assert_eq!(n_runs, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn unstorable_output_fails_run_without_another_attempt() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = App::new(db.clone()).with(jobs![output]).start().await.unwrap();
    let cases = [
        ("nul", "`$.it[0]` contains a NUL"),
        ("large", "passed at `$.it`"),
        ("deep", "levels deep at `$.it[0]"),
    ];
    for (n_before, (what, words)) in (0..).zip(cases) {
        let run = output(what).enqueue(&db).await.unwrap();
        let Err(ClientError::RunFailed { failure, .. }) = run.result().await else {
            panic!("{what} was stored")
        };
        assert_eq!(failure.kind, FailureKind::Encode);
        let said = "the output cannot be stored, though the body ran and its effects may have happened: ";
        assert!(failure.message.starts_with(said) && failure.message.contains(words), "{failure}");
        assert_eq!(N_BODIES.load(Ordering::Relaxed), n_before + 1, "the body ran again");
    }
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unstorable_step_output_error_warns_of_possible_effects() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = App::new(db.clone()).with(jobs![step, pairs]).start().await.unwrap();
    let results = [
        (
            "rate",
            "the number at `$` is infinite",
            step().enqueue(&db).await.unwrap().result().await.map(drop),
        ),
        (
            "pairs",
            "a key of the map at `$` is not a",
            pairs().enqueue(&db).await.unwrap().result().await.map(drop),
        ),
    ];
    for (name, words, result) in results {
        let Err(ClientError::RunFailed { failure, .. }) = result else { panic!("`{name}` was stored") };
        let said = failure.to_string();
        assert!(said.starts_with(&format!("step `{name}` failed: ")), "{said}");
        assert!(said.contains(&format!("its effects may have happened: {words}")), "{said}");
    }
    assert_eq!(N_STEPS.load(Ordering::Relaxed), 2, "a body whose output can never be stored ran again");
    worker.stop().await;
}
