//! Runs that old code stopped in the middle, and the expected verdicts for new code.

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::Duration;

use runledger::__private::DefinitionOf;
use runledger::prelude::*;
use runledger::{AnyCall, Definition, Timings, Verdict, Worker};
use runledger_tests::eventually;
use runledger_tests::rows::{execute, scalar};
use serde_json::Value;
use tokio::sync::Semaphore;
use uuid::Uuid;

/// Longer than any test.
pub const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// A change of a workflow, and the expectation for a run that the old code has parked.
#[derive(Clone, Debug)]
pub struct Case {
    pub name: &'static str,
    pub expected: Expected,
    pub input: Value,
    pub call: fn(&Case) -> AnyCall,
    pub old: &'static Definition,
    /// `None` if the job was removed.
    pub new: Option<&'static Definition>,
}

/// The expected verdict of `verify`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    Fine,
    /// The run breaks at this step, with a message that contains this text.
    Breaks(&'static str, &'static str),
    /// The value at this path does not decode.
    Undecodable(&'static str),
    NoCode,
    NoVersion,
    Undecided,
}

impl Expected {
    pub fn agrees(&self, verdict: &Verdict) -> bool {
        match (self, verdict) {
            (Self::Fine, Verdict::Replays)
            | (Self::NoCode, Verdict::NoCode)
            | (Self::NoVersion, Verdict::NoVersion { version: 1, .. })
            | (Self::Undecided, Verdict::Undecided) => true,
            (Self::Breaks(step, words), Verdict::Breaks { divergence }) => {
                divergence.step() == Some(step) && divergence.to_string().contains(words)
            }
            (Self::Undecodable(words), Verdict::Undecodable { failure }) => {
                failure.to_string().contains(words)
            }
            _ => false,
        }
    }

    /// Whether a worker with the new code blocks the run.
    pub fn blocks(&self) -> bool {
        match self {
            Self::Breaks(..) | Self::Undecodable(_) => true,
            Self::Fine | Self::NoCode | Self::NoVersion | Self::Undecided => false,
        }
    }
}

/// A table of changes. Each has the old and the new function, the input of the run, and the
/// expectation.
macro_rules! changes {
    ($(
        $case:ident($input:tt) $expected:ident $(($($word:literal),+))?
        old ($($old:tt)*) $old_body:tt
        new $([$($option:tt)+])? ($($new:tt)*) $new_body:tt
    )*) => {
        $(mod $case {
            pub mod old {
                #[allow(unused_imports, reason = "one list for all")]
                use super::super::*;
                #[workflow]
                pub async fn $case($($old)*) -> Result<u64> $old_body
            }
            pub mod new {
                #[allow(unused_imports, reason = "one list for all")]
                use super::super::*;
                #[workflow$(($($option)+))?]
                pub async fn $case($($new)*) -> Result<u64> $new_body
            }
        })*

        pub fn cases() -> Vec<Case> {
            vec![$(Case {
                name: stringify!($case),
                expected: Expected::$expected $(($($word),+))?,
                input: serde_json::json!($input),
                call: by_name,
                old: definition($case::old::$case),
                new: Some(definition($case::new::$case)),
            }),*]
        }
    };
}
pub(super) use changes;

/// Calls the case by its name, which both codes have, in the version of the old one.
pub fn by_name(case: &Case) -> AnyCall {
    AnyCall::by_name(case.name, &case.input).version(case.old.code_version())
}

pub fn definition<Arguments, F: DefinitionOf<Arguments>>(function: F) -> &'static Definition {
    drop(function);
    F::DEFINITION
}

#[job]
pub async fn add(a: u64, b: u64) -> Result<u64> {
    Ok(a + b)
}

/// A child that never ends, because no worker serves its queue.
#[job(queue = "verify.nobody")]
pub async fn lost(n: u64) -> Result<u64> {
    Ok(n)
}

/// Another child that never ends.
#[job(queue = "verify.nobody")]
pub async fn missing(n: u64) -> Result<u64> {
    Ok(n)
}

/// A child that ends at once.
#[job]
pub async fn quick(n: u64) -> Result<u64> {
    Ok(n)
}

/// Returns a text. The start of a child records the id of its run, which decodes as a text too.
#[job]
pub async fn named(n: u64) -> Result<String> {
    Ok(format!("number {n}"))
}

/// Never ends from 90 on. Lower numbers end at once.
#[job]
pub async fn stuck(n: u64, #[inject] context: &Context) -> Result<u64> {
    if n >= 90 {
        gate_of(context.run_id()).add_permits(1);
        std::future::pending::<()>().await;
    }
    Ok(n)
}

#[job]
pub async fn signals(n: u64, #[inject] context: &Context, #[inject] db: &Db) -> Result<u64> {
    db.run(context.run_id()).signal("go", &n).await?;
    Ok(n)
}

pub fn helpers() -> impl Iterator<Item = &'static Definition> {
    jobs![add, lost, missing, named, quick, stuck, signals].into_iter()
}

/// A step that ends at once.
pub async fn one(wf: &Wf, name: &str) -> Result<u64> {
    Ok(wf.step(name, || async { Ok::<u64, Error>(1) }).await?)
}

/// Sleeps for a day. The old code stops here.
pub async fn asleep(wf: &Wf) -> Result<u64> {
    wf.sleep(DAY).await?;
    Ok(0)
}

static GATES: LazyLock<Mutex<HashMap<Uuid, Arc<Semaphore>>>> = LazyLock::new(Mutex::default);

/// Returns the gate of a run, which is closed at first.
pub fn gate(wf: &Wf) -> Arc<Semaphore> {
    gate_of(wf.run_id())
}

/// As [`gate`], by the id of the run.
pub fn gate_of(run_id: Uuid) -> Arc<Semaphore> {
    let mut gates = GATES.lock().unwrap_or_else(PoisonError::into_inner);
    Arc::clone(gates.entry(run_id).or_insert_with(|| Arc::new(Semaphore::new(0))))
}

/// A step whose body never ends, so that it is not recorded. `park_all` waits until the body runs.
pub fn held(wf: &Wf, name: &str) -> impl Future<Output = Result<u64>> {
    let gate = gate(wf);
    let step = wf.step(name, move || {
        gate.add_permits(1);
        std::future::pending::<Result<u64>>()
    });
    async { Ok(step.await?) }
}

async fn is_parked(db: &Db, run_id: Uuid, claims: i32) -> bool {
    let parked = "select exists (select from runledger.ready where run_id = '{id}' and (claims >= {claims} or queue = 'verify.nobody'))
        or exists (select from runledger.waiting where run_id = '{id}' and claims >= {claims})
        or exists (select from runledger.outcome where run_id = '{id}')
        or exists (select from runledger.lease where run_id = '{id}' and claims > 1)";
    let parked = parked.replace("{id}", &run_id.to_string()).replace("{claims}", &claims.to_string());
    let is_held = || {
        let gates = GATES.lock().unwrap_or_else(PoisonError::into_inner);
        gates.get(&run_id).is_some_and(|gate| gate.available_permits() > 0)
    };
    scalar::<bool>(db, &parked).await || (claims == 1 && is_held())
}

/// Waits until a run is parked after this number of claims.
pub async fn await_parked(db: &Db, run_id: Uuid, claims: i32) {
    let parked = async || {
        let info = db.run(run_id).info().await.unwrap();
        (is_parked(db, run_id, claims).await, info.job, info.error)
    };
    eventually(parked, |(parked, ..)| *parked).await;
}

pub async fn worker(db: &Db, definitions: impl Iterator<Item = &'static Definition>) -> Worker {
    let app = App::new(db.clone()).with(definitions).queues(["default"]);
    app.provide(db.clone()).timings(Timings::FAST).drain(Duration::ZERO).start().await.unwrap()
}

/// Runs the old code of each case until its run is parked.
pub async fn park_all<'a>(db: &Db, cases: &'a [Case]) -> Vec<(&'a Case, Uuid)> {
    let calls = cases.iter().map(|case| (case.call)(case));
    let submitted = runledger::enqueue_all(calls, db).await.unwrap();
    let old =
        worker(db, cases.iter().map(|case| case.old).chain(helpers()).chain(super::compensations::before()))
            .await;
    for run in &submitted {
        await_parked(db, run.run_id, 1).await;
    }
    old.stop().await;
    cases.iter().zip(submitted).map(|(case, run)| (case, run.run_id)).collect()
}

/// Makes every run in flight due.
pub async fn wake_all(db: &Db) {
    execute(
        db,
        "with woken as (delete from runledger.waiting where state = 'waiting' returning *)
         insert into runledger.ready (run_id, queue, job, priority, ready_at, cause, attempt, crashes, claims)
         select run_id, queue, job, priority, statement_timestamp(), 'woken', attempt, crashes, claims
         from woken join runledger.run using (run_id);
         update runledger.ready set ready_at = statement_timestamp(), queue = 'default'
         where queue = 'default' or job like 'a_queued_job%'",
    )
    .await;
}

/// Returns all rows of the engine as text.
pub async fn everything(db: &Db) -> String {
    let tables =
        ["run", "ready", "lease", "waiting", "outcome", "step", "attempt", "cancel", "completion_watch"];
    let mut text = String::new();
    for table in tables {
        let rows = format!(
            "select coalesce(string_agg(t::text, '\n' order by t::text), '') from runledger.{table} t"
        );
        text += &scalar::<String>(db, &rows).await;
    }
    text
}
