//! Durable execution for Rust, on PostgreSQL alone.
//!
//! Annotate async functions with [`job`] and [`workflow`]; [`serve`] executes them. Runledger
//! records the output of each step in PostgreSQL. After a crash, a deploy or a long wait, it skips
//! recorded steps and resumes the run.
//!
//! Guarantees: a step's body may run more than once; its output is recorded once; a transactional
//! step's writes commit once.

#![warn(clippy::large_futures)]

mod client;
#[cfg_attr(
    not(feature = "worker"),
    allow(dead_code, reason = "without a worker bodies are compiled, but never run")
)]
mod connection;
#[cfg_attr(
    not(feature = "worker"),
    allow(dead_code, reason = "without a worker bodies are compiled, but never run")
)]
mod definition;
#[cfg(all(feature = "dev", unix))]
pub mod dev;
#[cfg_attr(
    not(feature = "worker"),
    allow(dead_code, reason = "without a worker bodies are compiled, but never run")
)]
mod engine;
#[cfg_attr(
    not(feature = "worker"),
    allow(dead_code, reason = "without a worker bodies are compiled, but never run")
)]
mod graph;
#[doc(hidden)]
pub mod model;
#[cfg_attr(
    not(feature = "worker"),
    allow(dead_code, reason = "without a worker bodies are compiled, but never run")
)]
mod store;
#[cfg(feature = "worker")]
mod verify;
#[cfg(feature = "worker")]
mod worker;
#[cfg_attr(
    not(feature = "worker"),
    allow(dead_code, reason = "without a worker bodies are compiled, but never run")
)]
mod workflow;

#[cfg(feature = "testing")]
pub mod testing;

/// Compiles the examples of the README and of the crate's own page.
#[cfg(doctest)]
mod readme {
    #[doc = include_str!("../../README.md")]
    mod of_the_repository {}
    #[doc = include_str!("../README.md")]
    mod of_the_crate {}
}

/// Compiles the examples of the book in `docs`. `tests/tidy` checks that no page is missing.
#[cfg(doctest)]
mod book {
    #[doc = include_str!("../../docs/guides/workflows/steps.md")]
    mod steps {}
    #[doc = include_str!("../../docs/guides/workflows/retries.md")]
    mod retries {}
    #[doc = include_str!("../../docs/guides/workflows/waiting.md")]
    mod waiting {}
    #[doc = include_str!("../../docs/guides/workflows/transactions.md")]
    mod transactions {}
    #[doc = include_str!("../../docs/guides/workflows/sagas.md")]
    mod sagas {}
    #[doc = include_str!("../../docs/guides/graphs/graphs.md")]
    mod graphs {}
    #[doc = include_str!("../../docs/guides/graphs/gates.md")]
    mod gates {}
    #[doc = include_str!("../../docs/guides/graphs/grow.md")]
    mod grow {}
    #[doc = include_str!("../../docs/guides/graphs/pictures.md")]
    mod pictures {}
    #[doc = include_str!("../../docs/guides/operate/deploys.md")]
    mod deploys {}
    #[doc = include_str!("../../docs/guides/operate/control.md")]
    mod control {}
    #[doc = include_str!("../../docs/guides/operate/concurrency.md")]
    mod concurrency {}
    #[doc = include_str!("../../docs/guides/operate/settings.md")]
    mod settings {}
    #[doc = include_str!("../../docs/guides/operate/observe.md")]
    mod observe {}
    #[doc = include_str!("../../docs/concepts/determinism.md")]
    mod determinism {}
    #[doc = include_str!("../../docs/reference/compiler-checks.md")]
    mod compiler_checks {}
    #[cfg(feature = "aes-gcm")]
    #[doc = include_str!("../../docs/guides/workflows/payloads.md")]
    mod payloads {}
    #[cfg(feature = "logs")]
    #[doc = include_str!("../../docs/guides/operate/logs.md")]
    mod logs {}
    #[cfg(feature = "testing")]
    #[doc = include_str!("../../docs/tutorial.md")]
    mod tutorial {}
    #[cfg(feature = "testing")]
    #[doc = include_str!("../../docs/guides/workflows/testing.md")]
    mod testing {}
}

#[doc(hidden)]
#[path = "private.rs"]
pub mod __private;

#[cfg(feature = "aes-gcm")]
pub use client::codec::AesGcm;
pub use client::enqueue::{EnqueuedRun, enqueue_all};
pub use client::handle::RunHandle;
pub use client::operate::overrides::SyncMode;
pub use client::runs::{InvalidRunCursor, ListRuns, RunCursor, RunsPage, TenantScope};
pub use client::signal::{SendSignal, SignalReceipt};
pub use connection::client_error::ClientError;
pub use connection::db::{BoundConnection, DEFAULT_CONNECTIONS, Db, EnqueueTarget};
pub use connection::installation::Adopted;
pub use connection::tx::Tx;
pub use definition::Definition;
pub use definition::call::{AnyCall, Call};
pub use definition::error::{Classified, Error, Result, ResultExt};
pub use definition::failed::FailedRun;
pub use definition::job::{Arguments, Job, JobError, JobResult, Payload};
pub use definition::step_error::StepError;
pub use engine::attempt::context::Context;
#[cfg(feature = "logs")]
pub use engine::logs::RunLogs;
pub use graph::{
    AppendReceipt, Condition, Configure, GateHandle, GateLink, Graph, GraphExtension, GraphHandle, Input,
    Inputs, Need, Node, OnAnyOutcome, Value, value,
};
pub use model::graph::dependency_inputs::Outcome;
pub use model::graph::graph_state::GraphState;
pub use model::graph::link::{GateLinkKey, LinkDecision, SecretTooShort};
pub use model::graph::{GraphError, GraphProblem};
pub use model::payload::{Codec, CodecError, Limits, PayloadError, PayloadKind, Place, Sealed, Secret};
pub use model::picture::{EdgeKind, GraphPicture, PictureEdge, PictureError, PictureNode};
pub use model::replay::history::{History, HistoryError, HistoryStep};
pub use model::replay::{Divergence, StepKey};
pub use model::run::failure::{Failure, FailureKind};
pub use model::run::overrides::JobOverrides;
pub use model::run::state::RunState;
pub use model::shape::GateType;
pub use runledger_macros::{job, workflow};
pub use store::attempt::log::LogLine;
pub use store::attempt::output::OutputLine;
pub use store::graph::NodeInfo;
pub use store::operator::cancel::Cancelled;
pub use store::operator::metrics::{JobMetrics, Metrics, Quantiles};
pub use store::operator::overrides::StoredOverrides;
pub use store::operator::pause::Paused;
pub use store::operator::resource::Resource;
pub use store::run::inspect::{AttemptInfo, RunInfo, StepInfo, UnservedJob, WorkerInfo};
pub use store::run::pin::PinInfo;
pub use store::run::run_timeline::{TimelineEntry, TimelineEvent};
#[cfg(feature = "testing")]
pub use verify::history::assert_replays;
#[cfg(feature = "worker")]
pub use with_worker::*;
pub use workflow::config::JobConfig;
pub use workflow::output::OutputFollower;
pub use workflow::step::Step;
pub use workflow::{Branch, Child, Map, Race, Saga, SignalWait, StepTx, Wf};

#[cfg(feature = "worker")]
mod with_worker {
    pub use crate::model::replay::verification::{Finding, Verdict, Verification};
    pub use crate::verify::verify;
    pub use crate::worker::app::{
        App, DEFAULT_CANCEL_GRACE, DEFAULT_CONCURRENCY, DEFAULT_DRAIN, DEFAULT_IDLE_RESIDENCY, Worker, serve,
    };
    pub use crate::worker::observer::{AttemptEvent, Observer};
    pub use crate::worker::timings::Timings;
}

/// The items that most programs need: `use runledger::prelude::*;`.
pub mod prelude {
    #[cfg(feature = "worker")]
    pub use crate::App;
    pub use crate::{Call, Context, Db, Error, Result, ResultExt, RunHandle, Tx, Wf, job, jobs, workflow};
}
