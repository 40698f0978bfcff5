//! Metrics of the jobs of one tenant or of all.

use std::time::Duration;

use crate::client::runs::TenantScope;
use crate::connection::client_error::ClientError;
use crate::connection::db::{Db, connection};
use crate::model::timestamp::FURTHEST;
use crate::store::operator::metrics::{self, Metrics};

/// How many runs of each kind the statement examines: some hundred milliseconds.
const LOOK_AT: i64 = 100_000;

impl Db {
    /// Returns counts of runs by tenant, job and state, and statistics of the runs created within
    /// `window`.
    ///
    /// For each tenant and job: how many runs are in each state, and how long the first queued run
    /// has been due. For the runs created within `window`: how many completed, failed, were
    /// cancelled or needed more than one attempt, and how long they waited and executed.
    ///
    /// Use it for alerts and charts, every few seconds. To count what your own workers do, without
    /// queries, use an observer. A window of more than 100 years counts as 100 years.
    ///
    /// # Errors
    /// An invalid tenant name, or a database error.
    ///
    /// # Cost
    /// One statement. It examines at most 100,000 runs of each kind: queued, claimed, waiting, and,
    /// per tenant, created within `window`.
    pub async fn metrics(&self, scope: TenantScope, window: Duration) -> Result<Metrics, ClientError> {
        let tenants = scope.tenants()?;
        Ok(metrics::metrics(&mut *connection(self.pool()).await?, tenants, window.min(FURTHEST), LOOK_AT)
            .await?)
    }
}
