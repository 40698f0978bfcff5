//! Jobs and queries shared by the tests of graphs.

use runledger::prelude::*;
use runledger::{GraphHandle, NodeInfo, Outcome};

#[job]
pub async fn add(a: u64, b: u64) -> Result<u64> {
    Ok(a + b)
}

#[job]
pub async fn sum(parts: Vec<u64>) -> Result<u64> {
    Ok(parts.iter().sum())
}

#[job(max_attempts = 1)]
pub async fn refuses(n: u64) -> Result<u64> {
    Err(Error::terminal(format!("{n} is refused")))
}

/// Returns a text about the outcome of its dependency.
#[job]
pub async fn tells(end: Outcome<u64>) -> Result<String> {
    Ok(match end {
        Outcome::Completed(n) => format!("completed with {n}"),
        Outcome::Failed(failure) => format!("failed: {failure}"),
        Outcome::Cancelled(failure) => format!("cancelled: {failure}"),
    })
}

pub async fn node<T: runledger::Payload>(handle: &GraphHandle<T>, name: &str) -> NodeInfo {
    let nodes = handle.nodes().await.unwrap();
    nodes.iter().find(|node| node.name == name).unwrap_or_else(|| panic!("no `{name}` in {nodes:?}")).clone()
}
