//! Wrong inputs: another type, one too few, an outcome for an output, and a list of values.

use runledger::{Graph, Result, value, job};

#[job]
async fn extract(region: String) -> Result<u64> {
    Ok(region.len() as u64)
}

#[job]
async fn merge(eu: u64, name: String) -> Result<u64> {
    Ok(eu + name.len() as u64)
}

#[job]
async fn total(parts: Vec<u64>) -> Result<u64> {
    Ok(parts.iter().sum())
}

fn main() {
    let mut graph = Graph::new("wrong");
    let eu = graph.call(extract("eu".to_owned()));
    graph.then(merge, (eu, eu));
    graph.then(merge, (eu,));
    graph.then(extract, (eu.on_any_outcome(),));
    graph.then(total, (vec![value(1), value(2)],));
}
