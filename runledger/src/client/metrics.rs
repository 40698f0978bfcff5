//! How the jobs of a tenant, or of all, are doing.

use std::time::Duration;

use super::runs::TenantScope;
use crate::connection::client_error::ClientError;
use crate::connection::db::{Db, connection};
use crate::store::metrics::{self, Metrics};

/// How many runs of each kind are looked at: some hundred milliseconds.
const LOOK_AT: i64 = 100_000;

impl Db {
    /// How many runs there are of each tenant and job, in which states, for how long the first queued one has been due, and what has become of those that were created within this
    /// time: how many completed, failed, were cancelled and were tried more than once, and how long they waited and took.
    ///
    /// For alerts and charts, once in some seconds: costs one statement, which looks at all runs that have not ended and at those of the window, 100,000 of each kind and, for those
    /// of the window, of each tenant at most. A program that counts what its own workers do, without the database, observes them.
    ///
    /// # Errors
    /// A tenant that breaks the rule of names, or a failure of the database.
    pub async fn metrics(&self, scope: TenantScope, window: Duration) -> Result<Metrics, ClientError> {
        let tenants = scope.tenants()?;
        Ok(metrics::metrics(&mut *connection(self.pool()).await?, tenants, window, LOOK_AT).await?)
    }
}
