//! Test hooks: mocked bodies and skipped time for the workers of one database. A worker without
//! hooks is a normal worker.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use uuid::Uuid;

use crate::definition::invocation::{Finished, Invocation};
use crate::definition::provided::Provided;
use crate::definition::{Definition, RunFuture};
use crate::engine::step::Try;
use crate::store::failpoints::scope::without_ids;

/// A body that replaces a job's own.
pub(crate) type Mock = Arc<dyn Fn(Invocation) -> RunFuture + Send + Sync>;

/// A job, by its name and version.
pub(crate) type Code = (&'static str, u32);

/// The test hooks of one database. They outlive its workers.
#[derive(Default)]
pub(crate) struct TestHooks {
    pub(crate) skipped: Arc<Skipped>,
    pub(crate) mocks: HashMap<Code, Mock>,
    /// Values that replace external systems.
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
    pub(crate) fn calls(&self, job: &Definition) -> u32 {
        locked(&self.calls).get(&job.code()).copied().unwrap_or(0)
    }
}

/// The skipped time.
#[derive(Debug, Default)]
pub(crate) struct Skipped {
    micros: AtomicU64,
    /// Skip all sleeps automatically: every sleep leaves the worker, and ends when no other work is
    /// left.
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

/// The place at which a step's body is held, until another worker has executed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum HoldAt {
    /// Before its first instruction.
    Before,
    /// After its last instruction, before its record.
    After,
}

/// Records and holds the bodies of steps.
#[derive(Debug)]
pub(crate) struct Steps {
    pub(crate) held_at: Option<(String, HoldAt)>,
    /// The bodies that began, each once.
    begun: Mutex<Vec<Begun>>,
    phase: watch::Sender<Phase>,
    /// The key of the held step.
    held: Mutex<Option<String>>,
}

/// A body that began.
#[derive(Debug)]
struct Begun {
    key: String,
    name: String,
    in_transaction: bool,
}

/// The state of the held step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// It has not been reached.
    Unmet,
    /// The first worker holds it, in this run.
    Held(Uuid),
    /// It continues.
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

    /// Lets the held body continue.
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

    /// Holds the first worker if it has reached `held_at`.
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
            // The sender lives as long as the hooks, and this worker owns a reference to them.
            let _ = phases.wait_for(|phase| *phase == Phase::Released).await.is_ok();
        }
    }

    /// Releases the held step, because another worker has executed it.
    fn ended_elsewhere(&self, run_id: Uuid, key: &str) {
        if locked(&self.held).as_deref() == Some(key) && self.phase() == Phase::Held(run_id) {
            self.release();
        }
    }
}

/// The hooks of one worker.
#[derive(Clone, Debug)]
pub(crate) struct WorkerHooks {
    pub(crate) scene: Arc<TestHooks>,
    pub(crate) role: Role,
}

/// The role of a worker in a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// The only worker of a test. It lives as any other.
    Only,
    /// The worker with the fault. It sends no heartbeats, because no test waits for its silence.
    First,
    /// The worker that takes over. It sends no heartbeats either.
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

/// The hooks of the worker with these provided values.
pub(crate) fn worker_hooks(provided: &Provided) -> Option<Arc<WorkerHooks>> {
    provided.get::<WorkerHooks>()
}

/// The skipped time of the worker with these provided values.
pub(crate) fn skipped(provided: &Provided) -> Option<Arc<Skipped>> {
    worker_hooks(provided).map(|part| Arc::clone(&part.scene.skipped))
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing panics while it holds one of these locks.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
