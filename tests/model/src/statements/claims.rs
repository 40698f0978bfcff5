//! The statements that enqueue and claim runs.

use sqlx::{PgConnection, Row};
use uuid::Uuid;

use super::{Claimed, Result, Statements, Submission, claimed};

impl Statements {
    /// Enqueues one run without a delay.
    pub async fn enqueue(&self, db: &mut PgConnection, run_id: Uuid, job: &str) -> Result<Submission> {
        self.enqueue_with(db, run_id, job, None).await
    }

    /// Enqueues one run with an active key, which [`activate`](Self::activate) gives it.
    pub async fn enqueue_active(&self, db: &mut PgConnection, run_id: Uuid, job: &str) -> Result<Submission> {
        let options = format!(r#"{{"active_key":{{"job":"{job}","key":"key"}}}}"#);
        self.enqueue_with(db, run_id, job, Some(options)).await
    }

    /// Gives a run its active key. Returns false if another run has the key.
    pub async fn activate(&self, db: &mut PgConnection, run_id: Uuid) -> Result<bool> {
        let row = self.query("activate").bind(vec![run_id]).fetch_one(db).await?;
        Ok(row.try_get::<Vec<Uuid>, _>("refused")?.is_empty())
    }

    async fn enqueue_with(
        &self,
        db: &mut PgConnection,
        run_id: Uuid,
        job: &str,
        options: Option<String>,
    ) -> Result<Submission> {
        let query = self
            .query("enqueue")
            .bind(vec![run_id])
            .bind(vec![job.to_owned()])
            .bind(vec![String::new()])
            .bind(vec!["default"])
            .bind(vec![0_i16])
            .bind(vec!["{}"])
            .bind(vec![options])
            .bind(vec![Some("key")])
            .bind(vec![0_i64])
            .bind(vec![None::<String>]);
        let created: Vec<Uuid> = query.fetch_one(db).await?.try_get("created")?;
        Ok(if created.is_empty() { Submission::Existing } else { Submission::Created })
    }

    /// Claims up to `limit` due runs of a job.
    pub async fn claim(
        &self,
        db: &mut PgConnection,
        worker_id: i64,
        token: Uuid,
        limit: i64,
        job: &str,
    ) -> Result<Vec<Claimed>> {
        let query = self.query("claim").bind(worker_id).bind(token).bind(limit);
        let query = query.bind(vec!["default"]).bind(vec![job.to_owned()]).bind(vec![0_i16]);
        let rows = query.bind(vec!["-infinity"]).bind(vec![Uuid::nil()]).fetch_all(db).await?;
        rows.iter().map(claimed).collect()
    }

    /// Enqueues one run that needs a permit of a resource with the name of its job.
    pub async fn enqueue_wanting(
        &self,
        db: &mut PgConnection,
        run_id: Uuid,
        job: &str,
    ) -> Result<Submission> {
        self.enqueue_with(db, run_id, job, Some(format!(r#"{{"resource":"{job}"}}"#))).await
    }

    /// Claims one due run of a job that needs a permit of that resource, if a permit is free.
    pub async fn claim_with_permit(
        &self,
        db: &mut PgConnection,
        worker_id: i64,
        token: Uuid,
        job: &str,
    ) -> Result<Vec<Claimed>> {
        let query = self.query("claim_with_permit").bind(worker_id).bind(token).bind(1_i64);
        let query = query.bind(vec![job.to_owned()]).bind(vec!["default"]).bind(vec![job.to_owned()]);
        let query = query.bind(vec![0_i16]).bind(vec!["-infinity"]).bind(vec![Uuid::nil()]);
        query.fetch_all(db).await?.iter().map(claimed).collect()
    }
}
