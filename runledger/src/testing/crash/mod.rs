//! Kills the worker at every write of a run. Each run must end like the run without a fault.

mod fault;
mod once;
mod process;
mod report;
mod slot;

use std::any::Any;
use std::collections::HashSet;
use std::fmt;
use std::future::{Future, IntoFuture};
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::time::{Duration, Instant};

use futures_util::{FutureExt, StreamExt, stream};

use self::fault::{Fault, by_oldest_names, faults};
pub use self::once::{Ended, RecordedStep};
use self::once::{FinishedRun, Seen, Stage};
pub use self::report::{CrashError, Crashes};
use super::Testing;
use crate::definition::error::Result as BodyResult;
use crate::engine::step::unit_random;
use crate::model::run::failure::Failure;
use crate::{Call, ClientError, Job, RunState};

/// The default limit of crashes. A workflow with a hundred steps has fewer.
const AT_MOST: usize = 1000;

/// How many runs execute at a time. Each needs several server processes, and mostly waits.
const AT_A_TIME: usize = 4;

/// Selects the faults whose names contain this text.
const ONLY: &str = "RUNLEDGER_CRASH_ONLY";

/// The seed that chooses faults when there are more than the limit.
const SEED: &str = "RUNLEDGER_CRASH_SEED";

type Invariant<J> = Box<
    dyn Fn(Ended<<J as Job>::Output>) -> Pin<Box<dyn Future<Output = BodyResult<()>> + Send>> + Send + Sync,
>;

/// A crash test that is configured but not started. Await it to run it.
#[must_use = "nothing is run until it is awaited"]
pub struct CrashEverywhere<'t, J: Job> {
    test: &'t Testing,
    call: Call<J>,
    invariant: Option<Invariant<J>>,
    expected: RunState,
    at_most: usize,
    at_a_time: usize,
    seed: Option<u64>,
    only: Option<String>,
}

impl Testing {
    /// Runs a call many times, and injects one fault into each run.
    ///
    /// A first run without a fault records all writes and steps. Then the kit injects these faults:
    ///
    /// - **Death at a write**: the worker dies before the commit, after it, or after it with the
    ///   acknowledgement lost. Another worker takes over the run.
    /// - **Duplicate delivery of a step**: the worker loses the run after the body ends and before
    ///   its result is recorded. Another worker executes the body again.
    /// - **Stalled step**: the worker loses the run before the body starts. The stalled body
    ///   continues after another worker has executed the step.
    ///
    /// Each run has a clone of this test's database in its present state, so create your schema
    /// through `db()` first. The worker is a thread with its own runtime. When it dies, its tasks
    /// are dropped and its connections are cut. The kit skips all sleeps, and sends the signals of
    /// [`signals`](Testing::signals) to each run.
    ///
    /// The run without a fault must complete, or reach the state in
    /// [`expect_state`](CrashEverywhere::expect_state). Every other run must reach the same state,
    /// and must not lose or change a step recorded before the fault. Its result must equal the
    /// result without a fault, or satisfy the [`invariant`](CrashEverywhere::invariant). Of a
    /// failure, only the kind is compared, because its text may contain ids. An error names the
    /// fault and shows how to repeat it alone.
    ///
    /// # Errors
    /// [`CrashError`] for the first fault after which a check fails.
    ///
    /// ```
    /// use runledger::prelude::*;
    /// use runledger::testing::Testing;
    ///
    /// #[job]
    /// async fn book(order: u64, #[inject] tx: &mut Tx) -> Result<()> {
    ///     sqlx::query("insert into booking values ($1)").bind(order.cast_signed()).execute(&mut **tx).await?;
    ///     Ok(())
    /// }
    ///
    /// #[workflow]
    /// async fn checkout(wf: &Wf, order: u64) -> Result<()> {
    ///     wf.run(book(order)).await?;
    ///     Ok(())
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// let test = Testing::new().await?.with(jobs![checkout, book]);
    /// sqlx::raw_sql("create table booking (order_id bigint)").execute(test.db().pool()).await?;
    /// let crashes = test
    ///     .crash_everywhere(checkout(7))
    ///     .invariant(|end| async move {
    ///         let booked: i64 =
    ///             sqlx::query_scalar("select count(*) from booking").fetch_one(end.db().pool()).await?;
    ///         assert_eq!(booked, 1);
    ///         Ok(())
    ///     })
    ///     .await?;
    /// assert!(crashes.n_crashes() > 10);
    /// # Ok(())
    /// # }
    /// ```
    pub fn crash_everywhere<J: Job>(&self, call: Call<J>) -> CrashEverywhere<'_, J> {
        CrashEverywhere {
            test: self,
            call,
            invariant: None,
            expected: RunState::Completed,
            at_most: AT_MOST,
            at_a_time: AT_A_TIME,
            seed: None,
            only: None,
        }
    }
}

impl<J: Job> CrashEverywhere<'_, J> {
    /// Checks every run with your invariant, instead of comparing its result with the run without a
    /// fault. An invariant fails with an error or a panic, such as a failed `assert_eq!`. The kit
    /// checks the [state](Self::expect_state) of the run first.
    pub fn invariant<F, Fut>(mut self, holds: F) -> Self
    where
        F: Fn(Ended<J::Output>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = BodyResult<()>> + Send + 'static,
    {
        self.invariant = Some(Box::new(move |end| Box::pin(holds(end))));
        self
    }

    /// Sets the state that every run must reach; [`RunState::Completed`] by default. Use
    /// `.expect_state(RunState::Failed)` for a workflow that should fail, such as a saga that
    /// compensates its steps.
    pub fn expect_state(mut self, state: RunState) -> Self {
        self.expected = state;
        self
    }

    /// Limits the number of crashes; 1,000 by default. The seed chooses them.
    pub fn at_most(mut self, crashes: usize) -> Self {
        self.at_most = crashes;
        self
    }

    /// Sets how many runs execute at a time; 4 by default. Use 1 if the runs share a value of the
    /// test, such as a fake that counts.
    pub fn at_a_time(mut self, runs: usize) -> Self {
        self.at_a_time = runs.max(1);
        self
    }

    /// Sets the seed that chooses the crashes; random by default. The environment variable
    /// `RUNLEDGER_CRASH_SEED` overrides it.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Selects the faults whose names contain this text, such as `step `charge``. Faults use the
    /// oldest name of a renamed job; this text may contain any of its names. The environment
    /// variable `RUNLEDGER_CRASH_ONLY` overrides the text.
    pub fn only(mut self, name: impl Into<String>) -> Self {
        self.only = Some(name.into());
        self
    }

    async fn run(self) -> Result<Crashes, CrashError> {
        let began = Instant::now();
        let name = J::DEFINITION.name();
        let setup = |error| CrashError::Setup { job: name, source: error };
        // The variables take precedence over the test, because an error asks its reader to set
        // them.
        let seed = match from_env(SEED) {
            Some(text) => seed_of(text)?,
            None => self.seed.unwrap_or_else(random),
        };
        let stage = Stage::new(self.test).await.map_err(setup)?;
        let survived = self.survive(&stage, seed).await;
        stage.clear().await;
        let survived = survived?;
        Ok(Crashes { took: began.elapsed(), ..survived })
    }

    async fn survive(&self, stage: &Stage, seed: u64) -> Result<Crashes, CrashError> {
        let job = J::DEFINITION.name();
        let without = |problem| CrashError::WithoutFault { job, problem };
        let calm = self.once(stage, None, None).await.map_err(without)?;
        // A second run without a fault. It shows results that always differ, which must not be
        // blamed on a crash.
        let again = self.once(stage, Some(&calm), None).await;
        again.map_err(|problem| without(format!("{problem}{ANOTHER}")))?;
        let all = faults(&calm.written, &calm.begun);
        let n_writes = calm.written.iter().collect::<HashSet<_>>().len();
        let (n_all, n_steps) = (all.len(), calm.begun.len());
        let chosen = self.choose(all, seed)?;
        let n_left_out = n_all - chosen.len();
        let (mut n_crashes, mut n_missed) = (0, 0);
        let mut running = stream::iter(chosen)
            .map(|fault| {
                let calm = &calm;
                async move {
                    let seen = self.once(stage, Some(calm), Some(&fault)).await;
                    seen.map_err(|problem| CrashError::Broken {
                        job,
                        fault: fault.to_string(),
                        problem,
                        seed,
                    })
                }
            })
            .buffer_unordered(self.at_a_time);
        while let Some(seen) = running.next().await {
            if seen?.was_met { n_crashes += 1 } else { n_missed += 1 }
        }
        if n_crashes == 0 {
            return Err(CrashError::NothingMet { job, n_missed, n_left_out, at_most: self.at_most });
        }
        Ok(Crashes { job, n_crashes, n_missed, n_writes, n_steps, n_left_out, seed, took: Duration::ZERO })
    }

    /// Executes one run, with or without a fault. Returns an error that says which check failed.
    async fn once(&self, stage: &Stage, calm: Option<&Seen>, fault: Option<&Fault>) -> Result<Seen, String> {
        let observed = Box::pin(stage.run(&self.call, fault)).await?;
        let checked = self.check(&observed, calm).await;
        let seen = stage.give_back(observed).await;
        checked.map(|()| seen)
    }

    async fn check(&self, observed: &FinishedRun, calm: Option<&Seen>) -> Result<(), String> {
        match calm {
            None => observed.ended_in(self.expected)?,
            Some(calm) => observed.same_state(calm)?,
        }
        let Some(holds) = &self.invariant else {
            return calm.map_or(Ok(()), |calm| observed.same_end(calm));
        };
        let end = observed.ended::<J>().await.map_err(|error| error.to_string())?;
        match AssertUnwindSafe(async { holds(end).await }).catch_unwind().await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => {
                Err(format!("the invariant does not hold: {}", Failure::text_of_chain(error.as_std())))
            }
            Err(panic) => Err(format!("the invariant does not hold: {}", said(panic.as_ref()))),
        }
    }

    fn choose(&self, mut all: Vec<Fault>, seed: u64) -> Result<Vec<Fault>, CrashError> {
        if let Some(only) = from_env(ONLY).or_else(|| self.only.clone()) {
            let names: Vec<String> = all.iter().map(ToString::to_string).collect();
            let oldest = by_oldest_names(&only, self.test.plan.definitions());
            all.retain(|fault| {
                let name = fault.to_string();
                name.contains(&only) || name.contains(&oldest)
            });
            if all.is_empty() {
                return Err(CrashError::NoSuchFault { only, names });
            }
        }
        Ok(fastrand::Rng::with_seed(seed).choose_multiple(all, self.at_most))
    }
}

const ANOTHER: &str = "; two runs without a fault differ already: give `invariant`s that both satisfy, or a result that does not depend on ids and on time";

impl<'t, J: Job> IntoFuture for CrashEverywhere<'t, J> {
    type Output = Result<Crashes, CrashError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + 't>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.run())
    }
}

impl<J: Job> fmt::Debug for CrashEverywhere<'_, J> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CrashEverywhere").field("call", &self.call).finish_non_exhaustive()
    }
}

impl From<ClientError> for CrashError {
    fn from(source: ClientError) -> Self {
        Self::Setup { job: "", source }
    }
}

fn seed_of(text: String) -> Result<u64, CrashError> {
    text.parse().map_err(|_| CrashError::Seed { value: text })
}

fn from_env(name: &str) -> Option<String> {
    let value = std::env::var_os(name)?;
    Some(value.to_string_lossy().into_owned()).filter(|text| !text.is_empty())
}

/// The message of a panic.
fn said(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|&text| text.to_owned()))
        .unwrap_or_else(|| "it panicked".to_owned())
}

fn random() -> u64 {
    unit_random().to_bits() & 0xffff_ffff
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn non_numeric_seed_is_refused_with_its_value() {
        assert_eq!(seed_of("7".to_owned()).unwrap(), 7);
        let refused = seed_of("0x10".to_owned()).unwrap_err().to_string();
        assert!(refused.starts_with("`RUNLEDGER_CRASH_SEED` is `0x10`, and a seed is a number"), "{refused}");
    }
}
