//! The attribute macros of `runledger`: [`macro@job`] and [`macro@workflow`].
//!
//! This crate owns the grammar of the attributes and the shape of the generated code. It does not
//! know how a run is stored or executed. Generated code names items of `runledger::__private`, and
//! contains names, types and options, but no logic.
//!
//! ```text
//! tokens ─▶ parse ─▶ model ─▶ expand      the definition
//!                      └────▶ fallback    every error, and a stub with the same signature
//! ```

mod attributes;
mod define;
mod expand;
mod fallback;
mod lint;
mod model;
mod parse;
mod problems;
mod suggest;
#[cfg(test)]
mod tests;

use proc_macro::TokenStream;

use crate::define::define;
use crate::model::Kind;

/// Makes an `async fn` a job: a durable unit of work that is retried until it settles.
///
/// The function becomes `fn name(arguments…) -> Call<…>` with the same documentation and
/// visibility. A call runs as a step of a workflow, or as its own run after you enqueue it.
/// Arguments are stored as a JSON object by parameter name, so you may add a parameter later if it
/// is an `Option` or has a default.
///
/// # Parameters
/// - `x: T`, `x: &T`, `x: &str`, `x: &[T]`, `x: &Path` are stored. A borrowed parameter is stored
///   as its owned type.
/// - `#[default] x: T` and `#[default = expr] x: T` apply if a stored payload lacks the key.
/// - `#[inject] x: &T` is the value that the application provides for `T`. It is not part of the
///   call.
/// - `#[inject] tx: &mut Tx` is the transaction that commits together with the record of the job's
///   output.
///
/// # Options
/// | option | value | meaning |
/// |---|---|---|
/// | `name` | `"billing.charge"` | the stored name; default: the function's name; 1 to 48 of `a-z 0-9 _ . -` |
/// | `aliases` | `["oldest", "old"]` | earlier names, oldest first; never reorder them |
/// | `queue` | `"payments"` | the queue of its runs |
/// | `priority` | `5` | a 16-bit integer, may be negative |
/// | `max_attempts` | `5` | attempts before the run fails, at least 1 |
/// | `timeout` | `"30s"` | limit of one attempt; a whole number and `ms`, `s`, `m`, `h` or `d` |
/// | `backoff` | `"1s..5m"` | the first and the longest delay between attempts |
/// | `deadline` | `"1h"` | limit of a run from start to end, over all attempts; `.deadline(…)` of a call overrides it |
/// | `heartbeat` | `"30s"` | how long an attempt of a step or run may report no progress (`context.progress`) |
/// | `version` | `2` | the version of the code that its runs are pinned to; default: 1 |
/// | `accepts` | `"1.."` | earlier versions that this code also serves: all before its own, `"1..=3"`, or `[1, 3]` |
/// | `crate` | `facade::runledger` | where generated code finds `runledger` |
///
/// # Renaming
/// Append the old name to `aliases`, because queued runs carry it. The first alias is part of the
/// keys of steps and of the ids of runs with an idempotency key. Keep it first. Keep it as long as
/// a key may be repeated, or a workflow that calls the job is in flight. No other job may use an
/// old name.
#[proc_macro_attribute]
pub fn job(options: TokenStream, item: TokenStream) -> TokenStream {
    define(Kind::Job, options.into(), &item.into()).into()
}

/// Makes an `async fn` a workflow: a run with recorded steps, which are skipped after a crash.
///
/// The first parameter is `wf: &Wf`, which runs the steps. It is not part of the call. All other
/// parameters and all options are those of [`macro@job`], with two exceptions. A workflow has no
/// `heartbeat`, and no `#[inject] tx: &mut Tx`. Its transactions are steps: run a job that has one.
///
/// # Options
/// In addition to those of [`macro@job`]:
///
/// | option | value | meaning |
/// |---|---|---|
/// | `allow` | `allow(wall_clock, io)` | what the body may do outside its steps although replay does not repeat it |
///
/// # Determinism
/// After a crash or a long wait, the body executes again from its beginning, with the recorded
/// outputs of its steps. Between steps it must make the same decisions each time. The macro refuses
/// code that clearly does not, and the message says what to write instead:
///
/// | word | refused | instead |
/// |---|---|---|
/// | `wall_clock` | `SystemTime::now`, `Instant::now`, and those of `chrono`, `time`, `jiff` and `tokio`; `elapsed()` of a `SystemTime` | `wf.now()` |
/// | `randomness` | `rand::random`, `rand::rng`, `thread_rng`, `OsRng`, `from_entropy`, `fastrand`, `getrandom`, `RandomState::new` | `wf.random()` |
/// | `fresh_uuids` | `Uuid::new_v4`, `Uuid::now_v7` and the like, `Ulid::new`, `nanoid!` | `wf.uuid()` |
/// | `sleep` | `tokio::time::sleep`, `interval` and `timeout`, `thread::sleep` | `wf.sleep()`, `Step::timeout` |
/// | `spawn` | `tokio::spawn`, `spawn_blocking`, `thread::spawn`, `JoinSet::new` | `wf.start()`, `join!` of steps |
/// | `io` | `std::fs`, `tokio::fs`, `File::open`, `TcpStream::connect`, `env::var`, `process::Command`, `process::id()`, `thread::current()`, `reqwest`, `sqlx::query` | a step |
/// | `hash_order` | a `for` over a `HashMap` or a `HashSet` that awaits a step per item | a `BTreeMap`, a `BTreeSet`, a sorted `Vec` |
///
/// The closure of `wf.step` or `wf.tx` is the body of a step, which is recorded and may do
/// anything. The same holds for functions and closures in the workflow's body that only steps call.
/// The name of the step belongs to the workflow. A `#[job]` inside the body is not part of the
/// body.
///
/// Use `allow` for code that decides nothing, such as a duration that is only logged, and for your
/// own module with one of these names. The macro refuses a word that excuses nothing.
///
/// The macro sees only the names in the body, and refuses only what it is sure of. It does not
/// detect
///
/// - what functions do that the body calls;
/// - what is renamed, or imported by its bare name (`sleep(…)`), outside the body;
/// - most code that depends on the order of a `HashMap` or a `HashSet`, which differs between
///   processes;
/// - branches of a `tokio::select!`, which create their steps only when polled, in a random order.
///   Give each branch a `wf.branch`, or write `biased;`.
///
/// If such code leads a replay to other steps than were recorded, the run is blocked, with the step
/// and the reason. If it only changes what the body computes, nothing detects it.
#[proc_macro_attribute]
pub fn workflow(options: TokenStream, item: TokenStream) -> TokenStream {
    define(Kind::Workflow, options.into(), &item.into()).into()
}
