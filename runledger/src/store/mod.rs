//! The only module that contains SQL: one file per statement. Rows that may be invalid become model
//! types that are always valid.

pub mod attempt;
pub mod error;
#[cfg(feature = "failpoints")]
pub mod failpoints;
pub mod graph;
pub(crate) mod locks;
pub mod migrate;
pub mod operator;
pub(crate) mod places;
pub mod run;
pub mod session;
pub mod sql;
#[cfg(feature = "testing")]
pub(crate) mod testing;
mod timestamp;
#[cfg(feature = "worker")]
pub mod worker;
pub mod write;

use sqlx::Row;
use sqlx::postgres::PgRow;

use crate::model::graph::dependency_inputs::{self, DependencyOutput};
use crate::model::unreadable::Unreadable;

/// Reads the outcomes of a node's dependencies from the column `given`.
pub(crate) fn given(row: &PgRow) -> Result<Vec<DependencyOutput>, Unreadable> {
    let text: Option<&str> =
        row.try_get("given").map_err(|error| Unreadable::new("edge.parameters", &error))?;
    text.map_or(Ok(Vec::new()), dependency_inputs::read)
        .map_err(|error| Unreadable::new("edge.parameters", &error))
}

/// For statements about one run, where an unreadable row affects no other run.
impl From<Unreadable> for sqlx::Error {
    fn from(unreadable: Unreadable) -> Self {
        Self::Decode(unreadable.into())
    }
}

/// Returns an empty array if every value is `None`, which is usual for some columns. The server
/// fills an empty array with nulls (`unnest`), so nothing is sent.
pub(crate) fn sparse<T>(values: impl Iterator<Item = Option<T>>) -> Vec<Option<T>> {
    let values: Vec<Option<T>> = values.collect();
    if values.iter().all(Option::is_none) { Vec::new() } else { values }
}
