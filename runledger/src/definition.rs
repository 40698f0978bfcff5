//! A job or workflow as the code defines it: a constant that the macros write.

pub(crate) mod call;
pub(crate) mod error;
pub(crate) mod failed;
pub(crate) mod invocation;
pub(crate) mod job;
pub mod jobs;
pub(crate) mod macro_traits;
pub(crate) mod provided;
pub(crate) mod registry;
pub(crate) mod step_error;

use std::any::TypeId;
use std::borrow::Cow;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use self::invocation::{Finished, Invocation};
use self::macro_traits::Injectable;
use crate::model::backoff::Backoff;
use crate::model::settle::RetryPolicy;
use crate::model::version::{FIRST, stored_name};

/// The future of one try of a body.
pub type RunFuture = Pin<Box<dyn Future<Output = Finished> + Send>>;

/// Starts one try of a body.
pub type RunFn = fn(Invocation) -> RunFuture;

/// The queue of a job that names none.
pub const DEFAULT_QUEUE: &str = "default";

/// How many attempts of a job may fail where it does not say.
pub const DEFAULT_MAX_ATTEMPTS: u32 = 5;

/// How many attempts of a workflow may fail where it does not say: its steps are retried, its body is not.
pub const DEFAULT_WORKFLOW_ATTEMPTS: u32 = 1;

/// Whether a body is one step or consists of steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A `#[job]`.
    Job,
    /// A `#[workflow]`.
    Workflow,
}

/// Where a job is defined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Location {
    file: &'static str,
    line: u32,
    column: u32,
    module: &'static str,
}

impl Location {
    /// A place in the source.
    #[must_use]
    pub const fn new(file: &'static str, line: u32, column: u32, module: &'static str) -> Self {
        Self { file, line, column, module }
    }

    /// The module.
    #[must_use]
    pub const fn module(&self) -> &'static str {
        self.module
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.file, self.line, self.column)
    }
}

/// A parameter that is part of the payload.
#[derive(Clone, Copy, Debug)]
pub struct Param {
    name: &'static str,
    required: bool,
}

impl Param {
    /// A parameter that every payload must have.
    #[must_use]
    pub const fn required(name: &'static str) -> Self {
        Self { name, required: true }
    }

    /// An `Option`: absent means none.
    #[must_use]
    pub const fn optional(name: &'static str) -> Self {
        Self { name, required: false }
    }

    /// A parameter with a default.
    #[must_use]
    pub const fn defaulted(name: &'static str) -> Self {
        Self { name, required: false }
    }

    /// Its name.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// Whether every payload must have it.
    #[must_use]
    pub const fn is_required(&self) -> bool {
        self.required
    }
}

/// A type that a body asks the app for.
#[derive(Clone, Copy)]
pub struct Inject {
    id: fn() -> TypeId,
    name: fn() -> &'static str,
}

impl Inject {
    /// The type `T`.
    #[must_use]
    pub const fn of<T: Injectable>() -> Self {
        Self { id: TypeId::of::<T>, name: std::any::type_name::<T> }
    }

    /// The type's id.
    #[must_use]
    pub fn id(&self) -> TypeId {
        (self.id)()
    }

    /// The type's name.
    #[must_use]
    pub fn name(&self) -> &'static str {
        (self.name)()
    }
}

impl fmt::Debug for Inject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A job or workflow: its name, its options, and how to run it.
#[derive(Clone, Copy, Debug)]
pub struct Definition {
    pub(crate) kind: Kind,
    pub(crate) name: &'static str,
    pub(crate) aliases: &'static [&'static str],
    pub(crate) params: &'static [Param],
    pub(crate) injects: &'static [Inject],
    pub(crate) transactional: bool,
    pub(crate) queue: &'static str,
    pub(crate) priority: i16,
    pub(crate) max_attempts: u32,
    pub(crate) timeout: Option<Duration>,
    pub(crate) backoff: Backoff,
    pub(crate) deadline: Option<Duration>,
    pub(crate) heartbeat: Option<Duration>,
    pub(crate) version: u32,
    pub(crate) accepts: &'static [u32],
    pub(crate) run: RunFn,
    pub(crate) location: Location,
}

impl Definition {
    /// A job with the default options.
    #[must_use]
    pub const fn job(name: &'static str, run: RunFn, location: Location) -> Self {
        Self {
            kind: Kind::Job,
            name,
            aliases: &[],
            params: &[],
            injects: &[],
            transactional: false,
            queue: DEFAULT_QUEUE,
            priority: 0,
            max_attempts: DEFAULT_MAX_ATTEMPTS,
            timeout: None,
            backoff: Backoff::DEFAULT,
            deadline: None,
            heartbeat: None,
            version: FIRST,
            accepts: &[],
            run,
            location,
        }
    }

    /// A workflow with the default options.
    #[must_use]
    pub const fn workflow(name: &'static str, run: RunFn, location: Location) -> Self {
        let job = Self::job(name, run, location);
        Self { kind: Kind::Workflow, max_attempts: DEFAULT_WORKFLOW_ATTEMPTS, ..job }
    }

    /// Earlier names, oldest first: under them runs may still be queued, and the first makes the ids of runs that have an idempotency key. So never
    /// reorder them, and never drop the first while a key may be repeated.
    #[must_use]
    pub const fn aliases(self, aliases: &'static [&'static str]) -> Self {
        Self { aliases, ..self }
    }

    /// The parameters of the payload.
    #[must_use]
    pub const fn params(self, params: &'static [Param]) -> Self {
        Self { params, ..self }
    }

    /// What the app must provide.
    #[must_use]
    pub const fn injects(self, injects: &'static [Inject]) -> Self {
        Self { injects, ..self }
    }

    /// Marks a body that runs in a transaction with its own record.
    #[must_use]
    pub const fn transactional(self) -> Self {
        Self { transactional: true, ..self }
    }

    /// The queue.
    #[must_use]
    pub const fn queue(self, queue: &'static str) -> Self {
        Self { queue, ..self }
    }

    /// The priority: higher ones are claimed first.
    #[must_use]
    pub const fn priority(self, priority: i16) -> Self {
        Self { priority, ..self }
    }

    /// How many attempts may fail.
    #[must_use]
    pub const fn max_attempts(self, max_attempts: u32) -> Self {
        Self { max_attempts, ..self }
    }

    /// How long an attempt may take, in milliseconds.
    #[must_use]
    pub const fn timeout_ms(self, millis: u64) -> Self {
        Self { timeout: Some(Duration::from_millis(millis)), ..self }
    }

    /// The first delay before a retry and the largest one, in milliseconds.
    #[must_use]
    pub const fn backoff_ms(self, first: u64, cap: u64) -> Self {
        Self { backoff: Backoff::new(Duration::from_millis(first), Duration::from_millis(cap)), ..self }
    }

    /// How long a run may take from its start instant to its end, in milliseconds.
    #[must_use]
    pub const fn deadline_ms(self, millis: u64) -> Self {
        Self { deadline: Some(Duration::from_millis(millis)), ..self }
    }

    /// How long a try of the body may say nothing of its progress, in milliseconds.
    #[must_use]
    pub const fn heartbeat_ms(self, millis: u64) -> Self {
        Self { heartbeat: Some(Duration::from_millis(millis)), ..self }
    }

    /// The version of the code: runs are pinned to the one that they were enqueued with.
    #[must_use]
    pub const fn version(self, version: u32) -> Self {
        Self { version, ..self }
    }

    /// Earlier versions whose runs this code serves too.
    #[must_use]
    pub const fn accepts(self, versions: &'static [u32]) -> Self {
        Self { accepts: versions, ..self }
    }

    /// The name under which runs are stored.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// Where it is defined.
    #[must_use]
    pub const fn location(&self) -> Location {
        self.location
    }

    /// The parameters of its payload.
    #[must_use]
    pub const fn parameters(&self) -> &'static [Param] {
        self.params
    }

    /// Whether it is a job or a workflow.
    #[must_use]
    pub const fn kind(&self) -> Kind {
        self.kind
    }

    /// The version of its code, as the attribute says; 1 where it does not.
    #[must_use]
    pub const fn code_version(&self) -> u32 {
        self.version
    }

    /// The name under which its runs are stored: its own, behind which versions after the first stand as `@2`.
    #[must_use]
    pub fn stored_name(&self) -> Cow<'static, str> {
        stored_name(self.name, self.version)
    }

    /// What tells it from every other definition of the program.
    #[cfg(feature = "testing")]
    pub(crate) const fn code(&self) -> (&'static str, u32) {
        (self.name, self.version)
    }

    pub(crate) const fn retry_policy(&self) -> RetryPolicy {
        RetryPolicy { max_attempts: self.max_attempts, backoff: self.backoff }
    }
}

/// A definition that registers itself: what the macros submit to `inventory`.
#[derive(Debug)]
pub struct Registration(pub &'static Definition);

inventory::collect!(Registration);
