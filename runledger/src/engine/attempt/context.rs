//! The attempt, as its body sees it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use uuid::Uuid;

use crate::definition::Definition;
use crate::engine::attempt::Attempt;
use crate::store::attempt::wait::Above;
use crate::store::operator::config::Configs;

/// The attempt that a body belongs to.
///
/// Get it with `#[inject] context: &Context`. It is always provided.
#[derive(Clone, Debug)]
pub struct Context {
    attempt: Arc<Attempt>,
    /// The definition of the body's job, which may be a job that a step calls.
    definition: &'static Definition,
    /// The configurations when the body began.
    configs: Arc<Configs>,
    step_key: Option<Arc<str>>,
    number: u32,
    /// How many lines this try has emitted.
    lines: Arc<AtomicU32>,
}

impl Context {
    pub(crate) fn new(
        attempt: Arc<Attempt>,
        definition: &'static Definition,
        step_key: Option<Arc<str>>,
        number: u32,
    ) -> Self {
        let configs = attempt.registry.configs();
        Self { attempt, definition, configs, step_key, number, lines: Arc::default() }
    }

    pub(crate) fn definition(&self) -> &'static Definition {
        self.definition
    }

    pub(crate) fn configs(&self) -> &Configs {
        &self.configs
    }

    pub(crate) fn of_attempt(&self) -> &Attempt {
        &self.attempt
    }

    /// The number of the next line that this try emits, from 1.
    pub(crate) fn next_line(&self) -> u32 {
        self.lines.fetch_add(1, Ordering::Relaxed).saturating_add(1)
    }

    /// Returns the id of the run.
    #[must_use]
    pub fn run_id(&self) -> Uuid {
        self.attempt.fence.run_id
    }

    /// Returns the tenant of the run. Empty for none.
    #[must_use]
    pub fn tenant(&self) -> &str {
        &self.attempt.tenant
    }

    /// Returns the id of the graph if the run is a node. `db.graph::<()>(id)` returns its handle.
    #[must_use]
    pub fn graph_id(&self) -> Option<Uuid> {
        match self.attempt.above {
            Above::Graph(graph_id) => Some(graph_id),
            Above::Nothing | Above::Parent(_) => None,
        }
    }

    /// Returns the number of the attempt, from 1. In a step, it is the number of the step's try.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.number
    }

    /// Returns the key of the step, if the body is a step.
    #[must_use]
    pub fn step_key(&self) -> Option<&str> {
        self.step_key.as_deref()
    }

    /// Returns a key for external systems that support idempotency keys.
    ///
    /// The key is the same for every attempt of this body, and different for every other body.
    #[must_use]
    pub fn idempotency_key(&self) -> Uuid {
        let key = self.attempt.key_of_slice(self.step_key.as_deref().unwrap_or_default());
        Uuid::new_v5(&self.attempt.fence.run_id, key.as_bytes())
    }

    /// Returns the fence of this attempt, for external systems that can refuse writes of a stale
    /// worker.
    #[must_use]
    pub fn fence_token(&self) -> Uuid {
        self.attempt.fence.token
    }
}
