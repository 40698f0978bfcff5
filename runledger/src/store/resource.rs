//! Resources: how many permits there are of each, and what has become of them.

use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row};

use super::sql;
use super::write::write;

/// How many waiting runs of a resource are counted.
pub(crate) const COUNTED: i64 = 10_000;

/// A resource that runs need.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Resource {
    /// Its name.
    pub name: String,
    /// How many permits there are of it.
    pub permits: u32,
    /// Whether somebody has said so with [`Db::set_permits`](crate::Db::set_permits). A resource of which nobody has said it has one.
    pub is_said: bool,
    /// How many of them runs have, each since its attempt was claimed.
    pub n_held: u64,
    /// How many runs in queues need one, those too that are due later. No more than 10,000 are counted.
    pub n_waiting: u64,
}

/// Up to so many resources whose names follow this one.
pub(crate) async fn page(
    connection: &mut PgConnection,
    after: &str,
    limit: i64,
) -> Result<Vec<Resource>, sqlx::Error> {
    let rows =
        sqlx::query(sql::RESOURCES).bind(after).bind(limit).bind(COUNTED).fetch_all(connection).await?;
    rows.iter().map(resource).collect()
}

fn resource(row: &PgRow) -> Result<Resource, sqlx::Error> {
    Ok(Resource {
        name: row.try_get("name")?,
        permits: row.try_get::<i32, _>("permits")?.unsigned_abs(),
        is_said: row.try_get("is_said")?,
        n_held: row.try_get::<i64, _>("held")?.unsigned_abs(),
        n_waiting: row.try_get::<i64, _>("waiting")?.unsigned_abs(),
    })
}

/// Says how many permits there are of a resource; none: what was said is forgotten. Gives what was said before.
pub(crate) async fn set_permits(
    connection: &mut PgConnection,
    name: &str,
    permits: Option<u32>,
) -> Result<Option<u32>, sqlx::Error> {
    let permits = permits.map(|permits| i32::try_from(permits).unwrap_or(i32::MAX));
    let row = write(sql::SET_PERMITS, |say| sqlx::query(say).bind(name).bind(permits).fetch_one(connection))
        .await?;
    Ok(row.try_get::<Option<i32>, _>("before")?.map(i32::unsigned_abs))
}
