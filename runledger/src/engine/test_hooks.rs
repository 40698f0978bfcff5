//! What a test has put in the place of bodies and of time, for the workers of one database. A worker that is given no part is as any other.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use uuid::Uuid;

use super::step::Try;
use crate::definition::invocation::{Finished, Invocation};
use crate::definition::provided::Provided;
use crate::definition::{Definition, RunFuture};
use crate::store::failpoints::scope::without_ids;

/// A body in the place of a job's own.
pub(crate) type Mock = Arc<dyn Fn(Invocation) -> RunFuture + Send + Sync>;

/// A job by its name and version.
pub(crate) type Code = (&'static str, u32);

/// The scene of one database. It outlives its workers.
#[derive(Default)]
pub(crate) struct TestHooks {
    pub(crate) skipped: Arc<Skipped>,
    pub(crate) mocks: HashMap<Code, Mock>,
    /// Values that stand for what is outside.
    pub(crate) fakes: Provided,
    /// How often the body of a job has begun.
    pub(crate) calls: Mutex<HashMap<Code, u32>>,
    pub(crate) steps: Steps,
}

impl fmt::Debug for TestHooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TestHooks").field("skipped", &self.skipped).finish_non_exhaustive()
    }
}

impl TestHooks {
    /// How often the body of a job has begun.
    pub(crate) fn calls(&self, job: &Definition) -> u32 {
        locked(&self.calls).get(&job.code()).copied().unwrap_or(0)
    }
}

/// The time that was skipped.
#[derive(Debug, Default)]
pub(crate) struct Skipped {
    micros: AtomicU64,
    /// Nobody waits: sleeps of any length leave the worker, and are over when nothing else is to be done.
    pub(crate) by_itself: bool,
}

impl Skipped {
    pub(crate) fn by_itself() -> Arc<Self> {
        Arc::new(Self { micros: AtomicU64::new(0), by_itself: true })
    }

    pub(crate) fn so_far(&self) -> Duration {
        Duration::from_micros(self.micros.load(Ordering::SeqCst))
    }

    pub(crate) fn add(&self, more: Duration) {
        self.micros.fetch_add(u64::try_from(more.as_micros()).unwrap_or(u64::MAX), Ordering::SeqCst);
    }
}

/// Where the body of a step is held up, until another worker has run it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum HoldAt {
    /// Before its first instruction.
    Before,
    /// After its last one, before its record.
    After,
}

/// The bodies of steps, as they are entered and left.
#[derive(Debug)]
pub(crate) struct Steps {
    pub(crate) held_at: Option<(String, HoldAt)>,
    /// The names of those that began, and whether they had a transaction, each once.
    begun: Mutex<Vec<Begun>>,
    phase: watch::Sender<Phase>,
    /// The key of the one that is held up.
    held: Mutex<Option<String>>,
}

/// A body that began.
#[derive(Debug)]
struct Begun {
    key: String,
    name: String,
    in_transaction: bool,
}

/// How far the step is that is held up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// It has not been met.
    Unmet,
    /// The first worker holds it up, in this run.
    Held(Uuid),
    /// It goes on.
    Released,
}

impl Default for Steps {
    fn default() -> Self {
        Self::held_at(None)
    }
}

impl Steps {
    pub(crate) fn held_at(held_at: Option<(String, HoldAt)>) -> Self {
        Self {
            held_at,
            begun: Mutex::default(),
            phase: watch::Sender::new(Phase::Unmet),
            held: Mutex::default(),
        }
    }

    pub(crate) fn begun(&self) -> Vec<(String, bool)> {
        locked(&self.begun).iter().map(|begun| (begun.name.clone(), begun.in_transaction)).collect()
    }

    pub(crate) fn phase(&self) -> Phase {
        *self.phase.borrow()
    }

    /// Lets the body go on that is held up.
    pub(crate) fn release(&self) {
        self.phase.send_if_modified(|phase| {
            let is_held = matches!(phase, Phase::Held(_));
            if is_held {
                *phase = Phase::Released;
            }
            is_held
        });
    }

    /// Notes that a body begins. Returns its name, which is the same in other runs.
    fn begins(&self, key: &str, in_transaction: bool) -> String {
        let mut begun = locked(&self.begun);
        if let Some(known) = begun.iter().find(|known| known.key == key) {
            return known.name.clone();
        }
        let kind = without_ids(key);
        let n_before = begun.iter().filter(|known| without_ids(&known.key) == kind).count();
        let name = if n_before == 0 { kind } else { format!("{kind} (number {})", n_before + 1) };
        begun.push(Begun { key: key.to_owned(), name: name.clone(), in_transaction });
        name
    }

    /// Holds the first worker up where it is told to.
    async fn hold(&self, run_id: Uuid, key: &str, name: &str, place: HoldAt) {
        if self.held_at.as_ref().is_none_or(|(at, hold)| *hold != place || at != name) {
            return;
        }
        let mut phases = self.phase.subscribe();
        let is_first = self.phase.send_if_modified(|phase| {
            let is_unmet = *phase == Phase::Unmet;
            if is_unmet {
                *locked(&self.held) = Some(key.to_owned());
                *phase = Phase::Held(run_id);
            }
            is_unmet
        });
        if is_first {
            // The sender lives as long as the scene, which this worker's part holds.
            let _ = phases.wait_for(|phase| *phase == Phase::Released).await.is_ok();
        }
    }

    /// Another worker has run the step that is held up.
    fn ended_elsewhere(&self, run_id: Uuid, key: &str) {
        if locked(&self.held).as_deref() == Some(key) && self.phase() == Phase::Held(run_id) {
            self.release();
        }
    }
}

/// A worker's part in a scene.
#[derive(Clone, Debug)]
pub(crate) struct WorkerHooks {
    pub(crate) scene: Arc<TestHooks>,
    pub(crate) role: Role,
}

/// Which worker it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// The one of a test, which lives as any other.
    Only,
    /// The one that meets a fault. Nobody finds out by its silence, so it sends no heartbeats.
    First,
    /// The one that takes over, and is as quiet.
    Second,
}

impl WorkerHooks {
    pub(crate) fn run(&self, definition: &'static Definition, invocation: Invocation) -> RunFuture {
        *locked(&self.scene.calls).entry(definition.code()).or_default() += 1;
        match self.scene.mocks.get(&definition.code()) {
            Some(mock) => mock(invocation),
            None => (definition.run)(invocation),
        }
    }

    pub(crate) async fn around<'a>(
        &self,
        run_id: Uuid,
        key: &str,
        in_transaction: bool,
        begin: impl FnOnce() -> Try<'a>,
    ) -> Finished {
        let steps = &self.scene.steps;
        let name = steps.begins(key, in_transaction);
        if self.role == Role::First {
            steps.hold(run_id, key, &name, HoldAt::Before).await;
        }
        let finished = begin().await;
        if self.role == Role::First {
            steps.hold(run_id, key, &name, HoldAt::After).await;
        } else {
            steps.ended_elsewhere(run_id, key);
        }
        finished
    }
}

/// The part of the worker whose provided values these are.
pub(crate) fn worker_hooks(provided: &Provided) -> Option<Arc<WorkerHooks>> {
    provided.get::<WorkerHooks>()
}

/// The time that was skipped for the worker whose provided values these are.
pub(crate) fn skipped(provided: &Provided) -> Option<Arc<Skipped>> {
    worker_hooks(provided).map(|part| Arc::clone(&part.scene.skipped))
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing panics while it holds one of these.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
