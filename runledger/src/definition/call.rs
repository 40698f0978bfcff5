//! A call of a job as a value: its name, its encoded arguments and its options.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;
use std::time::{Duration, SystemTime};

use uuid::Uuid;

use super::job::Job;
use super::{Definition, Kind};
use crate::connection::client_error::ClientError;
use crate::model::json::{EncodeError, ErasedValue, encode};
use crate::model::payload::Plain;
use crate::model::run::name::{check_key, check_name};
use crate::model::run::request::{
    ActiveKey, MAX_METADATA, Metadata, RequestOptions, identity_said, keyed_run_id,
};
use crate::model::run::version::{FIRST, stored_name};
use crate::model::timestamp::{FURTHEST, Timestamp};
use crate::store::run::enqueue::NewRun;

/// A call of the job `J`, which the annotated function returns. It does nothing until you use it.
///
/// [`enqueue`](Self::enqueue) creates a separate run. In a workflow, `wf.run(call)` executes the
/// call as a step, and `wf.start(call)` starts a child run.
#[must_use = "a call does nothing until it is enqueued, or run by a workflow"]
pub struct Call<J> {
    pub(crate) request: Request,
    /// Distinguishes this step from other calls of the same job.
    pub(crate) key: Option<String>,
    marker: PhantomData<fn() -> J>,
}

/// A call without its type. [`enqueue_all`](crate::client::enqueue::enqueue_all) takes it, so one
/// batch can contain calls of several jobs.
#[must_use = "a call does nothing until it is enqueued"]
#[derive(Debug)]
pub struct AnyCall {
    pub(crate) request: Request,
}

/// The contents of a call.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) job: Cow<'static, str>,
    pub(crate) queue: Cow<'static, str>,
    pub(crate) priority: i16,
    pub(crate) input: Result<Plain, EncodeError>,
    pub(crate) options: RequestOptions,
    pub(crate) tenant: Option<String>,
    pub(crate) idempotency_key: Option<String>,
    pub(crate) active_key: Option<String>,
    /// The requested version of a call by name. A typed call has its version in its name.
    pub(crate) version: Option<u32>,
    /// The definition of the job. A call by name has `None` until the client looks the name up, and
    /// keeps `None` if this program does not have the code.
    pub(crate) definition: Option<&'static Definition>,
}

/// The options of typed and untyped calls. Each method changes `self.request`.
macro_rules! options {
    () => {
        /// Sets the idempotency key: at most one run exists per tenant, job and key. 1 to 256
        /// bytes.
        ///
        /// The same request again returns the same run. A different request under the same key is
        /// refused.
        ///
        /// A renamed job keeps its keys: they belong to its oldest name, which is the first of its
        /// `aliases` if it has any. If the program does not have the code of the job, the keys of a
        /// call by name belong to the name in the call.
        pub fn idempotency_key(mut self, key: impl Into<String>) -> Self {
            self.request.idempotency_key = Some(key.into());
            self
        }

        /// Sets the active key: at most one run per tenant, job and key is live. 1 to 256 bytes.
        ///
        /// While a run with this key is live, another enqueue is refused with
        /// [`ClientError::Active`], which names the live run. Finished runs do not matter. To make
        /// a repeated request safe, use an [`idempotency_key`](Self::idempotency_key). A call may
        /// have both keys: the same request again returns the existing run.
        ///
        /// A new run from `rerun`, `fork` or `revive` has the same active key, and the same check
        /// applies to it. A renamed job keeps its active keys, like its idempotency keys.
        ///
        /// # Cost
        /// One more statement, in one transaction with the enqueue. The statement waits for a
        /// transaction that is just giving the key to another run. Runs without an active key cost
        /// nothing.
        pub fn active_key(mut self, key: impl Into<String>) -> Self {
            self.request.active_key = Some(key.into());
            self
        }

        /// Requires a permit of a resource, such as `gpu` or `account 7`. 1 to 256 bytes.
        ///
        /// Across all jobs, queues and tenants, at most as many runs execute at once as the
        /// resource has permits. The default is one permit;
        /// [`Db::set_permits`](crate::Db::set_permits) changes it. The other runs stay queued, and
        /// use no attempt and no worker slot.
        ///
        /// An attempt holds its permit from claim to outcome. That includes a cancelled body that
        /// is still shutting down, and a run whose worker died but is not yet detected as dead. A
        /// run holds no permit between two attempts, or while a workflow waits without a worker.
        ///
        /// A worker that was paused for longer than its lease may still execute its old body after
        /// another run got the permit. If that must not happen, pass `context.idempotency_key()` to
        /// the resource.
        ///
        /// A step that runs inside its workflow cannot have a resource. Start it as a child
        /// instead: `wf.start(call.resource("gpu"))`.
        ///
        /// # Cost
        /// Nothing at the enqueue. Workers use a separate scan and a separate claim for runs with a
        /// resource. Other runs cost nothing.
        pub fn resource(mut self, name: impl Into<String>) -> Self {
            self.request.options.resource = Some(name.into());
            self
        }

        /// Attaches a metadata value to the run, which [`RunInfo`](crate::RunInfo) shows.
        ///
        /// Metadata is part of the request, and is never encrypted, even if payloads are. A name
        /// has 1 to 256 bytes. All names and values together have at most 16 KiB as JSON. The same
        /// name again replaces the value.
        pub fn metadata(mut self, name: impl Into<String>, value: impl Into<serde_json::Value>) -> Self {
            self.request.options.metadata.insert(name.into(), value.into());
            self
        }

        /// Sets the tenant: the organisation that the run belongs to. 1 to 256 bytes; the default
        /// is none.
        pub fn tenant(mut self, tenant: impl Into<String>) -> Self {
            self.request.tenant = Some(tenant.into());
            self
        }

        /// Replaces the queue of the job.
        pub fn queue(mut self, queue: impl Into<String>) -> Self {
            self.request.options.queue = Some(queue.into());
            self
        }

        /// Replaces the priority of the job. Workers claim higher priorities first; the default is
        /// 0.
        pub fn priority(mut self, priority: i16) -> Self {
            self.request.options.priority = Some(priority);
            self
        }

        /// Delays the start by `delay` after the enqueue, by the database's clock. At most 100
        /// years.
        pub fn delay(mut self, delay: Duration) -> Self {
            self.request.options.set_delay(delay);
            self
        }

        /// Delays the start until `instant`, by the database's clock. A past instant means now. At
        /// most 100 years ahead.
        pub fn start_at(mut self, instant: SystemTime) -> Self {
            self.request.options.set_start_at(instant);
            self
        }

        /// Replaces the number of attempts of the job. At least 1.
        pub fn max_attempts(mut self, attempts: u32) -> Self {
            self.request.options.set_max_attempts(attempts);
            self
        }

        /// Replaces the timeout of the job for one attempt.
        pub fn timeout(mut self, timeout: Duration) -> Self {
            self.request.options.set_timeout(timeout);
            self
        }

        /// Limits the time from the start instant of the run to its end. At most 100 years.
        ///
        /// The start instant is the enqueue, or the instant that `delay` or `start_at` sets. The
        /// time limit covers all attempts and all states: queued, sleeping, waiting, paused and
        /// running. The default is the `deadline` of the job, if the calling program has its code.
        ///
        /// When the deadline passes, a worker cancels the run and its descendants, with the
        /// deadline as the reason. An unclaimed run is cancelled by the next heartbeat of any
        /// worker, a running one at its next await. Without a live worker, nothing cancels the run.
        /// A new run from `rerun`, `fork` or `revive` has the same time from its own start.
        ///
        /// # Cost
        /// One more statement, in one transaction with the enqueue. Runs without a deadline cost
        /// nothing.
        pub fn deadline(mut self, deadline: Duration) -> Self {
            self.request.options.set_deadline(deadline);
            self
        }

        /// Replaces the retry delays of the job: the first and the largest.
        pub fn backoff(mut self, first: Duration, cap: Duration) -> Self {
            let millis = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
            self.request.options.backoff_ms = Some((millis(first), millis(cap)));
            self
        }
    };
}

impl<J: Job> Call<J> {
    /// Clones the call.
    #[cfg(feature = "testing")]
    pub(crate) fn again(&self) -> Self {
        Self { request: self.request.clone(), key: self.key.clone(), marker: PhantomData }
    }

    pub(crate) fn new(args: &[(&'static str, &dyn ErasedValue)]) -> Self {
        let definition = J::DEFINITION;
        let request = Request::of(definition, Plain::of_object(args));
        Self { request, key: None, marker: PhantomData }
    }

    /// Distinguishes this step from other calls of the same job: the step is `job[key]`. Calls
    /// without a key are counted: `job`, `job#2`.
    pub fn key(mut self, key: impl fmt::Display) -> Self {
        self.key = Some(key.to_string());
        self
    }

    options!();
}

impl AnyCall {
    /// Creates a call of a job by its name, for programs without its code. `input` is an object
    /// with the arguments by name.
    ///
    /// If this program has the code, the call uses the newest version, otherwise version 1. Set
    /// another with [`version`](Self::version).
    ///
    /// The enqueue checks the name against the jobs of this program and of the live workers. Queue
    /// and priority are those of the job if this program has its code, otherwise `default` and 0.
    ///
    /// An idempotency key belongs to the oldest name of the job. Without the code, it belongs to
    /// the name in the call. Use the oldest name if the key must match the keys of programs that
    /// have the code.
    pub fn by_name<T: serde::Serialize + ?Sized>(job: impl Into<String>, input: &T) -> Self {
        let request = Request {
            job: Cow::Owned(job.into()),
            queue: Cow::Borrowed(super::DEFAULT_QUEUE),
            priority: 0,
            input: Plain::of(input),
            options: RequestOptions::default(),
            tenant: None,
            idempotency_key: None,
            active_key: None,
            version: None,
            definition: None,
        };
        Self { request }
    }

    /// Sets the version of the code that the run is pinned to. Typed calls have the version of
    /// their function and ignore this value.
    pub fn version(mut self, version: u32) -> Self {
        self.request.version = Some(version.max(FIRST));
        self
    }

    options!();

    /// The same call as one of a job with the same output, for steps of the engine.
    pub(crate) fn typed<J>(self, key: String) -> Call<J> {
        Call { request: self.request, key: Some(key), marker: PhantomData }
    }
}

impl<J> From<Call<J>> for AnyCall {
    fn from(call: Call<J>) -> Self {
        Self { request: call.request }
    }
}

impl Request {
    pub(crate) fn of(definition: &'static Definition, input: Result<Plain, EncodeError>) -> Self {
        Self {
            job: definition.stored_name(),
            queue: Cow::Borrowed(definition.queue),
            priority: definition.priority,
            input,
            options: RequestOptions::default(),
            tenant: None,
            idempotency_key: None,
            active_key: None,
            version: None,
            definition: Some(definition),
        }
    }

    /// Adopts queue and priority from the job's definition, and the stored name, for a call by
    /// name.
    pub(crate) fn adopt(&mut self, definition: &'static Definition, stored: Cow<'static, str>) {
        self.definition = Some(definition);
        (self.queue, self.priority) = (Cow::Borrowed(definition.queue), definition.priority);
        self.job = stored;
    }

    /// The first option that is set and not in `known`.
    pub(crate) fn said_beyond(&self, known: &[&str]) -> Option<&'static str> {
        let of_options = self.options.first_difference_beyond(&RequestOptions::default(), known);
        of_options.or_else(|| self.identity_said())
    }

    /// The part of the run's identity that is set, if any.
    pub(crate) fn identity_said(&self) -> Option<&'static str> {
        identity_said(self.tenant.as_deref(), self.active_key.as_deref(), self.idempotency_key.as_deref())
    }

    /// The oldest name of the job that this program knows.
    pub(crate) fn oldest_name(&self) -> &str {
        self.definition.map_or(&*self.job, |definition| definition.oldest_name())
    }

    /// Checks the request and returns the run to write.
    pub(crate) fn into_new_run(self) -> Result<NewRun<Plain>, ClientError> {
        let queue = match &self.options.queue {
            Some(queue) => queue.clone(),
            None => self.queue.as_ref().to_owned(),
        };
        let name = self.definition.map_or(&*self.job, |definition| definition.name);
        check_name("job", name)?;
        check_name("queue", &queue)?;
        if let Some(tenant) = &self.tenant {
            check_key("tenant", tenant)?;
        }
        let tenant = self.tenant.clone().unwrap_or_default();
        let run_id = match &self.idempotency_key {
            None => Uuid::now_v7(),
            Some(key) => {
                check_key("idempotency key", key)?;
                keyed_run_id(&tenant, self.oldest_name(), key)
            }
        };
        let active_key =
            self.active_key.as_ref().map(|key| active_key(self.oldest_name(), key)).transpose()?;
        let mut options = RequestOptions { active_key, ..self.options };
        if options.deadline_ms.is_none()
            && let Some(deadline) = self.definition.and_then(|definition| definition.deadline)
        {
            options.deadline_ms = Some(u64::try_from(deadline.as_millis()).unwrap_or(u64::MAX));
            options.is_own_deadline = true;
        }
        let job = match self.definition {
            Some(_) => self.job.into_owned(),
            None => stored_name(&self.job, self.version.unwrap_or(FIRST)).into_owned(),
        };
        check_metadata(&options.metadata)?;
        if let Some(resource) = &options.resource {
            check_key("resource", resource)?;
        }
        if let Some(option) = too_far_ahead(&options) {
            return Err(ClientError::TooFarAhead { job, option });
        }
        let input =
            self.input.map_err(|source| ClientError::Encode { job: job.clone(), source: source.into() })?;
        Ok(NewRun {
            run_id,
            job,
            tenant,
            queue,
            priority: options.priority.unwrap_or(self.priority),
            input,
            options,
            idempotency_key: self.idempotency_key,
        })
    }
}

/// The active key of a run of this job or graph.
///
/// # Errors
/// [`ClientError::Name`].
pub(crate) fn active_key(job: &str, key: &str) -> Result<ActiveKey, ClientError> {
    check_key("active key", key)?;
    Ok(ActiveKey { job: job.to_owned(), key: key.to_owned() })
}

/// Checks the metadata of a run or graph.
///
/// # Errors
/// [`ClientError::Name`], or [`ClientError::Config`] if a value cannot be stored or the metadata is
/// too large.
pub(crate) fn check_metadata(metadata: &Metadata) -> Result<(), ClientError> {
    for (name, value) in metadata {
        check_key("name of metadata", name)?;
        if let Err(error) = encode(value) {
            let message = format!("the metadata `{name}` cannot be stored: {error}; nothing was written");
            return Err(ClientError::Config(message));
        }
    }
    let n_bytes =
        if metadata.is_empty() { 0 } else { serde_json::to_string(metadata).map_or(0, |text| text.len()) };
    if n_bytes > MAX_METADATA {
        let message = format!(
            "the metadata has {n_bytes} bytes as JSON, and {MAX_METADATA} is the limit; keep what is larger in the input or in a table of yours"
        );
        return Err(ClientError::Config(message));
    }
    Ok(())
}

/// The option that starts the run too far ahead. The limit is far beyond any plan, and well within
/// the range of the database.
fn too_far_ahead(options: &RequestOptions) -> Option<&'static str> {
    let now = Timestamp::from(SystemTime::now());
    let is_far = |micros: i64| Duration::from_micros(u64::try_from(micros).unwrap_or(0)) > FURTHEST;
    [
        ("delay", options.delay_us),
        ("start_at", options.start_at_us.map(|at| at.saturating_sub(now.unix_micros()))),
    ]
    .into_iter()
    .find_map(|(option, ahead)| ahead.is_some_and(is_far).then_some(option))
}

impl<J> fmt::Debug for Call<J> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Omits the input: payloads stay out of logs.
        f.debug_struct("Call").field("job", &self.request.job).field("key", &self.key).finish_non_exhaustive()
    }
}

pub(crate) fn is_workflow(definition: &Definition) -> bool {
    definition.kind == Kind::Workflow
}
