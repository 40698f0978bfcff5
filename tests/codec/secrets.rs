//! Secret values: they never appear in plain text.

use runledger::model::replay::StepKind;
use runledger::prelude::*;
use runledger::{AnyCall, ClientError, FailureKind, PayloadError, Secret, StepError};
use runledger_tests::Fixture;
use runledger_tests::rows::{scalar, soon, until, worker};
use serde::{Deserialize, Serialize};

use crate::words::{jobs, sealed};

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Login {
    user: String,
    token: Secret<String>,
}

fn login() -> Login {
    Login { user: "ada".into(), token: Secret::new("hunter2".into()) }
}

#[job]
pub async fn logs_in(login: Login) -> Result<String> {
    Ok(login.token.expose().clone())
}

/// Passes a secret to a called job, to a child, out of a step, or into a published state.
#[workflow]
async fn passes_on(wf: &Wf, how: String) -> Result<String> {
    let failed: Result<String, StepError> = match how.as_str() {
        "call" => wf.run(logs_in(login())).await,
        "child" => match wf.start(logs_in(login())).await {
            Ok(child) => child.result().await,
            Err(error) => Err(error),
        },
        "step" => wf.step("login", || async { Ok::<_, Error>(login()) }).await.map(|login| login.user),
        _ => wf.publish("login", &login()).await.map(|()| how),
    };
    match failed {
        Ok(_) => Ok("stored".into()),
        Err(error) => Ok(error.failure().to_string()),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn secret_in_input_is_read_back_under_codec() {
    let Fixture { db, database: _database } = sealed().await;
    let worker = worker(&db, jobs()).await;
    let handle = logs_in(login()).enqueue(&db).await.unwrap();
    assert_eq!(soon(handle.result()).await.unwrap(), "hunter2");
    worker.stop().await;
}

#[job(max_attempts = 1_000_000, backoff = "1ms..10ms")]
async fn logs_in_as_configured(#[inject] context: &Context) -> Result<String> {
    let login: Login = context.config(1)?.ok_or("nobody is to log in")?;
    Ok(login.token.expose().clone())
}

#[tokio::test(flavor = "multi_thread")]
async fn configured_secret_is_encrypted_and_undecryptable_one_is_retried() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let error = db.set_job_config("logs_in_as_configured", 1, &login()).await.unwrap_err();
    let ClientError::EncodeConfig { source: PayloadError::SecretWithoutCodec { what }, .. } = &error else {
        panic!("{error:?}")
    };
    assert_eq!(what, "the configuration of job `logs_in_as_configured`");
    assert!(db.job_configs().await.unwrap().is_empty());

    let sealed = db.clone().with_codec(crate::words::codec());
    sealed.set_job_config("logs_in_as_configured", 1, &login()).await.unwrap();
    assert!(db.job_configs().await.unwrap()[0].config.starts_with("{\"$sealed\""));
    assert_eq!(sealed.job_configs().await.unwrap()[0].value::<Login>().unwrap().token.expose(), "hunter2");
    let without = worker(&db, jobs![logs_in_as_configured]).await;
    let handle = logs_in_as_configured().enqueue(&db).await.unwrap();
    until(&db, handle.id(), |info| info.attempt > 1).await;
    let failed = handle.attempts().await.unwrap();
    let said = failed[0].error.as_ref().unwrap().to_string();
    assert!(said.contains("cannot be read") && said.contains("this program has no codec"), "{said}");
    without.stop().await;
    let with = worker(&sealed, jobs![logs_in_as_configured]).await;
    assert_eq!(soon(handle.with_db(&sealed).result()).await.unwrap(), "hunter2");
    with.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn secret_without_codec_is_refused_and_leaves_no_fingerprint() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let error = logs_in(login()).enqueue(&db).await.unwrap_err();
    let ClientError::Encode { source: PayloadError::SecretWithoutCodec { what }, .. } = &error else {
        panic!("{error:?}")
    };
    assert_eq!(what, "the input");
    assert_eq!(scalar::<i64>(&db, "select count(*) from runledger.run").await, 0);
    let worker = worker(&db, jobs![passes_on, logs_in]).await;
    for how in ["call", "child", "step", "publish"] {
        let handle = passes_on(how.into()).enqueue(&db).await.unwrap();
        let said = soon(handle.result()).await.unwrap();
        assert!(said.contains("has a `Secret`, and no codec seals it"), "{how}: {said}");
        let steps = handle.steps().await.unwrap();
        assert_eq!(steps[0].result.as_ref().unwrap_err().kind, FailureKind::Encode, "it is recorded: {how}");
    }
    // Neither a step nor the start of a child may have a fingerprint of its input.
    let none = [StepKind::Output, StepKind::Child].map(|kind| kind.fingerprint(0));
    let fingerprints =
        sqlx::query_scalar("select count(*) from runledger.step where fingerprint <> all ($1)");
    let n_of_inputs: i64 = fingerprints.bind(none).fetch_one(db.pool()).await.unwrap();
    assert_eq!(n_of_inputs, 0, "a bare hash of a secret is kept");
    let error =
        passes_on("x".into()).enqueue(&db).await.unwrap().signal("login", &login()).await.unwrap_err();
    assert!(matches!(error, ClientError::EncodeSignal { .. }), "{error}");
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn secret_passes_through_steps_children_and_publication_under_codec() {
    let Fixture { db, database: _database } = sealed().await;
    let worker = worker(&db, jobs![passes_on, logs_in]).await;
    for how in ["call", "child", "step", "publish"] {
        let handle = passes_on(how.into()).enqueue(&db).await.unwrap();
        assert_eq!(soon(handle.result()).await.unwrap(), "stored", "{how}");
    }
    worker.stop().await;
}

#[tokio::test]
async fn debug_and_json_output_redacts_secret() {
    let call = logs_in(login());
    let any = AnyCall::by_name("logs_in", &login());
    let text = format!("{call:?} {any:?} {:?} {}", login(), serde_json::to_string(&login()).unwrap());
    assert!(!text.contains("hunter2") && text.contains("[secret]"), "{text}");
}

#[job]
async fn reads(token: Secret<u32>) -> Result<()> {
    assert_ne!(*token.expose(), 0);
    Ok(())
}

/// An error of serde would contain the value.
#[tokio::test(flavor = "multi_thread")]
async fn secret_of_wrong_type_is_reported_without_value() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let run = AnyCall::by_name("reads", &serde_json::json!({ "token": "hunter2" }));
    let id = runledger::enqueue_all([run], &db).await.unwrap()[0].run_id;
    let worker = worker(&db, jobs![reads]).await;
    let error = soon(RunHandle::attach(reads, &db, id).result()).await.unwrap_err();
    let ClientError::RunFailed { failure, .. } = error else { panic!("{error}") };
    assert!(failure.to_string().contains("a secret of another type"), "{failure}");
    assert!(!failure.to_string().contains("hunter2"), "{failure}");
    worker.stop().await;
}
