//! Operator access to resources and their permits.

use crate::connection::client_error::ClientError;
use crate::connection::db::{Db, connection};
use crate::model::run::name::{check_key, check_text};
use crate::store::operator::resource::{self, Resource};

/// The maximum number of resources on a page.
const PAGE: i64 = 1_000;

impl Db {
    /// Sets the number of permits of a resource: the maximum number of concurrent attempts that use
    /// it.
    ///
    /// It limits the runs whose calls name [the resource](crate::Call::resource). Every worker
    /// applies it at its next claim. It survives deploys and lasts until you change it. Returns the
    /// previous setting.
    ///
    /// | `permits` | effect |
    /// |---|---|
    /// | `0` | no run that uses the resource starts |
    /// | `None` | removes the setting; the default is `1` |
    ///
    /// Attempts that hold a permit keep it. If more attempts hold permits than are now allowed, no
    /// run starts until enough of them have ended.
    ///
    /// # Errors
    /// An invalid resource name, more than 10,000 permits, or a database error.
    ///
    /// # Cost
    /// One statement. A claim of runs that use the resource reads each of its permits, so a few
    /// thousand permits cost a few milliseconds.
    ///
    /// # Cancel safety
    /// Not cancel safe: a dropped call may still change the setting. Repeating it is safe.
    pub async fn set_permits(
        &self,
        resource: &str,
        permits: impl Into<Option<u32>>,
    ) -> Result<Option<u32>, ClientError> {
        check_key("resource", resource)?;
        let permits = permits.into();
        if let Some(permits) = permits.filter(|permits| *permits > MOST) {
            let message = format!(
                "resource `{resource}` cannot have {permits} permits: at most {MOST}; leave the resource out of calls that need no limit"
            );
            return Err(ClientError::Config(message));
        }
        Ok(resource::set_permits(&mut *connection(self.pool()).await?, resource, permits).await?)
    }

    /// Returns the resources, by name: at most 1,000, starting after the name `after`. One query.
    ///
    /// It lists resources whose permits were set or ever taken, and resources that queued runs
    /// need.
    ///
    /// # Errors
    /// The name contains a NUL character, or the database failed.
    pub async fn resources(&self, after: Option<&str>) -> Result<Vec<Resource>, ClientError> {
        let after = after.unwrap_or_default();
        check_text("resource", after)?;
        Ok(resource::page(&mut *connection(self.pool()).await?, after, PAGE).await?)
    }
}

/// The maximum number of permits of a resource.
const MOST: u32 = 10_000;
