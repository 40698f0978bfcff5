//! What an operator says of jobs without a deploy, which no deploy takes back.

use std::collections::BTreeSet;

use sqlx::PgConnection;

use crate::connection::client_error::ClientError;
use crate::connection::db::{Db, connection};
use crate::definition::registry;
use crate::model::name::{check_job_name, check_text, hint, is_reserved};
use crate::model::tuning::JobOverrides;
use crate::model::version::parts;
use crate::store::inspect::jobs_known;
use crate::store::tuning::{self, StoredOverrides};

/// What becomes of the tunings of jobs that a [synchronisation](Db::apply_overrides) does not name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncMode {
    /// They are forgotten: what is given is all that holds.
    Replace,
    /// They stay.
    Merge,
}

impl Db {
    /// Says of a job what holds in the place of its own definition, on every worker, from its next heartbeat on and in those that start later; what was said of it before is
    /// forgotten. It goes on until [`clear_overrides`](Self::clear_overrides): a deploy does not undo it. Attempts that run go on as they began.
    ///
    /// The job goes by any of its names, and all its versions are meant. What a call says of itself (`call.max_attempts(5)`) comes before it. A step that calls the job is
    /// tried as it says; a disabled job is not claimed as a run, and goes on to be a step.
    ///
    /// Costs two statements: what jobs are known, and what is said.
    ///
    /// # Errors
    /// [`ClientError::UnknownJob`] where neither this program nor a living worker knows the job; a failure of the database.
    ///
    /// # Cancel safety
    /// A dropped future may or may not have said it. It can be repeated.
    pub async fn set_overrides(&self, job: &str, tuning: JobOverrides) -> Result<(), ClientError> {
        self.apply_overrides([(job, tuning)], SyncMode::Merge).await.map(drop)
    }

    /// Says of several jobs at once what [`set_overrides`](Self::set_overrides) says of one, as from a file of settings, and gives how many jobs have another tuning than before: the same again
    /// changes nothing. In one statement: all of it or nothing.
    ///
    /// # Errors
    /// As [`set_overrides`](Self::set_overrides); a job that is named twice.
    pub async fn apply_overrides<N: Into<String>>(
        &self,
        tunings: impl IntoIterator<Item = (N, JobOverrides)>,
        mode: SyncMode,
    ) -> Result<u64, ClientError> {
        let tunings: Vec<(String, JobOverrides)> =
            tunings.into_iter().map(|(job, tuning)| (job.into(), tuning)).collect();
        let mut connection = connection(self.pool()).await?;
        let known = known_jobs(&mut connection).await?;
        let mut said = BTreeSet::new();
        for (job, _) in &tunings {
            check_known(job, &known)?;
            if !said.insert(job) {
                let message =
                    format!("the tunings name job `{job}` twice; nothing was written; say once what holds");
                return Err(ClientError::Config(message));
            }
        }
        Ok(tuning::say(&mut connection, &tunings, mode == SyncMode::Replace).await?)
    }

    /// Forgets what was said of a job: its own definition holds again, from the next heartbeat of each worker on. False where nothing was said of it under this name.
    ///
    /// # Errors
    /// The name contains a NUL character, or the database failed.
    pub async fn clear_overrides(&self, job: &str) -> Result<bool, ClientError> {
        check_text("job", job)?;
        Ok(tuning::forget(&mut *connection(self.pool()).await?, job).await?)
    }

    /// The jobs that somebody has tuned, by name. One query.
    ///
    /// # Errors
    /// A failure of the database.
    pub async fn tunings(&self) -> Result<Vec<StoredOverrides>, ClientError> {
        Ok(tuning::all(&mut *connection(self.pool()).await?).await?)
    }
}

/// The names of the jobs of this program and of the living workers, without those of the engine. One query.
pub(crate) async fn known_jobs(connection: &mut PgConnection) -> Result<BTreeSet<String>, sqlx::Error> {
    let of_workers = jobs_known(connection).await?;
    let ours = registry::registered().flat_map(|definition| definition.names().map(str::to_owned));
    let theirs = of_workers.iter().map(|stored| parts(stored).0.to_owned());
    Ok(ours.chain(theirs).filter(|name| !is_reserved(name)).collect())
}

/// Refuses what is the name of no job, with the one that may be meant.
pub(crate) fn check_known(job: &str, known: &BTreeSet<String>) -> Result<(), ClientError> {
    check_job_name(job)?;
    if known.contains(job) {
        return Ok(());
    }
    let hint = hint(job, known.iter().map(String::as_str));
    Err(ClientError::UnknownJob { name: job.to_owned(), hint })
}
