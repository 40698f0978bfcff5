//! What an operator configures of jobs without a deploy, and how their bodies read it.

use std::fmt;
use std::future::Future;
use std::time::SystemTime;

use serde::Serialize;
use uuid::Uuid;

use crate::client::tuning::{check_known, known_jobs};
use crate::connection::client_error::ClientError;
use crate::connection::db::{Db, connection, not_between_steps};
use crate::definition::call::is_workflow;
use crate::definition::job::Payload;
use crate::engine::context::Context;
use crate::model::json;
use crate::model::name::check_text;
use crate::model::payload::{PayloadKind, Place, Plain};
use crate::store::config::{self, StoredConfig};

/// The configuration of a job in one version of its form. Its `Debug` does not show what it says.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct JobConfig {
    /// The job, by the name under which it was configured.
    pub job: String,
    /// The version of the form.
    pub version: u32,
    /// What it says, as JSON text; as it is stored, where it is sealed and this program cannot open it.
    pub config: String,
    /// When it was stored last, by the database's clock.
    pub changed_at: SystemTime,
}

impl JobConfig {
    /// What it says, as a type of the program.
    ///
    /// # Errors
    /// [`ClientError::DecodeConfig`]: the type does not fit.
    pub fn value<T: Payload>(&self) -> Result<T, ClientError> {
        json::decode(&self.config).map_err(|source| ClientError::DecodeConfig {
            job: self.job.clone(),
            version: self.version,
            source,
        })
    }
}

impl fmt::Debug for JobConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JobConfig")
            .field("job", &self.job)
            .field("version", &self.version)
            .field("n_bytes", &self.config.len())
            .finish_non_exhaustive()
    }
}

impl Db {
    /// Stores a configuration that the bodies of a job read by [`Context::config`], in the place of the one before. Every worker has it from its next heartbeat on, and those that
    /// start later from their start; no deploy undoes it. Gives whether another one was stored before, or none: the same text again changes nothing.
    ///
    /// The version is that of its form, which the code counts by itself from 1, whatever the version of the job. Code that reads another form asks for another version, and
    /// both are stored side by side: while a deploy rolls out, the programs from before go on reading theirs.
    ///
    /// The job goes by any of its names, and all versions of its code are meant; a program knows those names that its own code has. It is sealed where this `Db` has a codec.
    /// It is a JSON object, of 256 KiB at most unless [`Limits::config`](crate::Limits::config) says otherwise.
    ///
    /// Costs two statements: what jobs are known, and what is stored.
    ///
    /// # Errors
    /// [`ClientError::UnknownJob`] where neither this program nor a living worker knows the job; [`ClientError::EncodeConfig`]; [`ClientError::Config`] where it is no object, or the
    /// version is 0 or beyond 2³¹ − 1; a failure of the database.
    ///
    /// # Cancel safety
    /// A dropped future may or may not have stored it. It can be repeated.
    pub fn configure<'a, T>(
        &'a self,
        job: &'a str,
        version: u32,
        config: &T,
    ) -> impl Future<Output = Result<bool, ClientError>> + Send + use<'a, T>
    where
        T: Serialize + ?Sized,
    {
        let plain = Plain::of(config);
        async move {
            let stored_version = i32::try_from(version).ok().filter(|version| *version > 0);
            let stored_version = stored_version.ok_or_else(|| no_version(job, version))?;
            let refused = |source| ClientError::EncodeConfig { job: job.to_owned(), version, source };
            let plain = plain.map_err(|error| refused(error.into()))?;
            if !plain.starts_with('{') {
                return Err(no_object(job));
            }
            let mut connection = connection(self.pool()).await?;
            check_known(job, &known_jobs(&mut connection).await?)?;
            let sealed = self.sealer().seal(&place_of(&key_of(job, version)), plain).map_err(refused)?;
            Ok(config::store(&mut connection, job, stored_version, &sealed).await?)
        }
    }

    /// Forgets a configuration: bodies that ask for this version are given none, from the next heartbeat of each worker on. False where none was stored under this name and version.
    ///
    /// # Errors
    /// The name contains a NUL character, or the database failed.
    pub async fn unconfigure(&self, job: &str, version: u32) -> Result<bool, ClientError> {
        check_text("job", job)?;
        let mut connection = connection(self.pool()).await?;
        match i32::try_from(version) {
            Ok(version) => Ok(config::forget(&mut connection, job, version).await?),
            Err(_) => Ok(false),
        }
    }

    /// The configurations that are stored, by job and version. One query.
    ///
    /// # Errors
    /// A failure of the database.
    pub async fn configs(&self) -> Result<Vec<JobConfig>, ClientError> {
        let stored = config::all(&mut *connection(self.pool()).await?).await?;
        let opened = |StoredConfig { job, version, config, changed_at }: StoredConfig| {
            let config = self.sealer().show(&place_of(&key_of(&job, version)), config);
            JobConfig { job, version, config, changed_at }
        };
        Ok(stored.into_iter().map(opened).collect())
    }
}

impl Context {
    /// What an operator has configured of the job of this body ([`Db::configure`]) in this version of its form; none where nothing is stored. As far as this worker has heard: at
    /// its start, and at its heartbeats since.
    ///
    /// A body is given the same from its begin to its end; another try of it, or another attempt, is given what holds then. Of a body that is a step it is the configuration of
    /// the job that is called, and not of the workflow.
    ///
    /// The code of a workflow may not ask between its steps, since a replay would be answered otherwise: let it call a job that does, or ask in an inline step, which is given
    /// what holds at that moment.
    ///
    /// Costs no statement. It is decoded at each call.
    ///
    /// # Errors
    /// [`ClientError::DecodeConfig`], with the path of what does not fit the type, and [`ClientError::UnreadableConfig`] where no codec opens it. Both are retried as the job's policy
    /// says, since an operator can mend them meanwhile. [`ClientError::BetweenSteps`], which is not.
    pub fn config<T: Payload>(&self, version: u32) -> Result<Option<T>, ClientError> {
        not_between_steps()?;
        let (attempt, definition) = (self.of_attempt(), self.definition());
        let latest;
        let configs = if is_workflow(definition) {
            latest = attempt.registry.configs();
            &latest
        } else {
            self.configs()
        };
        let Some((job, stored)) = configs.get(definition.names(), version) else { return Ok(None) };
        let job = || job.to_owned();
        let text = attempt
            .sealer()
            .open(&place_of(&key_of(&job(), version)), stored.clone())
            .map_err(|source| ClientError::UnreadableConfig { job: job(), version, source })?;
        let value = json::decode(&text);
        value.map(Some).map_err(|source| ClientError::DecodeConfig { job: job(), version, source })
    }
}

/// What tells a configuration from others in its [`Place`].
fn key_of(job: &str, version: u32) -> String {
    format!("{job}/{version}")
}

/// It belongs to no run.
fn place_of(key: &str) -> Place<'_> {
    Place::new(Uuid::nil(), PayloadKind::Config, key)
}

fn no_version(job: &str, version: u32) -> ClientError {
    ClientError::Config(format!(
        "a configuration of job `{job}` cannot have version {version}; nothing was written; count the versions of its form from 1 on"
    ))
}

fn no_object(job: &str) -> ClientError {
    ClientError::Config(format!(
        "the configuration of job `{job}` is not a JSON object, so nothing could be added to it later; nothing was written; give a struct with named fields, or a map"
    ))
}
