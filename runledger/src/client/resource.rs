//! Resources that runs need permits of, as operators see them.

use crate::connection::client_error::ClientError;
use crate::connection::db::{Db, connection};
use crate::model::name::{check_key, check_text};
use crate::store::resource::{self, Resource};

/// How many resources a page has at most.
const PAGE: i64 = 1_000;

impl Db {
    /// Says how many permits there are of a resource: of the runs that [need one](crate::Call::resource), so many are with workers at the same time. It holds for every worker at its
    /// next claim, and until somebody says otherwise: a deploy does not undo it. Gives what was said before.
    ///
    /// `0` lets no run start that needs one; `None` forgets what was said, which is as `1`. Attempts that have a permit keep it: where there are more of them than permits now, no
    /// run starts until enough of them have ended. One statement. A claim of runs that need a permit looks at each permit of the
    /// resource, so some thousands cost some milliseconds.
    ///
    /// # Errors
    /// A name that breaks the rule of keys; more permits than 10,000; a failure of the database.
    ///
    /// # Cancel safety
    /// A dropped future may or may not have said it. It can be repeated.
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

    /// The resources of which permits were said or taken, or that queued runs need, by name: at most 1,000, and the next ones `after` the last name. One query.
    ///
    /// # Errors
    /// The name contains a NUL character, or the database failed.
    pub async fn resources(&self, after: Option<&str>) -> Result<Vec<Resource>, ClientError> {
        let after = after.unwrap_or_default();
        check_text("resource", after)?;
        Ok(resource::page(&mut *connection(self.pool()).await?, after, PAGE).await?)
    }
}

/// The most permits of a resource.
const MOST: u32 = 10_000;
