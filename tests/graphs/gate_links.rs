//! Links with which outsiders decide a gate.

use std::time::{Duration, SystemTime};

use runledger::prelude::*;
use runledger::{ClientError, GateLinkKey, Graph, GraphHandle, RunState};
use runledger_tests::Fixture;
use runledger_tests::rows::{scalar, soon, worker};

const HOUR: Duration = Duration::from_secs(3600);

#[job]
async fn publishes(approved: bool) -> Result<bool> {
    Ok(approved)
}

fn key(byte: u8) -> GateLinkKey {
    GateLinkKey::new([byte; 32]).unwrap()
}

async fn submitted(db: &Db) -> GraphHandle<bool> {
    let mut graph = Graph::new("release");
    let approved = graph.gate::<bool>("approved");
    let published = graph.then(publishes, (approved,));
    graph.result(published).enqueue(db).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn signed_link_decides_gate_in_name_of_its_recipient() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![publishes]).await;
    let handle = submitted(&db).await;
    let text = handle.gate("approved").by("ann").link(&key(1), HOUR).await.unwrap();
    let link = db.gate_link(&key(1), &text).unwrap();
    assert_eq!((link.graph_id(), link.name(), link.by()), (handle.id(), "approved", Some("ann")));
    assert!(link.expires_at() > SystemTime::now());
    link.gate().by("mallory").reason("looks good").complete(&true).await.unwrap();
    link.gate().complete(&true).await.unwrap();
    let error = link.gate().complete(&false).await.unwrap_err();
    assert!(matches!(error, ClientError::GateDecided { .. }), "{error}");
    assert!(soon(handle.result()).await.unwrap());
    let nodes = handle.nodes().await.unwrap();
    let gate = nodes.iter().find(|node| node.name == "approved").unwrap();
    assert_eq!(gate.decided_by.as_deref(), Some("ann"), "the link is hers");
    assert_eq!(gate.reason.as_deref(), Some("looks good"));
    worker.stop().await;
}

#[tokio::test]
async fn expired_or_invalid_link_decides_nothing() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let handle = submitted(&db).await;
    let over = handle.gate("approved").link(&key(1), Duration::ZERO).await.unwrap();
    let error = db.gate_link(&key(1), &over).unwrap().gate().complete(&true).await.unwrap_err();
    assert!(matches!(error, ClientError::LinkExpired { .. }), "{error}");
    let valid = handle.gate("approved").link(&key(1), Duration::MAX).await.unwrap();
    let error = db.gate_link(&key(2), &valid).unwrap_err();
    assert!(matches!(error, ClientError::LinkInvalid), "{error}");
    assert!(db.gate_link(&key(1), &valid[1..]).is_err());
    let error = handle.gate("aproved").link(&key(1), HOUR).await.unwrap_err().to_string();
    assert!(error.contains("no gate `aproved`; did you mean `approved`?"), "{error}");
    assert_eq!(handle.state().await.unwrap(), RunState::Waiting);
    assert_eq!(scalar::<i64>(&db, "select count(*) from runledger.gate_decision").await, 0);
    db.gate_link(&key(2).or([1; 32]).unwrap(), &valid).unwrap().gate().fail("no").await.unwrap();
    assert_eq!(handle.nodes().await.unwrap()[0].state, RunState::Failed);
}
