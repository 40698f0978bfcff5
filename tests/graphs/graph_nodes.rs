//! The options of nodes. They have the same effect as the options of single runs.

use std::time::{Duration, SystemTime};

use runledger::prelude::*;
use runledger::{FailureKind, Graph, RunState, value};
use runledger_tests::Fixture;
use runledger_tests::rows::{scalar, soon, until, worker};

use crate::graph_jobs::{add, sum};

#[job(priority = 3)]
async fn tries(tenant_too: bool, #[inject] context: &Context) -> Result<String> {
    if !tenant_too {
        return Err("it never succeeds".into());
    }
    Ok(context.tenant().to_owned())
}

#[job(max_attempts = 1)]
async fn lingers() -> Result<()> {
    std::future::pending::<()>().await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn each_node_has_own_tenant_priority_attempts_timeout_and_start() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![tries, lingers]).await;
    let later = SystemTime::now() + Duration::from_secs(3600);
    let mut graph = Graph::new("options").tenant("acme").priority(2);
    graph.call(tries(true).key("inherits"));
    let own = graph.call(tries(true).key("own"));
    graph.configure(own).tenant("other").priority(9);
    let once = graph.call(tries(false).key("once"));
    graph.configure(once).max_attempts(1);
    let limited = graph.call(lingers());
    graph.configure(limited).timeout(Duration::from_millis(20));
    let starts = graph.call(tries(true).key("later"));
    graph.configure(starts).start_at(later);
    let delayed = graph.call(tries(true).key("delayed"));
    graph.configure(delayed).delay(Duration::from_secs(3600));
    let after = graph.call(tries(true).key("after"));
    graph.configure(after).delay(Duration::from_secs(3600));
    graph.after(after, own);
    let handle = graph.enqueue(&db).await.unwrap();

    let nodes = handle.nodes().await.unwrap();
    let run_id = |name: &str| nodes.iter().find(|node| node.name == name).unwrap().run_id;
    let ended = async |name: &str| {
        until(&db, run_id(name), |info| info.state.is_terminal()).await;
        handle.nodes().await.unwrap().into_iter().find(|node| node.name == name).unwrap()
    };
    let of = async |name: &str, what: &str| -> String {
        let query = format!(
            "select ({what})::text from runledger.run join runledger.run_state using (run_id) where run_id = '{}'",
            run_id(name)
        );
        scalar(&db, &query).await
    };
    for (name, tenant, priority) in [("tries[inherits]", "acme", "3"), ("tries[own]", "other", "9")] {
        assert_eq!(ended(name).await.state, RunState::Completed);
        assert_eq!(of(name, "run_state.output").await, format!("\"{tenant}\""));
        assert_eq!(of(name, "run.priority").await, priority);
    }
    let once = ended("tries[once]").await;
    assert_eq!((once.state, once.attempt), (RunState::Failed, 1));
    assert_eq!(ended("lingers").await.error.unwrap().kind, FailureKind::Timeout);
    until(&db, run_id("tries[after]"), |info| info.state == RunState::Queued).await;
    for name in ["tries[later]", "tries[delayed]", "tries[after]"] {
        assert_eq!(of(name, "run_state.state").await, "queued");
        assert_eq!(of(name, "run_state.ready_at > now() + interval '50 minutes'").await, "true");
    }
    handle.cancel("seen").await.unwrap();
    assert!(soon(handle.result()).await.is_err());
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn thousand_node_fan_out_and_in_writes_each_run_once() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![add, sum]).await;
    let mut graph = Graph::new("wide");
    let root = graph.call(add(1, 1));
    let wide: Vec<_> = (0..1_000)
        .map(|n| {
            let node = graph.then(add, (root, value(n)));
            graph.configure(node).name(format!("wide {n}"));
            node
        })
        .collect();
    let all = graph.then(sum, (wide,));
    let handle = graph.result(all).enqueue(&db).await.unwrap();
    assert_eq!(soon(handle.result()).await.unwrap(), (0..1_000).map(|n| n + 2).sum::<u64>());
    // All rows come from the transaction that wrote the graph.
    let once = "select (count(*), count(distinct xmin::text))::text from runledger.run";
    assert_eq!(scalar::<String>(&db, once).await, "(1003,1)");
    let attempts: i64 = scalar(&db, "select count(*) from runledger.outcome where attempt <> 1").await;
    assert_eq!(attempts, 0);
    worker.stop().await;
}
