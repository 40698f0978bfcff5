//! The behaviours of the engine, each as a test named by its sentence.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on panics, in its helpers too"
)]

mod active_keys;
mod additions;
mod attempts;
mod bad_input;
mod blocking;
mod branches;
mod cancel;
mod children;
mod claim;
mod cli;
mod combinators;
mod commits;
mod conditions;
mod configs;
mod connections;
mod continuing;
mod costs;
mod crowds;
mod deadlines;
mod divergence;
mod dropped;
mod embedded;
mod enqueue;
mod fence;
mod gate_links;
mod graph_children;
mod graph_jobs;
mod graph_maps;
mod graph_nodes;
mod graph_sentences;
mod graphs;
mod heartbeats;
mod hooks;
mod idempotency;
mod incarnation;
mod kept;
mod lingering;
mod linked;
mod logs;
mod looks;
mod marks;
mod metadata;
mod metrics;
mod migrations;
mod nested;
mod observers;
mod oracle;
mod orphans;
mod output;
mod panics;
mod pausing;
mod payload;
mod pictures;
mod plans;
mod processes;
mod progress;
mod registry;
mod replay;
mod resources;
mod rows;
mod runs;
mod sagas;
mod search_path;
mod session_reset;
mod shared;
mod shutdown;
mod signals;
mod small_pools;
mod smoke;
mod statements;
mod steps;
mod tangles;
mod timeline;
mod transactional;
mod transitions;
mod tunings;
mod two_processes;
mod verify;
mod versions;
mod waiting;
