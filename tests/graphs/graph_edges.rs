//! Several edges between the same two nodes.

use runledger::prelude::*;
use runledger::{AnyCall, ClientError, Graph, Node, Outcome};
use runledger_tests::Fixture;
use runledger_tests::rows::{scalar, soon, worker};
use serde_json::json;

#[job(name = "graph_edges.number")]
async fn number(n: u64) -> Result<u64> {
    Ok(n)
}

#[job(name = "graph_edges.decides")]
async fn decides(yes: bool) -> Result<bool> {
    Ok(yes)
}

#[job(name = "graph_edges.sums")]
async fn sums(a: u64, b: u64) -> Result<u64> {
    Ok(a + 10 * b)
}

#[job(name = "graph_edges.adds")]
async fn adds(parts: Vec<u64>) -> Result<u64> {
    Ok(parts.iter().sum())
}

#[job(name = "graph_edges.negates")]
async fn negates(yes: bool) -> Result<bool> {
    Ok(!yes)
}

#[job(name = "graph_edges.tells")]
async fn tells(end: Outcome<u64>) -> Result<u64> {
    Ok(end.completed().unwrap_or_default())
}

#[job(name = "graph_edges.tells_all")]
async fn tells_all(ends: Vec<Outcome<u64>>) -> Result<u64> {
    Ok(ends.into_iter().filter_map(Outcome::completed).sum())
}

#[job(name = "graph_edges.tells_decision")]
async fn tells_decision(end: Outcome<bool>) -> Result<bool> {
    Ok(end.completed().unwrap_or_default())
}

#[job(name = "graph_edges.tells_both")]
async fn tells_both(n: u64, end: Outcome<u64>) -> Result<u64> {
    Ok(n + 10 * end.completed().unwrap_or_default())
}

/// The nodes `number` and `decides`, with the additions of `build`.
fn graph(build: fn(&mut Graph, Node<u64>, Node<bool>)) -> Graph {
    let mut graph = Graph::new("edges");
    let (one, yes) = (graph.call(number(1)), graph.call(decides(true)));
    build(&mut graph, one, yes);
    graph
}

#[tokio::test(flavor = "multi_thread")]
async fn any_outcome_parameter_with_success_edge_is_refused_naming_nodes() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let one = "`number`";
    let refused = [
        (
            "`graph_edges.tells_both` is given the parameter `end`",
            one,
            graph(|graph, one, _| {
                graph.then(tells_both, (one, one.on_any_outcome()));
            }),
        ),
        (
            "`graph_edges.tells` is given the parameter `end`",
            one,
            graph(|graph, one, _| {
                let told = graph.then(tells, (one.on_any_outcome(),));
                graph.after(told, one);
            }),
        ),
        (
            "`graph_edges.tells_decision` is given the parameter `end`",
            "`decides`",
            graph(|graph, _, yes| {
                let told = graph.then(tells_decision, (yes.on_any_outcome(),));
                graph.only_if(told, yes);
            }),
        ),
        (
            "`graph_edges.tells` is given the parameter `items[1]`",
            one,
            graph(|graph, one, _| {
                let other = graph.call(number(2));
                let told = graph.map(tells, vec![other.on_any_outcome(), one.on_any_outcome()]);
                graph.after(told, one);
            }),
        ),
        (
            "`graph_edges.tells_all` is given the parameter `ends[0]`",
            one,
            graph(|graph, one, _| {
                let told = graph.then(tells_all, (vec![one.on_any_outcome()],));
                graph.after(told, "graph_edges.number");
            }),
        ),
    ];
    for (given, node, graph) in refused {
        let error = graph.enqueue(&db).await.map(drop).unwrap_err();
        assert!(matches!(error, ClientError::Graph(_)), "{error:?}");
        let (said, node) = (error.to_string(), node.replacen('`', "`graph_edges.", 1));
        let whole = format!(
            "{given}, which takes any end of {node}, and another edge needs the success of {node}; \
             use `on_any_outcome()` on all edges from {node}, or on none"
        );
        assert!(said.contains(&whole), "{said}");
    }
    assert_eq!(scalar::<i64>(&db, "select count(*) from runledger.run").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn compatible_or_ordering_edges_beside_parameter_let_graph_complete() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let jobs = jobs![number, decides, sums, negates, tells, tells_all, tells_decision, tells_both];
    let worker = worker(&db, jobs).await;
    let graphs = [
        graph(|graph, one, _| {
            graph.then(sums, (one, one));
        }),
        graph(|graph, one, _| {
            let sum = graph.then(sums, (one, one));
            graph.after(sum, one);
        }),
        graph(|graph, one, _| {
            let sum = graph.then(sums, (one, one));
            graph.after(sum, one.on_any_outcome());
        }),
        graph(|graph, one, _| {
            let told = graph.then(tells, (one.on_any_outcome(),));
            graph.after(told, one.on_any_outcome());
        }),
        graph(|graph, one, _| {
            graph.then(tells_all, (vec![one.on_any_outcome(), one.on_any_outcome()],));
        }),
        graph(|graph, one, _| {
            graph.map(tells, vec![one.on_any_outcome(), one.on_any_outcome()]);
        }),
        graph(|graph, _, yes| {
            let negated = graph.then(negates, (yes,));
            graph.only_if(negated, yes);
        }),
        graph(|graph, _, yes| {
            let negated = graph.call(negates(true));
            graph.only_if(negated, yes).after(negated, yes.on_any_outcome());
        }),
        graph(|graph, one, _| {
            let sum = graph.call(sums(1, 2));
            graph.after(sum, one).after(sum, one.on_any_outcome());
        }),
    ];
    for (at, graph) in graphs.into_iter().enumerate() {
        let handle = graph.enqueue(&db).await.unwrap();
        soon(handle.result()).await.unwrap_or_else(|error| panic!("graph {at}: {error}"));
    }
    worker.stop().await;
}

/// The same graph, declared in one of two orders.
fn ordered(is_reversed: bool) -> Graph {
    let mut graph = Graph::new("ordered");
    let yes = graph.call(decides(true));
    let one = graph.call(number(1));
    let sum = graph.node("sum", AnyCall::by_name("graph_edges.sums", &json!({})));
    let all = graph.node("all", AnyCall::by_name("graph_edges.adds", &json!({})));
    if is_reversed {
        graph.feed(all, "parts[10]", one).feed(all, "parts[9]", one);
        graph.only_if(sum, yes).after(sum, yes.on_any_outcome()).feed(sum, "b", one).feed(sum, "a", one);
    } else {
        graph.feed(sum, "a", one).feed(sum, "b", one).only_if(sum, yes).only_if(sum, yes);
        graph.feed(all, "parts[9]", one).feed(all, "parts[10]", one);
    }
    graph
}

#[tokio::test]
async fn keyed_graph_with_reordered_edges_is_same_graph() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let first = ordered(false).idempotency_key("monday").enqueue(&db).await.unwrap();
    let again = ordered(true).idempotency_key("monday").enqueue(&db).await.unwrap();
    assert_eq!((again.id(), again.created()), (first.id(), false));
    let first = ordered(true).idempotency_key("tuesday").enqueue(&db).await.unwrap();
    let again = ordered(false).idempotency_key("tuesday").enqueue(&db).await.unwrap();
    assert_eq!((again.id(), again.created()), (first.id(), false));
}

#[tokio::test]
async fn keyed_addition_with_reordered_edges_is_same_addition() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let mut graph = Graph::new("ordered");
    graph.gate::<bool>("open");
    let handle = graph.enqueue(&db).await.unwrap();
    let first = handle.extend_from("open").append("more", ordered(false)).await.unwrap();
    let again = handle.extend_from("open").append("more", ordered(true)).await.unwrap();
    assert_eq!((first.created, again.created), (true, false));
}

#[tokio::test]
async fn keyed_graph_with_parameters_swapped_between_nodes_conflicts() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let keyed = |names: [&str; 2]| {
        let mut graph = Graph::new("exchanged");
        let (one, two) = (graph.call(number(1).key("1")), graph.call(number(2).key("2")));
        let node = graph.node("node", AnyCall::by_name("graph_edges.sums", &json!({})));
        graph.feed(node, names[0], one).feed(node, names[1], two);
        graph.idempotency_key("monday")
    };
    keyed(["a", "b"]).enqueue(&db).await.unwrap();
    let error = keyed(["b", "a"]).enqueue(&db).await.map(drop).unwrap_err();
    assert!(matches!(error, ClientError::Conflict { .. }), "{error:?}");
    assert!(error.to_string().contains("`nodes.node.needs[\"graph_edges.number[1]\"].parameters"), "{error}");
}
