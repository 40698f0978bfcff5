//! Overrides of jobs: operators set them without a deploy, and no deploy clears them.

use std::collections::BTreeSet;

use sqlx::PgConnection;

use crate::connection::client_error::ClientError;
use crate::connection::db::{Db, connection};
use crate::definition::registry;
use crate::model::run::name::{check_job_name, check_text, hint, is_reserved};
use crate::model::run::overrides::JobOverrides;
use crate::model::run::version::parts;
use crate::store::operator::overrides::{self, StoredOverrides};
use crate::store::run::inspect::jobs_known;

/// What [`Db::apply_overrides`] does with the overrides of jobs that it does not name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncMode {
    /// Clears them: only the given overrides remain.
    Replace,
    /// Keeps them.
    Merge,
}

impl Db {
    /// Overrides the definition of a job on every worker, until you clear the override.
    ///
    /// Running workers apply it from their next heartbeat; new workers from their start. It
    /// replaces the previous override of the job and survives deploys. End it with
    /// [`clear_overrides`](Self::clear_overrides). Running attempts keep the values they started
    /// with.
    ///
    /// - The job can have any of its names. The override applies to all its versions.
    /// - An option of a call (`call.max_attempts(5)`) takes precedence over the override.
    /// - A step that calls the job uses the override too.
    /// - Workers do not claim runs of a disabled job. The job still executes as a step.
    ///
    /// # Errors
    /// [`ClientError::UnknownJob`] if neither this program nor a live worker knows the job, or a
    /// database error.
    ///
    /// # Cost
    /// Two statements: one reads the known jobs, one stores the override.
    ///
    /// # Cancel safety
    /// Not cancel safe: a dropped call may still set the override. Repeating it is safe.
    pub async fn set_overrides(&self, job: &str, overrides: JobOverrides) -> Result<(), ClientError> {
        self.apply_overrides([(job, overrides)], SyncMode::Merge).await.map(drop)
    }

    /// Sets the overrides of several jobs at once, for example from a settings file.
    ///
    /// Each works as [`set_overrides`](Self::set_overrides) describes. One statement stores all of
    /// them or none. Returns how many jobs have another override than before. The same call again
    /// changes nothing.
    ///
    /// # Errors
    /// As for [`set_overrides`](Self::set_overrides), and [`ClientError::Config`] if a job is named
    /// twice.
    pub async fn apply_overrides<N: Into<String>>(
        &self,
        overrides: impl IntoIterator<Item = (N, JobOverrides)>,
        mode: SyncMode,
    ) -> Result<u64, ClientError> {
        let overrides: Vec<(String, JobOverrides)> =
            overrides.into_iter().map(|(job, overrides)| (job.into(), overrides)).collect();
        let mut connection = connection(self.pool()).await?;
        let known = known_jobs(&mut connection).await?;
        let mut said = BTreeSet::new();
        for (job, _) in &overrides {
            check_known(job, &known)?;
            if !said.insert(job) {
                let message =
                    format!("the overrides name job `{job}` twice; nothing was written; say once what holds");
                return Err(ClientError::Config(message));
            }
        }
        Ok(overrides::say(&mut connection, &overrides, mode == SyncMode::Replace).await?)
    }

    /// Clears the override of a job.
    ///
    /// Each worker uses the job's own definition again from its next heartbeat. Returns false if no
    /// override was stored under this name.
    ///
    /// # Errors
    /// The name contains a NUL character, or the database failed.
    pub async fn clear_overrides(&self, job: &str) -> Result<bool, ClientError> {
        check_text("job", job)?;
        Ok(overrides::forget(&mut *connection(self.pool()).await?, job).await?)
    }

    /// Returns the stored overrides, by job name. One query.
    ///
    /// # Errors
    /// A database error.
    pub async fn overrides(&self) -> Result<Vec<StoredOverrides>, ClientError> {
        Ok(overrides::all(&mut *connection(self.pool()).await?).await?)
    }
}

/// Returns the names of the jobs of this program and of the live workers, without built-in jobs.
/// One query.
pub(crate) async fn known_jobs(connection: &mut PgConnection) -> Result<BTreeSet<String>, sqlx::Error> {
    let of_workers = jobs_known(connection).await?;
    let ours = registry::registered().flat_map(|definition| definition.names().map(str::to_owned));
    let theirs = of_workers.iter().map(|stored| parts(stored).0.to_owned());
    Ok(ours.chain(theirs).filter(|name| !is_reserved(name)).collect())
}

/// Refuses an unknown job name. The error suggests the nearest known name.
pub(crate) fn check_known(job: &str, known: &BTreeSet<String>) -> Result<(), ClientError> {
    check_job_name(job)?;
    if known.contains(job) {
        return Ok(());
    }
    let hint = hint(job, known.iter().map(String::as_str));
    Err(ClientError::UnknownJob { name: job.to_owned(), hint })
}
