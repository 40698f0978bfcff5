//! Pictures of graphs whose requests are sealed.

use runledger::{ClientError, Graph};
use runledger_tests::Fixture;

use crate::words::{codec, tells};

#[tokio::test]
async fn a_sealed_graph_shows_its_result_to_who_has_the_key_and_is_not_said_to_have_none_to_others() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let sealed = db.clone().with_codec(codec());
    let mut graph = Graph::new("sealed");
    let told = graph.call(tells("abc".to_owned()));
    let declared = graph.picture().unwrap();
    let handle = graph.result(told).enqueue(&sealed).await.unwrap();
    let picture = handle.picture().await.unwrap();
    assert_eq!((picture.result.as_deref(), picture.nodes.len()), (Some("tells"), declared.nodes.len()));
    assert!(!picture.to_json().unwrap().contains("abc"), "what nodes are given is not shown");
    let without = handle.on(&db).picture().await.unwrap_err();
    assert!(matches!(without, ClientError::Unreadable { run_id, .. } if run_id == handle.id()), "{without}");
}
