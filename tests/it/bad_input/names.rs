//! Names, keys, tenants and queues that break a rule.

use runledger::prelude::*;
use runledger::{AnyCall, ClientError, Graph, enqueue_all};
use runledger_tests::Fixture;

use super::told;

#[job(name = "bad_input.named")]
async fn named() -> Result<()> {
    Ok(())
}

async fn n_runs(db: &Db) -> i64 {
    sqlx::query_scalar("select count(*) from runledger.run").fetch_one(db.pool()).await.unwrap_or(-1)
}

#[tokio::test]
async fn invalid_names_and_keys_are_refused_with_rule_before_write() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let long = "k".repeat(257);
    let refused = [
        (
            named().queue("Bad Queue"),
            "queue `Bad Queue` does not begin with a lower-case letter; use 1 to 48 of",
        ),
        (named().queue("x\"; drop table run"), "has a character that is not allowed"),
        (named().queue("q".repeat(49)), "is longer than 48 bytes"),
        (named().tenant("a\0b"), "tenant `a\\0b` has a control character; use 1 to 256 bytes of text"),
        (named().tenant(""), "tenant `` is blank"),
        (named().tenant("  "), "tenant `  ` is blank"),
        (named().idempotency_key(""), "idempotency key `` is blank"),
        (named().idempotency_key("line\nline"), "idempotency key `line\\nline` has a control character"),
        (named().idempotency_key(&long), "is longer than 256 bytes"),
    ];
    for (call, words) in refused {
        let error = call.enqueue(&db).await.unwrap_err();
        assert!(matches!(error, ClientError::Name(_)), "{error:?}");
        assert!(told(&error).contains(words), "{}", told(&error));
    }
    assert_eq!(n_runs(&db).await, 0);
}

#[tokio::test]
async fn call_by_unknown_job_name_is_refused_with_suggestion() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let typo = enqueue_all([AnyCall::by_name("bad_input.nmaed", &())], &db).await.unwrap_err();
    assert!(told(&typo).contains("no job `bad_input.nmaed` is known"), "{typo}");
    assert!(told(&typo).contains("did you mean `bad_input.named`?"), "{typo}");
    let hostile = enqueue_all([AnyCall::by_name("x'; drop schema runledger cascade; --", &())], &db).await;
    assert!(hostile.is_err());
    assert_eq!(n_runs(&db).await, 0);
}

/// A live worker serves the engine's own jobs, but no caller may enqueue them.
#[tokio::test]
async fn reserved_engine_jobs_cannot_be_called_by_name() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = "insert into runledger.worker (name, version, session_name, jobs, queues)
                  values ('w', '1', 's', '{runledger.gate,runledger.graph,runledger.map}', '{default}')";
    runledger_tests::rows::execute(&db, worker).await;
    for name in ["runledger.gate", "runledger.graph", "runledger.map"] {
        let alone = enqueue_all([AnyCall::by_name(name, &())], &db).await.unwrap_err();
        let mut graph = Graph::new("g");
        graph.node("n", AnyCall::by_name(name, &()));
        for error in [alone, graph.enqueue(&db).await.unwrap_err()] {
            assert!(
                told(&error).contains(&format!("job `{name}` is reserved; choose another")),
                "{}",
                told(&error)
            );
        }
    }
    assert_eq!(n_runs(&db).await, 0);
}

#[tokio::test]
async fn one_invalid_call_refuses_whole_batch() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let batch = [named(), named().queue("Bad"), named()];
    assert!(matches!(enqueue_all(batch, &db).await, Err(ClientError::Name(_))));
    assert_eq!(n_runs(&db).await, 0);
}

#[tokio::test]
async fn worker_with_invalid_queue_or_name_does_not_start() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let queue = App::new(db.clone()).with(jobs![named]).queues(["Bad"]).start().await.unwrap_err();
    assert!(told(&queue).starts_with("queue `Bad`"), "{queue}");
    let name = App::new(db.clone()).with(jobs![named]).name("a\nb").start().await.unwrap_err();
    assert!(told(&name).starts_with("worker name `a\\nb` has a control character"), "{name}");
    assert!(db.workers().await.unwrap().is_empty());
}
