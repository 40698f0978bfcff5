//! What a body may know of the attempt that it is part of.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use uuid::Uuid;

use super::attempt::Attempt;
use crate::definition::Definition;
use crate::store::config::Configs;
use crate::store::wait::Above;

/// The attempt that a body is part of. Ask for it with `#[inject] context: &Context`; it is always provided.
#[derive(Clone, Debug)]
pub struct Context {
    attempt: Arc<Attempt>,
    /// Of the body: that of the run's job, or of the one that a step calls.
    definition: &'static Definition,
    /// As they were when the body began.
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

    /// The run.
    #[must_use]
    pub fn run_id(&self) -> Uuid {
        self.attempt.fence.run_id
    }

    /// The tenant of the run; empty for none.
    #[must_use]
    pub fn tenant(&self) -> &str {
        &self.attempt.tenant
    }

    /// The graph that the run is a node of, if it is: `db.graph::<()>(id)` has its handle.
    #[must_use]
    pub fn graph_id(&self) -> Option<Uuid> {
        match self.attempt.above {
            Above::Graph(graph_id) => Some(graph_id),
            Above::Nothing | Above::Parent(_) => None,
        }
    }

    /// Which attempt this is, from 1: of the run, or of the step where the body is one.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.number
    }

    /// The step, where the body is one.
    #[must_use]
    pub fn step_key(&self) -> Option<&str> {
        self.step_key.as_deref()
    }

    /// A key for systems outside that know idempotency keys: the same for every attempt of this body, different for every other body.
    #[must_use]
    pub fn idempotency_key(&self) -> Uuid {
        let key = self.attempt.key_of_slice(self.step_key.as_deref().unwrap_or_default());
        Uuid::new_v5(&self.attempt.fence.run_id, key.as_bytes())
    }

    /// The fence of this attempt, for systems outside that can refuse writes of an older holder.
    #[must_use]
    pub fn fence_token(&self) -> Uuid {
        self.attempt.fence.token
    }
}
