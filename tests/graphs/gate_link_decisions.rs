//! Links to gates that allow only one decision, and the use of any link after the decision.

use std::time::Duration;

use runledger::prelude::*;
use runledger::{ClientError, GateLinkKey, Graph, GraphHandle, LinkDecision, RunState};
use runledger_tests::Fixture;
use runledger_tests::rows::{scalar, soon, worker};

use crate::graph_jobs::node;

const HOUR: Duration = Duration::from_secs(3600);

#[job]
async fn announces(approved: bool) -> Result<bool> {
    Ok(approved)
}

fn key() -> GateLinkKey {
    GateLinkKey::new([1; 32]).unwrap()
}

async fn submitted(db: &Db) -> GraphHandle<bool> {
    let mut graph = Graph::new("release");
    let approved = graph.gate::<bool>("approved");
    let announced = graph.then(announces, (approved,));
    graph.result(announced).enqueue(db).await.unwrap()
}

async fn n_decisions(db: &Db) -> i64 {
    scalar(db, "select count(*) from runledger.gate_decision").await
}

#[tokio::test(flavor = "multi_thread")]
async fn bound_link_completes_its_gate_with_its_value() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![announces]).await;
    let handle = submitted(&db).await;
    let text = handle.gate("approved").by("ann").link_to_complete(&key(), HOUR, &true).await.unwrap();
    let link = db.gate_link(&key(), &text).unwrap();
    let value = "true".to_owned();
    assert_eq!(link.decision(), Some(&LinkDecision::Complete { value }));
    link.decide().await.unwrap();
    assert!(soon(handle.result()).await.unwrap());
    assert_eq!(node(&handle, "approved").await.decided_by.as_deref(), Some("ann"));
    worker.stop().await;
}

#[tokio::test]
async fn bound_link_fails_its_gate_with_its_message() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let handle = submitted(&db).await;
    let text = handle.gate("approved").link_to_fail(&key(), HOUR, "the tests are red").await.unwrap();
    let link = db.gate_link(&key(), &text).unwrap();
    let message = "the tests are red".to_owned();
    assert_eq!(link.decision(), Some(&LinkDecision::Fail { message }));
    link.decide().await.unwrap();
    link.decide().await.unwrap();
    let gate = node(&handle, "approved").await;
    assert_eq!(gate.state, RunState::Failed);
    assert_eq!(gate.error.unwrap().message, "the tests are red");
}

#[tokio::test]
async fn bound_link_refuses_every_other_decision() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let handle = submitted(&db).await;
    let to_complete = handle.gate("approved").link_to_complete(&key(), HOUR, &true).await.unwrap();
    let to_complete = db.gate_link(&key(), &to_complete).unwrap();
    let to_fail = handle.gate("approved").link_to_fail(&key(), HOUR, "no").await.unwrap();
    let to_fail = db.gate_link(&key(), &to_fail).unwrap();
    for refused in [
        to_complete.gate().complete(&false).await,
        to_complete.gate().fail("no").await,
        to_complete.gate().cancel("no").await,
        to_fail.gate().complete(&true).await,
        to_fail.gate().fail("maybe").await,
        to_fail.gate().cancel("no").await,
    ] {
        let error = refused.unwrap_err();
        assert!(matches!(error, ClientError::LinkBound { .. }), "{error:?}");
        let graph = handle.id();
        assert_eq!(
            error.to_string(),
            format!(
                "the link to the gate `approved` of graph `{graph}` is bound to another decision; nothing was written; call `decide` on the link, or ask for another link"
            )
        );
    }
    assert_eq!(n_decisions(&db).await, 0);
    assert_eq!(node(&handle, "approved").await.state, RunState::Waiting);
    to_complete.gate().reason("looks good").complete(&true).await.unwrap();
    assert_eq!(node(&handle, "approved").await.reason.as_deref(), Some("looks good"));
}

#[tokio::test]
async fn unbound_link_has_no_decision_to_carry_out() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let handle = submitted(&db).await;
    let text = handle.gate("approved").link(&key(), HOUR).await.unwrap();
    let link = db.gate_link(&key(), &text).unwrap();
    assert_eq!(link.decision(), None);
    let error = link.decide().await.unwrap_err();
    assert!(matches!(error, ClientError::LinkUnbound { .. }), "{error:?}");
    assert!(error.to_string().ends_with("nothing was written; decide with `link.gate()`"), "{error}");
    assert_eq!(n_decisions(&db).await, 0);
}

#[tokio::test]
async fn link_is_not_signed_for_mistyped_value_or_missing_gate() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let handle = submitted(&db).await;
    let error = handle.gate("approved").link_to_complete(&key(), HOUR, "yes").await.unwrap_err();
    assert!(matches!(error, ClientError::GateValue { .. }), "{error:?}");
    for error in [
        handle.gate("aproved").link_to_complete(&key(), HOUR, &true).await.unwrap_err(),
        handle.gate("aproved").link_to_fail(&key(), HOUR, "no").await.unwrap_err(),
    ] {
        assert!(error.to_string().contains("did you mean `approved`?"), "{error}");
    }
}

#[tokio::test]
async fn link_can_only_repeat_decision_of_decided_gate() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let handle = submitted(&db).await;
    let unbound = handle.gate("approved").by("ann").link(&key(), HOUR).await.unwrap();
    let bound = handle.gate("approved").by("bob").link_to_complete(&key(), HOUR, &true).await.unwrap();
    let rejecting = handle.gate("approved").by("eve").link_to_fail(&key(), HOUR, "no").await.unwrap();
    let [unbound, bound, rejecting] =
        [unbound, bound, rejecting].map(|text| db.gate_link(&key(), &text).unwrap());
    bound.decide().await.unwrap();
    let before: String = decision(&db).await;
    bound.decide().await.unwrap();
    unbound.gate().complete(&true).await.unwrap();
    for refused in
        [unbound.gate().complete(&false).await, unbound.gate().fail("no").await, rejecting.decide().await]
    {
        let error = refused.unwrap_err();
        assert!(matches!(error, ClientError::GateDecided { .. }), "{error:?}");
    }
    assert_eq!(decision(&db).await, before);
    assert!(before.contains("bob"), "{before}");
}

/// Returns the decisions and outcomes as text.
async fn decision(db: &Db) -> String {
    scalar(
        db,
        "select (select json_agg(gate_decision)::text from runledger.gate_decision) || (select json_agg(outcome)::text from runledger.outcome)",
    )
    .await
}

#[tokio::test]
async fn link_to_original_graph_cannot_decide_gate_of_recovered_graph() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let handle = submitted(&db).await;
    let unbound = handle.gate("approved").link(&key(), HOUR).await.unwrap();
    let rejecting = handle.gate("approved").link_to_fail(&key(), HOUR, "not now").await.unwrap();
    let bound = handle.gate("approved").link_to_complete(&key(), HOUR, &true).await.unwrap();
    let [unbound, rejecting, bound] =
        [unbound, rejecting, bound].map(|text| db.gate_link(&key(), &text).unwrap());
    rejecting.decide().await.unwrap();
    let worker = worker(&db, jobs![announces]).await;
    assert!(soon(handle.result()).await.is_err());
    let again = handle.recover("again").await.unwrap();
    assert_ne!(again.id(), handle.id());
    rejecting.decide().await.unwrap();
    for refused in [unbound.gate().complete(&true).await, bound.decide().await] {
        let error = refused.unwrap_err();
        assert!(matches!(error, ClientError::GateDecided { .. }), "{error:?}");
    }
    assert_eq!(node(&again, "approved").await.state, RunState::Waiting);
    let text = again.gate("approved").link_to_complete(&key(), HOUR, &true).await.unwrap();
    db.gate_link(&key(), &text).unwrap().decide().await.unwrap();
    assert!(soon(again.result()).await.unwrap());
    worker.stop().await;
}
