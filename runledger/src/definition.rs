//! Definitions of jobs and workflows: constants that the macros generate.

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
use crate::model::run::backoff::Backoff;
use crate::model::run::settle::RetryPolicy;
use crate::model::run::version::{FIRST, stored_name};

/// The future of one execution of a body.
pub type RunFuture = Pin<Box<dyn Future<Output = Finished> + Send>>;

/// Starts one execution of a body.
pub type RunFn = fn(Invocation) -> RunFuture;

/// The default queue of a job.
pub const DEFAULT_QUEUE: &str = "default";

/// The default number of attempts of a job.
pub const DEFAULT_MAX_ATTEMPTS: u32 = 5;

/// The default number of attempts of a workflow. Steps have retries of their own, so the body has
/// none.
pub const DEFAULT_WORKFLOW_ATTEMPTS: u32 = 1;

/// The kind of a definition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A `#[job]`: one step.
    Job,
    /// A `#[workflow]`: a body that consists of steps.
    Workflow,
}

/// The place in the source that defines a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Location {
    file: &'static str,
    line: u32,
    column: u32,
    module: &'static str,
}

impl Location {
    /// Creates a location from its parts.
    #[must_use]
    pub const fn new(file: &'static str, line: u32, column: u32, module: &'static str) -> Self {
        Self { file, line, column, module }
    }

    /// The module path.
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

/// A parameter of the payload.
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

    /// An `Option`: a missing value means `None`.
    #[must_use]
    pub const fn optional(name: &'static str) -> Self {
        Self { name, required: false }
    }

    /// A parameter with a default.
    #[must_use]
    pub const fn defaulted(name: &'static str) -> Self {
        Self { name, required: false }
    }

    /// The name of the parameter.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// Whether every payload must have the parameter.
    #[must_use]
    pub const fn is_required(&self) -> bool {
        self.required
    }
}

/// A type that a body requests from the app.
#[derive(Clone, Copy)]
pub struct Inject {
    id: fn() -> TypeId,
    name: fn() -> &'static str,
}

impl Inject {
    /// Requests the type `T`.
    #[must_use]
    pub const fn of<T: Injectable>() -> Self {
        Self { id: TypeId::of::<T>, name: std::any::type_name::<T> }
    }

    /// The id of the type.
    #[must_use]
    pub fn id(&self) -> TypeId {
        (self.id)()
    }

    /// The name of the type.
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

/// A job or workflow: its name, its options and its body.
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
    /// Creates a job with the default options.
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

    /// Creates a workflow with the default options.
    #[must_use]
    pub const fn workflow(name: &'static str, run: RunFn, location: Location) -> Self {
        let job = Self::job(name, run, location);
        Self { kind: Kind::Workflow, max_attempts: DEFAULT_WORKFLOW_ATTEMPTS, ..job }
    }

    /// Sets the earlier names, oldest first.
    ///
    /// Runs may still be queued under an earlier name. The first alias is part of the ids of runs
    /// with an idempotency key. So never reorder the aliases, and never remove the first one while
    /// callers may repeat a key.
    #[must_use]
    pub const fn aliases(self, aliases: &'static [&'static str]) -> Self {
        Self { aliases, ..self }
    }

    /// Sets the parameters of the payload.
    #[must_use]
    pub const fn params(self, params: &'static [Param]) -> Self {
        Self { params, ..self }
    }

    /// Sets the types that the app must provide.
    #[must_use]
    pub const fn injects(self, injects: &'static [Inject]) -> Self {
        Self { injects, ..self }
    }

    /// Marks a body that shares a transaction with its own record.
    #[must_use]
    pub const fn transactional(self) -> Self {
        Self { transactional: true, ..self }
    }

    /// Sets the queue.
    #[must_use]
    pub const fn queue(self, queue: &'static str) -> Self {
        Self { queue, ..self }
    }

    /// Sets the priority. Workers claim higher priorities first.
    #[must_use]
    pub const fn priority(self, priority: i16) -> Self {
        Self { priority, ..self }
    }

    /// Sets the maximum number of attempts.
    #[must_use]
    pub const fn max_attempts(self, max_attempts: u32) -> Self {
        Self { max_attempts, ..self }
    }

    /// Sets the timeout of an attempt, in milliseconds.
    #[must_use]
    pub const fn timeout_ms(self, millis: u64) -> Self {
        Self { timeout: Some(Duration::from_millis(millis)), ..self }
    }

    /// Sets the first and the largest retry delay, in milliseconds.
    #[must_use]
    pub const fn backoff_ms(self, first: u64, cap: u64) -> Self {
        Self { backoff: Backoff::new(Duration::from_millis(first), Duration::from_millis(cap)), ..self }
    }

    /// Sets the time from the start instant of a run to its end, in milliseconds.
    #[must_use]
    pub const fn deadline_ms(self, millis: u64) -> Self {
        Self { deadline: Some(Duration::from_millis(millis)), ..self }
    }

    /// Sets how long a body may execute without reporting progress, in milliseconds.
    #[must_use]
    pub const fn heartbeat_ms(self, millis: u64) -> Self {
        Self { heartbeat: Some(Duration::from_millis(millis)), ..self }
    }

    /// Sets the version of the code. A run is pinned to the version that enqueued it.
    #[must_use]
    pub const fn version(self, version: u32) -> Self {
        Self { version, ..self }
    }

    /// Sets the earlier versions whose runs this code also serves.
    #[must_use]
    pub const fn accepts(self, versions: &'static [u32]) -> Self {
        Self { accepts: versions, ..self }
    }

    /// The name of the job, without its version.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// The place in the source that defines the job.
    #[must_use]
    pub const fn location(&self) -> Location {
        self.location
    }

    /// The parameters of the payload.
    #[must_use]
    pub const fn parameters(&self) -> &'static [Param] {
        self.params
    }

    /// Whether this is a job or a workflow.
    #[must_use]
    pub const fn kind(&self) -> Kind {
        self.kind
    }

    /// The version of the code; 1 unless the attribute sets another.
    #[must_use]
    pub const fn code_version(&self) -> u32 {
        self.version
    }

    /// The name in the stored runs: the job's name, with a suffix such as `@2` for versions after
    /// the first.
    #[must_use]
    pub fn stored_name(&self) -> Cow<'static, str> {
        stored_name(self.name, self.version)
    }

    /// Identifies the definition within the program.
    #[cfg(feature = "testing")]
    pub(crate) const fn code(&self) -> (&'static str, u32) {
        (self.name, self.version)
    }

    pub(crate) const fn retry_policy(&self) -> RetryPolicy {
        RetryPolicy { max_attempts: self.max_attempts, backoff: self.backoff }
    }
}

/// A definition that registers itself. The macros submit it to `inventory`.
#[derive(Debug)]
pub struct Registration(pub &'static Definition);

inventory::collect!(Registration);
