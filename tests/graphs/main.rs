//! The behaviours of declared graphs, one test for each.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on panics, in its helpers too"
)]

mod additions;
mod conditions;
mod gate_link_decisions;
mod gate_link_revocations;
mod gate_links;
mod gate_types;
mod graph_cancels;
mod graph_children;
mod graph_edges;
mod graph_foreign_nodes;
mod graph_jobs;
mod graph_maps;
mod graph_nodes;
mod graph_parameters;
mod graph_sentences;
mod graphs;
mod oracle;
