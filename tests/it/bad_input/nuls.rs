//! Texts with a NUL character, which PostgreSQL cannot store. The client refuses them before it
//! sends a statement.

use runledger::prelude::*;
use runledger::{ClientError, Graph, JobOverrides, RunHandle, RunState, TenantScope};
use runledger_tests::Fixture;
use runledger_tests::rows::{scalar, soon, worker};
use serde_json::json;

use super::told;

const NUL: &str = "a\0b";

#[job(name = "bad_input.nul", max_attempts = 1)]
async fn nul() -> Result<()> {
    Ok(())
}

#[workflow(name = "bad_input.nul_parent", max_attempts = 1)]
async fn nul_parent(wf: &Wf) -> Result<String> {
    let refused = wf.start(nul().metadata("note", NUL)).await.map(drop).unwrap_err().to_string();
    wf.run(nul()).await?;
    Ok(refused)
}

#[tokio::test]
async fn metadata_with_nul_is_refused_by_name_and_writes_nothing() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let mut graph = Graph::<()>::new("nul").metadata("note", NUL);
    graph.call(nul());
    let mut node = Graph::<()>::new("nul");
    let one = node.call(nul());
    node.configure(one).metadata("note", json!({ "lines": ["fine", NUL] }));
    let refused = [
        nul().metadata("note", NUL).enqueue(&db).await.map(drop).unwrap_err(),
        nul().metadata("note", json!([{ NUL: 1 }])).enqueue(&db).await.map(drop).unwrap_err(),
        runledger::enqueue_all([nul().metadata("note", NUL)], &db).await.map(drop).unwrap_err(),
        graph.enqueue(&db).await.map(drop).unwrap_err(),
        node.enqueue(&db).await.map(drop).unwrap_err(),
    ];
    for error in refused {
        let text = told(&error);
        assert!(!matches!(error, ClientError::Database(_)), "{error:?}");
        for words in ["`note`", "NUL character"] {
            assert!(text.contains(words), "`{words}` is missing: {text}");
        }
    }
    assert_eq!(scalar::<i64>(&db, "select count(*) from runledger.run").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn nul_in_child_metadata_fails_step_but_not_parent() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![nul, nul_parent]).await;
    let said = soon(nul_parent().enqueue(&db).await.unwrap().result()).await.unwrap();
    assert!(said.contains("the metadata `note` cannot be stored"), "{said}");
    worker.stop().await;
}

/// The server's error would be `invalid byte sequence`, without the name of the text.
#[tokio::test]
async fn text_with_nul_never_reaches_server() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let run = nul().enqueue(&db).await.unwrap();
    let parent = nul_parent().enqueue(&db).await.unwrap();
    let mut graph = Graph::<()>::new("nul");
    graph.gate::<u64>("gate");
    let graph = graph.enqueue(&db).await.unwrap();
    let mut answers: Vec<(&str, std::result::Result<(), ClientError>)> = vec![
        ("runs of a tenant", db.runs(TenantScope::tenant(NUL)).await.map(drop)),
        ("runs of a job", db.runs(TenantScope::All).job(NUL).await.map(drop)),
        ("runs of a queue", db.runs(TenantScope::All).queue(NUL).await.map(drop)),
        ("run within a tenant", db.run_within(&TenantScope::tenant(NUL), run.id()).await.map(drop)),
        (
            "metrics of a tenant",
            db.metrics(TenantScope::tenant(NUL), std::time::Duration::from_secs(60)).await.map(drop),
        ),
        ("resources after", db.resources(Some(NUL)).await.map(drop)),
        ("permits", db.set_permits(NUL, 1).await.map(drop)),
        ("set_overrides", db.set_overrides(NUL, JobOverrides::new().max_attempts(1)).await.map(drop)),
        ("clear_overrides", db.clear_overrides(NUL).await.map(drop)),
        ("configure", db.set_job_config(NUL, 1, &json!({})).await.map(drop)),
        ("unconfigure", db.delete_job_config(NUL, 1).await.map(drop)),
        ("config", db.set_job_config("bad_input.nul", 1, &json!({ "a": NUL })).await.map(drop)),
        ("progress of a step", run.step_progress::<u32>(NUL).await.map(drop)),
        ("query", parent.query::<u32>(NUL).await.map(drop)),
        ("fork", parent.fork(NUL).await.map(drop)),
        ("signal", parent.signal(NUL, &1).send(&db).await.map(drop)),
        ("signal's payload", parent.signal("s", NUL).send(&db).await.map(drop)),
        ("signal's key", parent.signal("s", &1).idempotency_key(NUL).send(&db).await.map(drop)),
        ("gate", graph.gate(NUL).complete(&1).await.map(drop)),
        ("gate's value", graph.gate("gate").complete(NUL).await.map(drop)),
        ("recover", graph.recover(NUL).await.map(drop)),
        ("window", graph.extend_from(NUL).append("key", Graph::new("more")).await.map(drop)),
        ("append", graph.extend_from("gate").append(NUL, Graph::new("more")).await.map(drop)),
        ("tenant", nul().tenant(NUL).enqueue(&db).await.map(drop)),
        ("queue", nul().queue(NUL).enqueue(&db).await.map(drop)),
        ("key", nul().idempotency_key(NUL).enqueue(&db).await.map(drop)),
        ("active key", nul().active_key(NUL).enqueue(&db).await.map(drop)),
        ("resource", nul().resource(NUL).enqueue(&db).await.map(drop)),
        ("graph", Graph::<()>::new(NUL).enqueue(&db).await.map(drop)),
        ("worker's name", App::new(db.clone()).with(jobs![nul]).name(NUL).start().await.map(drop)),
        ("worker's queue", App::new(db.clone()).with(jobs![nul]).queues([NUL]).start().await.map(drop)),
    ];
    let by_name = runledger::enqueue_all([runledger::AnyCall::by_name(NUL, &())], &db).await.map(drop);
    answers.push(("call by name", by_name));
    let reached: Vec<_> = answers
        .iter()
        .filter(|(_, answer)| match answer {
            Ok(()) => true,
            Err(ClientError::Database(_)) => true,
            Err(_) => false,
        })
        .collect();
    assert!(reached.is_empty(), "{reached:#?}");
    // Reasons from people are stored without the NUL character.
    run.pause(NUL).await.unwrap();
    assert_eq!(run.state().await.unwrap(), RunState::Paused);
    let _: RunHandle<_> = run;
}
