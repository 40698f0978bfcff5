//! The behaviours of the engine, one test for each.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on panics, in its helpers too"
)]

mod active_keys;
mod attempts;
mod bad_input;
mod blocking;
mod cancel;
mod cancel_pages;
mod children;
mod chores;
mod claim;
mod cli;
mod clones;
mod commits;
mod configs;
mod connections;
mod costs;
mod crowds;
mod deadlines;
mod edited_rows;
mod embedded;
mod enqueue;
mod fence;
mod heartbeats;
mod hooks;
mod idempotency;
mod incarnation;
mod limits;
mod linked;
mod locked_runs;
mod logs;
mod looks;
mod metadata;
mod metrics;
mod migrations;
mod observers;
mod orphans;
mod output;
mod overrides;
mod panics;
mod pausing;
mod payload;
mod pictures;
mod places;
mod plans;
mod processes;
mod progress;
mod refused_ends;
mod registry;
mod releases;
mod resources;
mod roles;
mod runs;
mod search_path;
mod session_reset;
mod shared;
mod shutdown;
mod small_pools;
mod smoke;
mod statements;
mod stuck_rows;
mod suspects;
mod timeline;
mod transactional;
mod transitions;
mod triggers;
mod two_processes;
mod unreadable;
