//! Reads the time limits and rights of a session, after the transaction of a body failed to commit.

use std::time::Duration;

use sqlx::{PgConnection, Row};

use crate::store::error::Limit;
use crate::store::session::roll_back;
use crate::store::sql;

/// A time limit of new sessions of this role in this database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SetLimit {
    pub(crate) limit: Limit,
    pub(crate) after: Duration,
    /// As PostgreSQL prints it: `1s`.
    pub(crate) shown: String,
}

/// Reads the limits in effect.
pub(crate) async fn limits(connection: &mut PgConnection) -> Result<Vec<SetLimit>, sqlx::Error> {
    let rows = sqlx::query(sql::LIMITS).fetch_all(connection).await?;
    let mut limits = Vec::with_capacity(rows.len());
    for row in rows {
        let (name, millis): (String, i64) = (row.try_get("name")?, row.try_get("millis")?);
        if let Some(limit) = Limit::ALL.into_iter().find(|limit| limit.setting() == name) {
            let after = Duration::from_millis(millis.unsigned_abs());
            limits.push(SetLimit { limit, after, shown: row.try_get("shown")? });
        }
    }
    Ok(limits)
}

/// The rights of a session after a rollback, which also undoes every setting made in the
/// transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct May {
    pub(crate) is_writable: bool,
    pub(crate) is_permitted: bool,
    pub(crate) role: Vec<u8>,
}

/// Rolls back the transaction of a body, then reads the rights.
pub(crate) async fn may_write(connection: &mut PgConnection) -> Result<May, sqlx::Error> {
    roll_back(connection).await?;
    let row = sqlx::query(sql::MAY_WRITE).fetch_one(connection).await?;
    Ok(May {
        is_writable: row.try_get("is_writable")?,
        is_permitted: row.try_get("is_permitted")?,
        role: row.try_get("role")?,
    })
}
