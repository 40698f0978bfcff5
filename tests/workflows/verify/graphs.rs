//! Graphs that a workflow has started.

use runledger::Graph;
use runledger::prelude::*;

use super::stage::{Case, Expected, asleep, by_name, changes, definition, lost, one};

/// Independent nodes that never end. The result is the output of the first.
fn of(name: &str, nodes: &[u64]) -> Graph<u64> {
    let mut graph = Graph::new(name);
    let calls: Vec<_> = nodes.iter().map(|n| graph.call(lost(*n).key(*n))).collect();
    graph.result(calls[0])
}

fn with_an_edge(nodes: [u64; 2]) -> Graph<u64> {
    let mut graph = Graph::new("totals");
    let [first, second] = nodes.map(|n| graph.call(lost(n).key(n)));
    graph.after(second, first);
    graph.result(first)
}

async fn awaited(wf: &Wf, graph: Graph<u64>) -> Result<u64> {
    Ok(wf.start_graph(graph).await?.result().await?)
}

changes! {
    a_step_behind_a_started_graph({}) Fine
    old (wf: &Wf) { awaited(wf, of("totals", &[1, 2])).await }
    new (wf: &Wf) { let n = awaited(wf, of("totals", &[1, 2])).await?; one(wf, "a").await?; Ok(n) }

    a_wait_for_a_graph_given_up({}) Fine
    old (wf: &Wf) { awaited(wf, of("totals", &[1])).await }
    new (wf: &Wf) { wf.start_graph(of("totals", &[1])).await?; Ok(0) }

    the_nodes_of_a_graph_in_another_order({}) Fine
    old (wf: &Wf) { wf.start_graph(of("totals", &[1, 2, 3])).await?; asleep(wf).await }
    new (wf: &Wf) { wf.start_graph(of("totals", &[1, 3, 2])).await?; asleep(wf).await }

    another_name_of_a_graph({}) Breaks("totals", "step `sums` stands where `totals` was recorded (step 1)")
    old (wf: &Wf) { wf.start_graph(of("totals", &[1])).await?; asleep(wf).await }
    new (wf: &Wf) { wf.start_graph(of("sums", &[1])).await?; asleep(wf).await }

    a_node_added_to_a_started_graph({}) Breaks("totals", "input")
    old (wf: &Wf) { wf.start_graph(of("totals", &[1])).await?; asleep(wf).await }
    new (wf: &Wf) { wf.start_graph(of("totals", &[1, 2])).await?; asleep(wf).await }

    an_edge_of_a_started_graph_removed({}) Breaks("totals", "input")
    old (wf: &Wf) { wf.start_graph(with_an_edge([1, 2])).await?; asleep(wf).await }
    new (wf: &Wf) { wf.start_graph(of("totals", &[1, 2])).await?; asleep(wf).await }

    another_input_of_a_node({}) Breaks("totals", "input")
    old (wf: &Wf) { wf.start_graph(of("totals", &[1])).await?; asleep(wf).await }
    new (wf: &Wf) {
        let mut graph = Graph::new("totals");
        let call = graph.call(lost(9).key(1));
        wf.start_graph(graph.result(call)).await?;
        asleep(wf).await
    }

    a_graph_as_a_child({}) Breaks("totals", "step `lost` stands where `totals` was recorded (step 1)")
    old (wf: &Wf) { wf.start_graph(of("totals", &[1])).await?; asleep(wf).await }
    new (wf: &Wf) { wf.start(lost(1)).await?; asleep(wf).await }

    a_graph_that_is_not_started_any_more({}) Breaks("totals", "step `sleep` stands where `totals` was recorded (step 1)")
    old (wf: &Wf) { wf.start_graph(of("totals", &[1])).await?; asleep(wf).await }
    new (wf: &Wf) { asleep(wf).await }
}
