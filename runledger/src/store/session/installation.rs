//! The identity of an installation and of its home database. They distinguish a copy of the tables
//! from the original.

use sqlx::{PgConnection, Row};
use uuid::Uuid;

use crate::store::sql;
use crate::store::write::write;

/// The recorded home of an installation, and the database of this session.
#[derive(Clone, Debug)]
pub(crate) struct Recorded {
    /// `None` if the row is missing.
    pub(crate) id: Option<Uuid>,
    /// The cluster and the database of the last adoption; empty if the row is missing.
    pub(crate) made_in: String,
    /// The cluster and the database of this session.
    pub(crate) here: String,
    /// Whether the two are equal. An unknown system identifier counts as equal.
    pub(crate) is_home: bool,
}

/// The condition for an adoption.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Adopt {
    /// An operator confirmed the adoption.
    Always,
    /// Only a copy that was created from a template in the same cluster, and that has no live run
    /// which a worker would repeat.
    IfIdle,
}

/// Reads the record and the database of this session.
pub(crate) async fn recorded(connection: &mut PgConnection) -> Result<Recorded, sqlx::Error> {
    let row = sqlx::query(sql::INSTALLATION).fetch_one(connection).await?;
    Ok(Recorded {
        id: row.try_get("id")?,
        made_in: row.try_get("made_in")?,
        here: row.try_get("here")?,
        is_home: row.try_get("is_home")?,
    })
}

/// Records this database as the only home of its installation. Returns its id, or `None` if nothing
/// changed.
pub(crate) async fn adopt(connection: &mut PgConnection, when: Adopt) -> Result<Option<Uuid>, sqlx::Error> {
    let only_if_idle = when == Adopt::IfIdle;
    write(sql::ADOPT, |adopt| sqlx::query_scalar(adopt).bind(only_if_idle).fetch_optional(connection)).await
}
