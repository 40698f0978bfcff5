//! A call of a job: its name, its encoded arguments and its options, as a value.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;
use std::time::{Duration, SystemTime};

use uuid::Uuid;

use super::job::Job;
use super::{Definition, Kind};
use crate::connection::client_error::ClientError;
use crate::model::json::{EncodeError, ErasedValue, encode};
use crate::model::name::{check_key, check_name};
use crate::model::payload::Plain;
use crate::model::request::{ActiveKey, MAX_METADATA, Metadata, RequestOptions, identity_said, keyed_run_id};
use crate::model::timestamp::{FURTHEST, Timestamp};
use crate::model::version::{FIRST, stored_name};
use crate::store::enqueue::NewRun;

/// A call of the job `J`: what the annotated function returns. It does nothing by itself.
///
/// [`enqueue`](Self::enqueue) makes it a run of its own; `wf.run(call)` makes it a step of a workflow, `wf.start(call)` a child run.
#[must_use = "a call does nothing until it is enqueued, or run by a workflow"]
pub struct Call<J> {
    pub(crate) request: Request,
    /// What tells this call of a step from others of the same job.
    pub(crate) key: Option<String>,
    marker: PhantomData<fn() -> J>,
}

/// A call without its type: what [`enqueue_all`](crate::client::enqueue::enqueue_all) takes, so that one batch may hold calls of several jobs.
#[must_use = "a call does nothing until it is enqueued"]
#[derive(Debug)]
pub struct AnyCall {
    pub(crate) request: Request,
}

/// What is asked for.
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
    /// The version that a call by name asks for. The name of a typed call has its version.
    pub(crate) version: Option<u32>,
    /// What the name came from. A call by name has none until it is looked up, and none at all where this program does not have the code.
    pub(crate) definition: Option<&'static Definition>,
}

/// The options that a typed call and an untyped one have in common: each changes `self.request`.
macro_rules! options {
    () => {
        /// At most one run of this job, tenant and key exists. The same request again gives the same run; another request under the same key is
        /// refused. 1 to 256 bytes.
        ///
        /// A job that was renamed keeps its keys: the oldest of its names counts, which is the first of its `aliases` where it has some. A call by name
        /// in a program without the code of the job counts under the name that it gives.
        pub fn idempotency_key(mut self, key: impl Into<String>) -> Self {
            self.request.idempotency_key = Some(key.into());
            self
        }

        /// At most one run of this job, tenant and key goes on: while there is one that has not ended, another is refused with
        /// [`ClientError::Active`], which names it. 1 to 256 bytes.
        ///
        /// It says nothing of runs that have ended; an [`idempotency_key`](Self::idempotency_key) is for the same request, sent again. A call may have both: the same
        /// request again gives the run that is there. A run that is made of this one by `rerun`, `fork` or `revive` has the key too, and is refused like any other.
        /// A job that was renamed keeps its keys, as those.
        ///
        /// Costs one statement at the enqueue, in a transaction of its own with that, which waits for one that has just given the key to another run; other runs
        /// cost nothing.
        pub fn active_key(mut self, key: impl Into<String>) -> Self {
            self.request.active_key = Some(key.into());
            self
        }

        /// The run needs a permit of this resource while a worker has it: of the runs that need one, in whatever job, queue and tenant, at most as many are with workers
        /// at the same time as the resource has permits. One, unless [`Db::set_permits`](crate::Db::set_permits) says otherwise. The others stay in their queues, and cost
        /// no attempt and no slot meanwhile. 1 to 256 bytes, such as `gpu` or `account 7`.
        ///
        /// A permit belongs to an attempt: it is held from the claim until the attempt has ended, also one that is cancelled and takes its time, or whose process was killed and has
        /// not been found out yet. Between two attempts, and while a workflow waits without a worker, others may have it. A worker that was stopped for longer than its
        /// lease may still be in the body when another has the permit: who must exclude that passes `context.idempotency_key()` on.
        ///
        /// Costs nothing at the enqueue, and a look and a claim of their own for such runs; others cost nothing. A step that runs in its workflow cannot have one: start it
        /// as a run of its own (`wf.start`).
        pub fn resource(mut self, name: impl Into<String>) -> Self {
            self.request.options.resource = Some(name.into());
            self
        }

        /// Says something of the run for whoever looks at it: its [`RunInfo`](crate::RunInfo) has it. It is part of the request, and in clear text also where payloads are sealed. Names of
        /// 1 to 256 bytes, and 16 KiB of JSON text with all values; the same name again replaces the value.
        pub fn metadata(mut self, name: impl Into<String>, value: impl Into<serde_json::Value>) -> Self {
            self.request.options.metadata.insert(name.into(), value.into());
            self
        }

        /// The organisation that the run belongs to. 1 to 256 bytes; none by default.
        pub fn tenant(mut self, tenant: impl Into<String>) -> Self {
            self.request.tenant = Some(tenant.into());
            self
        }

        /// Another queue than the job's own.
        pub fn queue(mut self, queue: impl Into<String>) -> Self {
            self.request.options.queue = Some(queue.into());
            self
        }

        /// Another priority than the job's own. Higher ones are claimed first; the default is 0.
        pub fn priority(mut self, priority: i16) -> Self {
            self.request.options.priority = Some(priority);
            self
        }

        /// Starts no earlier than `delay` after the enqueue, by the database's clock. At most 100 years.
        pub fn delay(mut self, delay: Duration) -> Self {
            self.request.options.set_delay(delay);
            self
        }

        /// Starts no earlier than this instant, by the database's clock: at once where it has passed. At most 100 years ahead.
        pub fn start_at(mut self, instant: SystemTime) -> Self {
            self.request.options.set_start_at(instant);
            self
        }

        /// Another number of attempts than the job's own; at least 1.
        pub fn max_attempts(mut self, attempts: u32) -> Self {
            self.request.options.set_max_attempts(attempts);
            self
        }

        /// Another time limit for one attempt than the job's own.
        pub fn timeout(mut self, timeout: Duration) -> Self {
            self.request.options.set_timeout(timeout);
            self
        }

        /// The run must end within this time of its start instant (the enqueue, or what `delay` or `start_at` say), whatever it does then: queued, asleep,
        /// waiting, paused, running, and over all its attempts. At most 100 years; the default is the `deadline` of the job, where the calling program has
        /// its code and it has one.
        ///
        /// Afterwards it is cancelled, with that as the reason, and with it what it has started: a run that no worker holds by the next heartbeat of any
        /// worker, a running one at its next await. Where no worker lives, nobody does it. A run that is made of this one by `rerun`, `fork` or
        /// `revive` has as long from its own start.
        ///
        /// Costs one statement at the enqueue, in a transaction of its own with that; runs without a deadline cost nothing.
        pub fn deadline(mut self, deadline: Duration) -> Self {
            self.request.options.set_deadline(deadline);
            self
        }

        /// Other delays between attempts than the job's own: the first, and the largest.
        pub fn backoff(mut self, first: Duration, cap: Duration) -> Self {
            let millis = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
            self.request.options.backoff_ms = Some((millis(first), millis(cap)));
            self
        }
    };
}

impl<J: Job> Call<J> {
    /// The same call once more.
    #[cfg(feature = "testing")]
    pub(crate) fn again(&self) -> Self {
        Self { request: self.request.clone(), key: self.key.clone(), marker: PhantomData }
    }

    pub(crate) fn new(args: &[(&'static str, &dyn ErasedValue)]) -> Self {
        let definition = J::DEFINITION;
        let request = Request::of(definition, Plain::of_object(args));
        Self { request, key: None, marker: PhantomData }
    }

    /// Tells this call of a step from others of the same job: its step is `job[key]`. Without a key, calls are counted: `job`, `job#2`.
    pub fn key(mut self, key: impl fmt::Display) -> Self {
        self.key = Some(key.to_string());
        self
    }

    options!();
}

impl AnyCall {
    /// A call of a job by its name alone, for programs that do not have its code. `input` is the object of its arguments by name.
    ///
    /// Where this program has the code it is the newest version of that, otherwise the first: [`version`](Self::version) asks for another.
    ///
    /// The name is checked against the jobs of this program and of the living workers when it is enqueued. Queue and priority are the job's own where
    /// this program has its code, otherwise `default` and 0. An idempotency key belongs to the job's oldest name; without the code, to the name given
    /// here, so give the oldest one where the key should meet those of programs that have the code.
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

    /// The version of the code that the run is pinned to, where the job is named by hand. That of a typed call is the one of its function, whatever is said
    /// here.
    pub fn version(mut self, version: u32) -> Self {
        self.request.version = Some(version.max(FIRST));
        self
    }

    options!();

    /// The same call as one of a job that gives the same, for steps of the engine.
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

    /// Takes queue and priority from the job's definition, for a call that was made by name, and the name under which its runs are stored.
    pub(crate) fn adopt(&mut self, definition: &'static Definition, stored: Cow<'static, str>) {
        self.definition = Some(definition);
        (self.queue, self.priority) = (Cow::Borrowed(definition.queue), definition.priority);
        self.job = stored;
    }

    /// The first option that was said and is not one of these.
    pub(crate) fn said_beyond(&self, known: &[&str]) -> Option<&'static str> {
        let of_options = self.options.first_difference_beyond(&RequestOptions::default(), known);
        of_options.or_else(|| self.identity_said())
    }

    /// The part of a run's identity that was said, if one was.
    pub(crate) fn identity_said(&self) -> Option<&'static str> {
        identity_said(self.tenant.as_deref(), self.active_key.as_deref(), self.idempotency_key.as_deref())
    }

    /// The name that its job had first, as far as this program knows it.
    pub(crate) fn oldest_name(&self) -> &str {
        self.definition.map_or(&*self.job, |definition| definition.oldest_name())
    }

    /// Checks everything and gives the run to be written.
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

/// The key of a run of this job, or graph, while it goes on.
///
/// # Errors
/// [`ClientError::Name`].
pub(crate) fn active_key(job: &str, key: &str) -> Result<ActiveKey, ClientError> {
    check_key("active key", key)?;
    Ok(ActiveKey { job: job.to_owned(), key: key.to_owned() })
}

/// Checks what is said of a run, or graph.
///
/// # Errors
/// [`ClientError::Name`], or the call cannot be stored, or it is too large.
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

/// The option that puts the start further ahead than any plan reaches, and than the database's own range before long.
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
        // Not the input: payloads stay out of logs.
        f.debug_struct("Call").field("job", &self.request.job).field("key", &self.key).finish_non_exhaustive()
    }
}

/// Whether a definition is a workflow.
pub(crate) fn is_workflow(definition: &Definition) -> bool {
    definition.kind == Kind::Workflow
}
