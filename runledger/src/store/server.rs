//! What must be right about the server before anything is written to it.

use sqlx::{PgConnection, Row};

use super::sql;

/// The oldest PostgreSQL that the statements run on.
pub(crate) const OLDEST_VERSION: i32 = 130_000;

/// What a connection says of its server.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) version_num: i32,
    pub(crate) version: String,
    /// Of the database.
    pub(crate) encoding: String,
    pub(crate) in_recovery: bool,
    pub(crate) read_only: bool,
    pub(crate) database: String,
    pub(crate) role: String,
    pub(crate) creates_in_ours: bool,
}

pub(crate) async fn server(connection: &mut PgConnection) -> Result<Server, sqlx::Error> {
    let row = sqlx::query(sql::SERVER).fetch_one(connection).await?;
    Ok(Server {
        version_num: row.try_get("version_num")?,
        version: row.try_get("version")?,
        encoding: row.try_get("encoding")?,
        in_recovery: row.try_get("in_recovery")?,
        read_only: row.try_get("read_only")?,
        database: row.try_get("database")?,
        role: row.try_get("role")?,
        creates_in_ours: row.try_get("creates_in_ours")?,
    })
}
