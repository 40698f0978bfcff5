//! Resources: the number of permits of each, and how many are in use.

use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row};

use crate::store::sql;
use crate::store::write::write;

/// The maximum number of waiting runs that are counted per resource.
pub(crate) const COUNTED: i64 = 10_000;

/// A resource that runs need.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Resource {
    /// Its name.
    pub name: String,
    /// The number of permits.
    pub permits: u32,
    /// Whether [`Db::set_permits`](crate::Db::set_permits) set the number. The default is 1.
    pub is_set: bool,
    /// The number of permits that runs hold, each since its attempt was claimed.
    pub n_held: u64,
    /// The number of queued runs that need a permit, due or not. Counts at most 10,000.
    pub n_waiting: u64,
}

/// Returns at most `limit` resources, by name, after the name `after`.
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
        is_set: row.try_get("is_said")?,
        n_held: row.try_get::<i64, _>("held")?.unsigned_abs(),
        n_waiting: row.try_get::<i64, _>("waiting")?.unsigned_abs(),
    })
}

/// Sets the number of permits of a resource; `None` restores the default. Returns the previous
/// setting.
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
