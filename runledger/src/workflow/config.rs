//! Configurations of jobs: operators set them without a deploy, and bodies read them.

use std::fmt;
use std::future::Future;
use std::time::SystemTime;

use serde::Serialize;
use uuid::Uuid;

use crate::client::operate::overrides::{check_known, known_jobs};
use crate::connection::client_error::ClientError;
use crate::connection::db::{Db, connection, not_between_steps};
use crate::definition::call::is_workflow;
use crate::definition::job::Payload;
use crate::engine::attempt::context::Context;
use crate::model::json;
use crate::model::payload::{PayloadKind, Place, Plain};
use crate::model::run::name::check_text;
use crate::store::operator::config::{self, StoredConfig};

/// The configuration of a job in one version of its format. `Debug` does not show its content.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct JobConfig {
    /// The job, under the name used to configure it.
    pub job: String,
    /// The version of the format.
    pub version: u32,
    /// The content as JSON text. If it is sealed and this program cannot open it, the stored form.
    pub config: String,
    /// When it was last stored, by the database's clock.
    pub changed_at: SystemTime,
}

impl JobConfig {
    /// Decodes the content.
    ///
    /// # Errors
    /// [`ClientError::DecodeConfig`] if the type does not fit.
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
    /// Stores a configuration that the bodies of a job read by [`Context::config`].
    ///
    /// It replaces the previous one. Running workers receive it at their next heartbeat, new
    /// workers at their start. It survives deploys. Returns whether the stored configuration
    /// changed: storing the same text again returns false.
    ///
    /// - `version` is the version of the format, not of the job. The code counts it from 1. Code
    ///   that reads another format uses another version. Both versions stay stored, so during a
    ///   rolling deploy old programs keep reading theirs.
    /// - The job can have any of its names. The configuration applies to all versions of its code.
    ///   A program knows only the names in its own code.
    /// - If this `Db` has a codec, the configuration is sealed.
    /// - It must be a JSON object of at most 256 KiB; [`Limits::config`](crate::Limits::config)
    ///   changes this limit.
    ///
    /// # Errors
    /// [`ClientError::UnknownJob`] if neither this program nor a live worker knows the job;
    /// [`ClientError::EncodeConfig`]; [`ClientError::Config`] if the value is not an object, or the
    /// version is 0 or above 2³¹ − 1; or a database error.
    ///
    /// # Cost
    /// Two statements: one reads the known jobs, one stores the configuration.
    ///
    /// # Cancel safety
    /// Not cancel safe: a dropped call may still store the configuration. Repeating it is safe.
    pub fn set_job_config<'a, T>(
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

    /// Deletes a configuration.
    ///
    /// Bodies that ask for this version receive `None` from the next heartbeat of their worker.
    /// Returns false if none was stored under this name and version.
    ///
    /// # Errors
    /// The name contains a NUL character, or the database failed.
    pub async fn delete_job_config(&self, job: &str, version: u32) -> Result<bool, ClientError> {
        check_text("job", job)?;
        let mut connection = connection(self.pool()).await?;
        match i32::try_from(version) {
            Ok(version) => Ok(config::forget(&mut connection, job, version).await?),
            Err(_) => Ok(false),
        }
    }

    /// Returns the stored configurations, by job and version. One query.
    ///
    /// # Errors
    /// A database error.
    pub async fn job_configs(&self) -> Result<Vec<JobConfig>, ClientError> {
        let stored = config::all(&mut *connection(self.pool()).await?).await?;
        let opened = |StoredConfig { job, version, config, changed_at }: StoredConfig| {
            let config = self.sealer().show(&place_of(&key_of(&job, version)), config);
            JobConfig { job, version, config, changed_at }
        };
        Ok(stored.into_iter().map(opened).collect())
    }
}

impl Context {
    /// Returns the configuration that an operator stored for this body's job by
    /// [`Db::set_job_config`].
    ///
    /// `version` is the version of the format. `None` if no configuration is stored. The worker
    /// reads configurations at its start and at each heartbeat, so the value may be that old. No
    /// statement; the value is decoded at each call.
    ///
    /// - One try of a body always receives the same value. The next try or attempt receives the
    ///   value that is current then.
    /// - In a step, it is the configuration of the called job, not of the workflow.
    /// - Workflow code between steps cannot call this, because a replay could receive another
    ///   value. Call a job that reads it, or read it in an inline step. An inline step receives the
    ///   value that is current at the call.
    ///
    /// # Errors
    /// [`ClientError::DecodeConfig`], with the path of the value that does not fit the type, and
    /// [`ClientError::UnreadableConfig`] if no codec opens it. The job's policy retries both,
    /// because an operator may fix them in the meantime. [`ClientError::BetweenSteps`], which is
    /// not retried.
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

/// Identifies a configuration in its [`Place`].
fn key_of(job: &str, version: u32) -> String {
    format!("{job}/{version}")
}

/// A configuration belongs to no run.
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
