//! Nodes of graphs that wait for other nodes.

use runledger::prelude::*;
use runledger::{Graph, Verdict, Verification};
use runledger_tests::Fixture;

#[job]
async fn counts(n: u64) -> Result<u64> {
    Ok(n)
}

#[job]
async fn adds(a: u64, b: u64) -> Result<u64> {
    Ok(a + b)
}

#[job]
async fn lists() -> Result<Vec<u64>> {
    Ok(vec![1, 2])
}

/// The same job names with other code.
mod changed {
    use runledger::prelude::*;

    #[job]
    pub async fn adds(a: u64, b: u64, c: u64) -> Result<u64> {
        Ok(a + b + c)
    }

    #[job]
    pub async fn counts(n: Vec<String>) -> Result<usize> {
        Ok(n.len())
    }

    pub mod renamed {
        use runledger::prelude::*;

        #[job]
        pub async fn counts(count: u64) -> Result<u64> {
            Ok(count)
        }
    }

    pub mod wider {
        use runledger::prelude::*;

        #[job]
        pub async fn counts(n: u64, by: u64) -> Result<u64> {
            Ok(n * by)
        }
    }

    pub mod optional {
        use runledger::prelude::*;

        #[job]
        pub async fn adds(a: u64, b: u64, c: Option<u64>) -> Result<u64> {
            Ok(a + b + c.unwrap_or(0))
        }
    }

    pub mod later {
        use runledger::prelude::*;

        #[job(version = 2)]
        pub async fn adds(a: u64, b: u64) -> Result<u64> {
            Ok(a + b)
        }
    }
}

/// A gate, a node that depends on it, and a node that depends on both.
async fn submit(db: &Db) {
    let mut graph = Graph::new("behind");
    let gate = graph.gate::<u64>("gate");
    let total = graph.then(adds, (gate, gate));
    let again = graph.then(adds, (total, total));
    graph.after(again, gate);
    graph.enqueue(db).await.unwrap();
}

async fn verified(db: &Db, definitions: Vec<&'static runledger::Definition>) -> Verification {
    App::new(db.clone()).with(definitions).verify().await.unwrap()
}

#[tokio::test]
async fn nodes_behind_gate_without_their_job_are_found() {
    let Fixture { db, database: _database } = Fixture::new().await;
    submit(&db).await;
    let verification = verified(&db, jobs![counts].to_vec()).await;
    assert!(!verification.is_ok(), "{verification}");
    let [finding] = &verification.findings[..] else { panic!("{verification}") };
    assert_eq!((finding.job.as_str(), finding.n_runs, &finding.verdict), ("adds", 2, &Verdict::NoCode));
    let verification = verified(&db, jobs![adds].to_vec()).await;
    assert!(verification.is_ok() && verification.n_runs == 2, "{verification}");
}

#[tokio::test]
async fn node_behind_gate_in_unserved_version_is_found() {
    let Fixture { db, database: _database } = Fixture::new().await;
    submit(&db).await;
    let verification = verified(&db, jobs![changed::later::adds].to_vec()).await;
    let [finding] = &verification.findings[..] else { panic!("{verification}") };
    assert_eq!(finding.verdict, Verdict::NoVersion { version: 1, served: vec![2] });
}

#[tokio::test]
async fn node_behind_gate_missing_required_argument_is_found() {
    let Fixture { db, database: _database } = Fixture::new().await;
    submit(&db).await;
    let verification = verified(&db, jobs![changed::adds].to_vec()).await;
    let [finding] = &verification.findings[..] else { panic!("{verification}") };
    let Verdict::Undecodable { failure } = &finding.verdict else { panic!("{verification}") };
    assert!(failure.to_string().contains("missing argument `c`"), "{failure}");
    let verification = verified(&db, jobs![changed::optional::adds].to_vec()).await;
    assert!(verification.is_ok(), "{verification}");
}

#[tokio::test]
async fn node_behind_gate_with_undecodable_argument_is_found() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let mut graph = Graph::new("behind");
    let gate = graph.gate::<bool>("gate");
    let after = graph.call(counts(7).key("after"));
    let under = graph.call(counts(7).key("under"));
    graph.after(after, gate).only_if(under, gate);
    graph.enqueue(&db).await.unwrap();
    let verification = verified(&db, jobs![changed::counts].to_vec()).await;
    let [finding] = &verification.findings[..] else { panic!("{verification}") };
    assert!(matches!(finding.verdict, Verdict::Undecodable { .. }), "{verification}");
    assert_eq!(finding.n_runs, 2);
    let verification = verified(&db, jobs![counts].to_vec()).await;
    assert!(verification.is_ok() && verification.n_runs == 2, "{verification}");
}

#[tokio::test]
async fn map_node_without_job_of_its_items_is_found() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let mut graph = Graph::new("mapped");
    let gate = graph.gate::<Vec<u64>>("gate");
    graph.map(counts, gate);
    graph.enqueue(&db).await.unwrap();
    // A second map node is queued, and no worker has started it.
    let mut graph = Graph::new("mapped");
    graph.map(counts, runledger::value(vec![1]));
    graph.enqueue(&db).await.unwrap();
    let verification = verified(&db, jobs![lists].to_vec()).await;
    let [finding] = &verification.findings[..] else { panic!("{verification}") };
    assert_eq!((finding.job.as_str(), finding.n_runs, &finding.verdict), ("counts", 2, &Verdict::NoCode));
    let verification = verified(&db, jobs![counts].to_vec()).await;
    assert!(verification.is_ok() && verification.n_runs == 2, "{verification}");
}

#[tokio::test]
async fn map_node_with_undecodable_items_is_found() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let mut graph = Graph::new("mapped");
    let gate = graph.gate::<Vec<u64>>("gate");
    graph.map(counts, gate);
    graph.map(counts, runledger::value(vec![1, 2]));
    graph.enqueue(&db).await.unwrap();
    for (definitions, n_runs, what) in [
        (jobs![changed::renamed::counts].to_vec(), 2, "missing argument `count`"),
        (jobs![changed::wider::counts].to_vec(), 2, "missing argument `by`"),
        // The second node's list does not exist yet, because the node depends on a gate.
        (jobs![changed::counts].to_vec(), 1, "the value at `$.n` does not fit"),
    ] {
        let verification = verified(&db, definitions).await;
        let [finding] = &verification.findings[..] else { panic!("{what}: {verification}") };
        assert_eq!((finding.job.as_str(), finding.n_runs), ("counts", n_runs), "{what}");
        let Verdict::Undecodable { failure } = &finding.verdict else { panic!("{what}: {verification}") };
        assert!(failure.to_string().contains(what), "{what}: {failure}");
    }
}

#[tokio::test]
async fn map_node_without_items_needs_no_item_job() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let mut graph = Graph::new("mapped");
    graph.map(counts, runledger::value(Vec::new()));
    graph.enqueue(&db).await.unwrap();
    let verification = verified(&db, jobs![lists].to_vec()).await;
    assert!(verification.is_ok() && verification.n_runs == 1, "{verification}");
}

/// Gates and graphs count toward a page's size, but no finding mentions them.
#[tokio::test]
async fn gates_and_graphs_are_skipped_on_every_page() {
    let Fixture { db, database: _database } = Fixture::new().await;
    for _ in 0..70 {
        let mut graph = Graph::new("gates");
        graph.gate::<bool>("gate");
        graph.enqueue(&db).await.unwrap();
    }
    submit(&db).await;
    let verification = verified(&db, jobs![counts].to_vec()).await;
    assert_eq!((verification.n_runs, verification.n_replaying), (2, 0), "{verification}");
}
