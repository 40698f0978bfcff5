//! Revocations of the links to a gate.

use std::time::Duration;

use runledger::prelude::*;
use runledger::{ClientError, GateLinkKey, Graph, GraphHandle, NodeInfo, RunState};
use runledger_tests::rows::{execute, random, scalar};
use runledger_tests::{Fixture, eventually};
use sqlx::Connection;
use uuid::Uuid;

use crate::graph_jobs::node;

const HOUR: Duration = Duration::from_secs(3600);

const SECRET: [u8; 32] = [1; 32];

fn key() -> GateLinkKey {
    GateLinkKey::new(SECRET).unwrap()
}

async fn submitted(db: &Db) -> GraphHandle<()> {
    let mut graph = Graph::new("release");
    graph.gate::<bool>("approved");
    graph.gate::<bool>("tested");
    graph.enqueue(db).await.unwrap()
}

async fn gate(handle: &GraphHandle<()>) -> NodeInfo {
    node(handle, "approved").await
}

async fn n_decisions(db: &Db) -> i64 {
    scalar(db, "select count(*) from runledger.gate_decision").await
}

fn assert_revoked(answer: Result<(), ClientError>, graph: Uuid) {
    let error = answer.unwrap_err();
    assert!(matches!(error, ClientError::LinkRevoked { .. }), "{error:?}");
    assert_eq!(
        error.to_string(),
        format!(
            "the link to the gate `approved` of graph `{graph}` was revoked; nothing was written; ask for a new one"
        )
    );
}

#[tokio::test]
async fn revoked_links_decide_nothing_and_later_links_decide() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let handle = submitted(&db).await;
    let approved = || handle.gate("approved");
    let unbound = approved().link(&key(), HOUR).await.unwrap();
    let bound = approved().link_to_complete(&key(), HOUR, &true).await.unwrap();
    let other = handle.gate("tested").link(&key(), HOUR).await.unwrap();
    for _ in 0..2 {
        approved().revoke_links().await.unwrap();
        for text in [&unbound, &bound] {
            let link = db.gate_link(&key(), text).unwrap();
            assert_revoked(link.gate().complete(&true).await, handle.id());
        }
        assert_revoked(db.gate_link(&key(), &bound).unwrap().decide().await, handle.id());
        assert_revoked(db.gate_link(&key(), &unbound).unwrap().gate().fail("no").await, handle.id());
        assert_eq!((gate(&handle).await.state, n_decisions(&db).await), (RunState::Waiting, 0));
    }
    let later = approved().link_to_complete(&key(), HOUR, &true).await.unwrap();
    db.gate_link(&key(), &later).unwrap().decide().await.unwrap();
    assert_eq!(gate(&handle).await.state, RunState::Completed);
    // The decided gate accepts no decision by a revoked link, not even the same one.
    assert_revoked(db.gate_link(&key(), &bound).unwrap().decide().await, handle.id());
    // The other gate and decisions without a link are not affected.
    db.gate_link(&key(), &other).unwrap().gate().complete(&true).await.unwrap();
}

#[tokio::test]
async fn revocation_does_not_affect_decisions_without_link() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let handle = submitted(&db).await;
    handle.gate("approved").revoke_links().await.unwrap();
    handle.gate("approved").complete(&true).await.unwrap();
    let error = handle.gate("aproved").revoke_links().await.unwrap_err().to_string();
    assert!(error.contains("no gate `aproved`; did you mean `approved`?"), "{error}");
}

#[tokio::test]
async fn link_of_first_format_decides_until_revocation() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let [open, revoked] = [submitted(&db).await, submitted(&db).await];
    let text = first_format(&db, open.id()).await;
    let link = db.gate_link(&key(), &text).unwrap();
    assert_eq!((link.name(), link.by(), link.decision()), ("approved", Some("ann"), None));
    link.gate().complete(&true).await.unwrap();
    assert_eq!(gate(&open).await.decided_by.as_deref(), Some("ann"));

    let text = first_format(&db, revoked.id()).await;
    revoked.gate("approved").revoke_links().await.unwrap();
    assert_revoked(db.gate_link(&key(), &text).unwrap().gate().complete(&true).await, revoked.id());
}

/// A link in the first format: HMAC-SHA-256, computed by its definition.
async fn first_format(db: &Db, graph: Uuid) -> String {
    let mut said = vec![1];
    said.extend(graph.as_bytes());
    said.extend((i64::MAX / 4096).to_be_bytes());
    for text in ["approved", "ann"] {
        said.extend(u32::try_from(text.len()).unwrap().to_be_bytes());
        said.extend(text.as_bytes());
    }
    let padded = |pad: u8| [SECRET.map(|byte| byte ^ pad), [pad; 32]].concat();
    sqlx::query_scalar(
        "select translate(encode($3 || sha256($1 || sha256($2 || $3)), 'base64'), E'+/=\\n', '-_')",
    )
    .bind(padded(0x5c))
    .bind(padded(0x36))
    .bind(said)
    .fetch_one(db.pool())
    .await
    .unwrap()
}

/// Gates of older programs have no row in the tables of later migrations.
#[tokio::test]
async fn links_to_gate_of_older_program_are_revocable() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let handle = submitted(&db).await;
    execute(&db, "delete from runledger.gate").await;
    let text = handle.gate("approved").link(&key(), HOUR).await.unwrap();
    handle.gate("approved").revoke_links().await.unwrap();
    assert_revoked(db.gate_link(&key(), &text).unwrap().gate().complete(&true).await, handle.id());
}

#[tokio::test(flavor = "multi_thread")]
async fn decision_waiting_for_revocation_commit_is_refused() {
    let Fixture { db, database } = Fixture::new().await;
    let handle = submitted(&db).await;
    let text = handle.gate("approved").link_to_complete(&key(), HOUR, &true).await.unwrap();
    let mut connection = database.connect().await.unwrap();
    let mut revocation = connection.begin().await.unwrap();
    let gate_id = gate(&handle).await.run_id;
    // The statements of a revocation.
    for statement in [
        "select from runledger.run where run_id = $1 for no key update",
        "insert into runledger.link_epoch (run_id, epoch) values ($1, gen_random_uuid())",
    ] {
        sqlx::query(statement).bind(gate_id).execute(&mut *revocation).await.unwrap();
    }
    let decision = tokio::spawn({
        let db = db.clone();
        async move { db.gate_link(&key(), &text).unwrap().decide().await }
    });
    until_one_waits(&db).await;
    revocation.commit().await.unwrap();
    assert_revoked(decision.await.unwrap(), handle.id());
    assert_eq!((gate(&handle).await.state, n_decisions(&db).await), (RunState::Waiting, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn revocation_waits_for_started_decision() {
    let Fixture { db, database } = Fixture::new().await;
    let handle = submitted(&db).await;
    let gate_id = gate(&handle).await.run_id;
    let mut connection = database.connect().await.unwrap();
    let mut decision = connection.begin().await.unwrap();
    // The first statement of a decision.
    let lock = "select from runledger.run where run_id = $1 for no key update";
    sqlx::query(lock).bind(gate_id).execute(&mut *decision).await.unwrap();
    let revocation = tokio::spawn({
        let db = db.clone();
        async move { db.graph::<()>(handle.id()).gate("approved").revoke_links().await }
    });
    until_one_waits(&db).await;
    assert_eq!(scalar::<i64>(&db, "select count(*) from runledger.link_epoch").await, 0);
    decision.commit().await.unwrap();
    revocation.await.unwrap().unwrap();
    assert_eq!(scalar::<i64>(&db, "select count(*) from runledger.link_epoch").await, 1);
}

/// Waits until a session of this database waits for a lock.
async fn until_one_waits(db: &Db) {
    let waiting = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'";
    eventually(async || scalar::<i64>(db, waiting).await, |n| *n == 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn decision_racing_with_revocation_is_applied_or_refused() {
    let Fixture { db, database: _database } = Fixture::new().await;
    for _ in 0..20 {
        let handle = submitted(&db).await;
        let text = handle.gate("approved").link_to_complete(&key(), HOUR, &true).await.unwrap();
        let link = db.gate_link(&key(), &text).unwrap();
        let pause = || tokio::time::sleep(Duration::from_micros(random(2000)));
        let (decided, revoked) = tokio::join!(
            async {
                pause().await;
                link.decide().await
            },
            async {
                pause().await;
                handle.gate("approved").revoke_links().await
            },
        );
        revoked.unwrap();
        let state = gate(&handle).await.state;
        match decided {
            Ok(()) => assert_eq!(state, RunState::Completed),
            refused => {
                assert_revoked(refused, handle.id());
                assert_eq!(state, RunState::Waiting);
            }
        }
        assert_revoked(link.decide().await, handle.id());
    }
}
