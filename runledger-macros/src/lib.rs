//! The attribute macros of `runledger`: [`macro@job`] and [`macro@workflow`].
//!
//! This crate owns the grammar of the attributes and the shape of the code they write. It must not know how a run is
//! stored or executed: generated code names items of `runledger::__private` and holds names, types and options, no logic.
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

/// Makes an `async fn` a job: a durable unit of work that is retried until it is settled.
///
/// The function becomes `fn name(arguments…) -> Call<…>` with the same documentation and visibility. The call is run as a
/// step of a workflow, or enqueued as a run of its own; its arguments are stored as a JSON object by parameter name, so a
/// parameter may be added later if it is an `Option` or has a default.
///
/// # Parameters
/// - `x: T`, `x: &T`, `x: &str`, `x: &[T]`, `x: &Path` are stored; a borrowed one is stored as its owned type.
/// - `#[default] x: T` and `#[default = expr] x: T` are filled in when a stored payload lacks the key.
/// - `#[inject] x: &T` is the value that the application provides for `T`; it is not part of the call.
/// - `#[inject] tx: &mut Tx` is the transaction that commits together with the record of the job's output.
///
/// # Options
/// | option | value | meaning |
/// |---|---|---|
/// | `name` | `"billing.charge"` | the stored name; the function's own by default; 1 to 48 of `a-z 0-9 _ . -` |
/// | `aliases` | `["oldest", "old"]` | earlier names, oldest first; never reorder them |
/// | `queue` | `"payments"` | the queue its runs wait in |
/// | `priority` | `5` | a 16-bit integer, may be negative |
/// | `max_attempts` | `5` | tries before the run fails, at least 1 |
/// | `timeout` | `"30s"` | the longest one attempt may take; a whole number and `ms`, `s`, `m`, `h` or `d` |
/// | `backoff` | `"1s..5m"` | the first delay between attempts and the longest |
/// | `deadline` | `"1h"` | how long a run may take from its start to its end, over all its attempts; `.deadline(…)` of a call overrides it |
/// | `heartbeat` | `"30s"` | how long a try of the body, of a step or of a run, may say nothing of its progress (`context.progress`) |
/// | `version` | `2` | the version of the code that its runs are pinned to; 1 by default |
/// | `accepts` | `"1.."` | earlier versions whose runs this code serves too: to the one before its own, `"1..=3"`, or a list `[1, 3]` |
/// | `crate` | `facade::runledger` | where generated code finds `runledger` |
///
/// # Renaming
/// Put the old name into `aliases`, behind those that are there. Queued runs carry the old names, and the first one makes the ids of
/// runs that have an idempotency key and the keys of steps: keep it first, and keep it as long as a key may be repeated or a workflow that calls the job is in flight. No other job may take an old name.
#[proc_macro_attribute]
pub fn job(options: TokenStream, item: TokenStream) -> TokenStream {
    define(Kind::Job, options.into(), &item.into()).into()
}

/// Makes an `async fn` a workflow: a run whose steps are recorded, so that after a crash the recorded ones are skipped.
///
/// The first parameter is `wf: &Wf`, through which steps are run; it is not part of the call. All other parameters and
/// all options are those of [`macro@job`], except that a workflow has no `heartbeat`, and no `#[inject] tx: &mut Tx`: its
/// transactions are steps: jobs that have one.
///
/// # Options
/// Beside those of [`macro@job`]:
///
/// | option | value | meaning |
/// |---|---|---|
/// | `allow` | `allow(wall_clock, io)` | what the body may do outside its steps although replay does not repeat it |
///
/// # Determinism
/// After every crash and every long wait the body runs again from its beginning, with the recorded outputs of its steps. Between them it must decide
/// alike every time. What plainly cannot is refused where it stands, and the message says what to write instead:
///
/// | word | refused | instead |
/// |---|---|---|
/// | `wall_clock` | `SystemTime::now`, `Instant::now`, and those of `chrono`, `time`, `jiff` and `tokio`; `elapsed()` of a `SystemTime` | `wf.now()` |
/// | `randomness` | `rand::random`, `rand::rng`, `thread_rng`, `OsRng`, `from_entropy`, `fastrand`, `getrandom`, `RandomState::new` | `wf.random()` |
/// | `fresh_uuids` | `Uuid::new_v4`, `Uuid::now_v7` and the like, `Ulid::new`, `nanoid!` | `wf.uuid()` |
/// | `sleep` | `tokio::time::sleep`, `interval` and `timeout`, `thread::sleep` | `wf.sleep()`, `Step::timeout` |
/// | `spawn` | `tokio::spawn`, `spawn_blocking`, `thread::spawn`, `JoinSet::new` | `wf.start()`, `join!` of steps |
/// | `io` | `std::fs`, `tokio::fs`, `File::open`, `TcpStream::connect`, `env::var`, `process::Command`, `process::id()`, `thread::current()`, `reqwest`, `sqlx::query` | a step |
/// | `hash_order` | a `for` over a `HashMap` or a `HashSet` that awaits a step with each item | a `BTreeMap`, a `BTreeSet`, a sorted `Vec` |
///
/// The closure of `wf.step` or `wf.tx` is the body of a step, which is recorded and may do anything, and so may functions and closures inside the body that
/// nothing but steps call; the name of the step belongs to the workflow. A `#[job]` inside the body is not the body.
///
/// `allow` is for what decides nothing, such as a duration that is only logged, and for a module of yours that is named like one of these. A word that
/// excuses nothing is refused.
///
/// The macro sees the names in the body and nothing else, and refuses what it is sure of. It does not see what the functions do that the body calls, what
/// is renamed or imported by its bare name outside the body (`sleep(…)`), nor most of what depends on the order of a `HashMap` or a `HashSet`, which differs from process to process.
/// Nor does it see that branches of a `tokio::select!` build their steps only when they are polled, in a random order: give each a `wf.branch`, or write `biased;`.
/// Where such a thing leads a replay to other steps than were recorded, the run is blocked, with the step and the reason; where it only changes what
/// the body computes, nothing notices.
#[proc_macro_attribute]
pub fn workflow(options: TokenStream, item: TokenStream) -> TokenStream {
    define(Kind::Workflow, options.into(), &item.into()).into()
}
