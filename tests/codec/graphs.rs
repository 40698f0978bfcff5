//! Graphs whose requests are encrypted.

use runledger::prelude::*;
use runledger::{AesGcm, ClientError, GateLinkKey, Graph, RunState, Secret};
use runledger_tests::Fixture;
use runledger_tests::rows::{scalar, soon, until, worker};

use crate::words::{codec, tells};

#[tokio::test]
async fn gate_of_encrypted_graph_refuses_plain_value() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let encrypting = db.clone().with_codec(codec());
    let mut graph = Graph::new("sealed");
    graph.gate::<String>("gate");
    let handle = graph.enqueue(&encrypting).await.unwrap();
    let plain = handle.with_db(&db);
    for refused in
        [plain.gate("gate").complete("secret word").await, plain.gate("gate").fail("secret word").await]
    {
        let error = refused.unwrap_err();
        assert!(matches!(&error, ClientError::GateEncrypted { gate, .. } if gate == "gate"), "{error}");
    }
    assert_eq!(scalar::<i64>(&db, "select count(*) from runledger.gate_decision").await, 0);
    let reads = db.clone().with_decoder(codec());
    plain.with_db(&reads).gate("gate").complete("word").await.unwrap();
}

#[workflow]
async fn tells_through_a_graph(wf: &Wf, word: String) -> Result<String> {
    let mut graph = Graph::new("telling");
    let told = graph.call(tells(word));
    let gate = graph.gate::<bool>("gate");
    graph.after(told, gate);
    let graph = wf.start_graph(graph.result(told)).await?;
    Ok(graph.result().await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn key_rotates_while_workflow_waits_for_graph() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let old = db.clone().with_codec(AesGcm::new("2026", [1; 32]));
    let first = worker(&old, jobs![tells_through_a_graph, tells]).await;
    let handle = tells_through_a_graph("xyz".to_owned()).enqueue(&old).await.unwrap();
    until(&old, handle.id(), |info| info.state == RunState::Waiting).await;
    first.stop().await;
    assert_eq!(
        scalar::<i64>(&db, "select count(*) from runledger.run where input::text like '%abc%'").await,
        0
    );
    let db = db.with_codec(AesGcm::new("2027", [2; 32]).with_previous_key("2026", [1; 32]));
    let second = worker(&db, jobs![tells_through_a_graph, tells]).await;
    let graph = scalar(&db, "select run_id from runledger.run where graph = 'telling'").await;
    db.graph::<String>(graph).gate("gate").complete(&true).await.unwrap();
    assert_eq!(soon(handle.with_db(&db).result()).await.unwrap(), "xyz");
    second.stop().await;
}

#[tokio::test]
async fn picture_of_encrypted_graph_needs_key_and_hides_inputs() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let sealed = db.clone().with_codec(codec());
    let mut graph = Graph::new("sealed");
    let told = graph.call(tells("xyz".to_owned()));
    let declared = graph.picture().unwrap();
    let handle = graph.result(told).enqueue(&sealed).await.unwrap();
    let picture = handle.picture().await.unwrap();
    assert_eq!((picture.result.as_deref(), picture.nodes.len()), (Some("tells"), declared.nodes.len()));
    assert!(!picture.to_json().unwrap().contains("xyz"), "what nodes are given is not shown");
    let without = handle.with_db(&db).picture().await.unwrap_err();
    assert!(matches!(without, ClientError::Unreadable { run_id, .. } if run_id == handle.id()), "{without}");
}

#[tokio::test]
async fn link_revealing_encrypted_or_secret_decision_is_refused() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let key = GateLinkKey::new([1; 32]).unwrap();
    let hour = std::time::Duration::from_secs(3600);
    let mut graph = Graph::new("release");
    graph.gate::<bool>("approved");
    let plain = graph.enqueue(&db).await.unwrap();
    let refused = |error: ClientError| {
        assert!(matches!(error, ClientError::LinkShowsSealed { .. }), "{error:?}");
        assert!(error.to_string().contains("sign an unbound link with `link`"), "{error}");
    };
    refused(plain.gate("approved").link_to_complete(&key, hour, &Secret::new(true)).await.unwrap_err());
    let sealing = db.clone().with_codec(AesGcm::new("1", [7; 32]));
    let handle = sealing.graph::<()>(plain.id());
    refused(handle.gate("approved").link_to_complete(&key, hour, &true).await.unwrap_err());
    refused(handle.gate("approved").link_to_fail(&key, hour, "no").await.unwrap_err());
    let unbound = handle.gate("approved").link(&key, hour).await.unwrap();
    sealing.gate_link(&key, &unbound).unwrap().gate().complete(&true).await.unwrap();
}
