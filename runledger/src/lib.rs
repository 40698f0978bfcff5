//! Durable execution for Rust on nothing but PostgreSQL.
//!
//! Annotate async functions with [`job`] and [`workflow`]; [`serve`] runs them. Each step's output is recorded in Postgres; after a crash, a deploy or a
//! long wait, recorded steps are skipped and the run goes on.
//!
//! What is promised: a step's body may run more than once; its output is recorded once; a transactional step's writes commit once.

#![warn(clippy::large_futures)]

#[doc(hidden)]
pub mod model;
#[cfg_attr(
    not(feature = "worker"),
    allow(dead_code, reason = "without a worker bodies are compiled, but never run")
)]
mod store;

#[cfg_attr(
    not(feature = "worker"),
    allow(dead_code, reason = "without a worker bodies are compiled, but never run")
)]
mod runtime;

#[cfg_attr(
    not(feature = "worker"),
    allow(dead_code, reason = "without a worker definitions are compiled, but never registered")
)]
mod api;

#[cfg(all(feature = "dev", unix))]
pub mod dev;

#[cfg(feature = "testing")]
pub mod testing;

/// Compiles the examples of the README, and of the crate's own page.
#[cfg(doctest)]
mod readme {
    #[doc = include_str!("../../README.md")]
    mod of_the_repository {}
    #[doc = include_str!("../README.md")]
    mod of_the_crate {}
}

/// Compiles the examples of the pages in `docs`.
#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../../docs/workflows.md")]
    mod workflows {}
    #[doc = include_str!("../../docs/waiting.md")]
    mod waiting {}
    #[doc = include_str!("../../docs/transactions.md")]
    mod transactions {}
    #[doc = include_str!("../../docs/changes.md")]
    mod changes {}
    #[doc = include_str!("../../docs/control.md")]
    mod control {}
    #[doc = include_str!("../../docs/graphs.md")]
    mod graphs {}
    #[doc = include_str!("../../docs/determinism.md")]
    mod determinism {}
}

/// Compiles the examples of the page about payloads.
#[cfg(all(doctest, feature = "aes-gcm"))]
#[doc = include_str!("../../docs/payloads.md")]
mod payloads_page {}

/// Compiles the example of the page about logs.
#[cfg(all(doctest, feature = "logs"))]
#[doc = include_str!("../../docs/logs.md")]
mod logs_page {}

/// Compiles the examples of the first page, whose test uses the kit.
#[cfg(all(doctest, feature = "testing"))]
#[doc = include_str!("../../docs/getting-started.md")]
mod getting_started_page {}

/// Compiles the examples of the page about testing.
#[cfg(all(doctest, feature = "testing"))]
#[doc = include_str!("../../docs/testing.md")]
mod testing_page {}

#[doc(hidden)]
#[path = "private.rs"]
pub mod __private;

#[cfg(feature = "worker")]
pub use api::app::{
    App, DEFAULT_CANCEL_GRACE, DEFAULT_CONCURRENCY, DEFAULT_DRAIN, DEFAULT_LINGER, Worker, serve,
};
pub use api::call::{AnyCall, Call};
pub use api::client_error::ClientError;
#[cfg(feature = "aes-gcm")]
pub use api::codec::AesGcm;
pub use api::config::JobConfig;
pub use api::context::Context;
pub use api::db::{DEFAULT_CONNECTIONS, Db, On, Via};
pub use api::definition::Definition;
pub use api::enqueue::{Submitted, enqueue_all};
pub use api::error::{Classified, Error, Result, ResultExt};
pub use api::failed::FailedRun;
pub use api::graph::{
    Appended, Condition, Configure, GateHandle, GateLink, Graph, GraphHandle, GraphOf, Input, Inputs, Need,
    Node, OnTerminal, Value, Window, given,
};
pub use api::handle::Handle;
#[cfg(feature = "testing")]
pub use api::history::assert_replays;
pub use api::installation::Adopted;
pub use api::job::{Arguments, Job, JobError, JobResult, Payload};
#[cfg(feature = "worker")]
pub use api::observer::{Observed, Observer};
pub use api::output::OutputFollower;
pub use api::runs::{ListRuns, NoRunsCursor, RunsCursor, RunsPage, Scope};
pub use api::signal::{SendSignal, Signalled};
pub use api::step::{Step, StepError};
pub use api::tuning::SyncMode;
pub use api::tx::Tx;
#[cfg(feature = "worker")]
pub use api::verify::verify;
pub use api::workflow::{Branch, Child, Map, Race, Saga, SignalWait, StepTx, Wf};
pub use model::failure::{Failure, FailureKind};
pub use model::given::Outcome;
pub use model::graph::{GraphError, GraphProblem};
pub use model::graph_state::GraphState;
pub use model::history::{History, HistoryError, HistoryStep};
pub use model::link::{LinkDecision, LinkKey, ShortSecret};
pub use model::payload::{Codec, CodecError, Limits, PayloadError, PayloadKind, Place, Sealed, Secret};
pub use model::picture::{EdgeKind, GraphPicture, PictureEdge, PictureError, PictureNode};
pub use model::replay::{Divergence, StepKey};
pub use model::shape::GateType;
pub use model::state::RunState;
pub use model::tuning::Tuning;
#[cfg(feature = "worker")]
pub use model::verification::{Finding, Verdict, Verification};
pub use runledger_macros::{job, workflow};
#[cfg(feature = "logs")]
pub use runtime::logs::RunLogs;
#[cfg(feature = "worker")]
pub use runtime::timings::Timings;
pub use store::cancel::Cancelled;
pub use store::graph::NodeInfo;
pub use store::happened::{TimelineEntry, TimelineEvent};
pub use store::inspect::{AttemptInfo, RunInfo, StepInfo, Unserved, WorkerInfo};
pub use store::log::LogLine;
pub use store::metrics::{JobMetrics, Metrics, Quantiles};
pub use store::output::OutputLine;
pub use store::pause::Paused;
pub use store::pin::PinInfo;
pub use store::resource::Resource;
pub use store::tuning::Tuned;

/// What most programs need: `use runledger::prelude::*;`.
pub mod prelude {
    #[cfg(feature = "worker")]
    pub use crate::App;
    pub use crate::{Call, Context, Db, Error, Handle, Result, ResultExt, Tx, Wf, job, jobs, workflow};
}
