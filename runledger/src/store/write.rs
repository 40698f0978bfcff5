//! The one way of the engine's writes to the database: each statement that writes, and each commit of a transaction, passes here under its name. With
//! the feature `failpoints` a test can make it fail; without it there is nothing here.

#[cfg(feature = "failpoints")]
use std::future::Future;

#[cfg(feature = "failpoints")]
use super::failpoints::pass;

/// Carries out a statement that writes: `send` makes of its text what is sent.
#[cfg(not(feature = "failpoints"))]
pub(crate) fn write<F>(statement: &'static str, send: impl FnOnce(&'static str) -> F) -> F {
    send(statement)
}

/// Carries out a commit. `_name` says of which transaction.
#[cfg(not(feature = "failpoints"))]
pub(crate) fn commit<F>(_name: &'static str, commit: F) -> F {
    commit
}

/// Carries out a statement that writes: `send` makes of its text what is sent.
#[cfg(feature = "failpoints")]
pub(crate) async fn write<T: 'static, F>(
    statement: &'static str,
    send: impl FnOnce(&'static str) -> F,
) -> Result<T, sqlx::Error>
where
    F: Future<Output = Result<T, sqlx::Error>>,
{
    // Each text begins with its name: `-- claim: …`.
    let name = statement.trim_start_matches("-- ").split(':').next().unwrap_or_default();
    // A box: the tasks of runs are small, and this is compiled for tests alone.
    Box::pin(pass(name, send(statement))).await
}

/// Carries out a commit. `name` says of which transaction.
#[cfg(feature = "failpoints")]
pub(crate) async fn commit<T: 'static>(
    name: &'static str,
    commit: impl Future<Output = Result<T, sqlx::Error>>,
) -> Result<T, sqlx::Error> {
    Box::pin(pass(name, commit)).await
}

/// Says of which steps the write is that begins now.
#[cfg(feature = "testing")]
pub(crate) use super::failpoints::scope::steps as of_steps;

/// Says of which steps the write is that begins now.
#[cfg(not(feature = "testing"))]
pub(crate) fn of_steps<'a>(_keys: impl Iterator<Item = &'a str>) {}
