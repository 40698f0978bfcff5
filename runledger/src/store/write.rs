//! Every statement that writes, and every commit, goes through this module under its name. With the
//! feature `failpoints`, a test can make a write fail. Without the feature, this module does
//! nothing.

#[cfg(feature = "failpoints")]
use std::future::Future;

#[cfg(feature = "failpoints")]
use super::failpoints::pass;

/// Executes a statement that writes. `send` builds the query from the statement's text.
#[cfg(not(feature = "failpoints"))]
pub(crate) fn write<F>(statement: &'static str, send: impl FnOnce(&'static str) -> F) -> F {
    send(statement)
}

/// Executes a commit. `_name` identifies the transaction.
#[cfg(not(feature = "failpoints"))]
pub(crate) fn commit<F>(_name: &'static str, commit: F) -> F {
    commit
}

/// Executes a statement that writes. `send` builds the query from the statement's text.
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
    // Boxed to keep the tasks of runs small. Only tests compile this function.
    Box::pin(pass(name, send(statement))).await
}

/// Executes a commit. `name` identifies the transaction.
#[cfg(feature = "failpoints")]
pub(crate) async fn commit<T: 'static>(
    name: &'static str,
    commit: impl Future<Output = Result<T, sqlx::Error>>,
) -> Result<T, sqlx::Error> {
    Box::pin(pass(name, commit)).await
}

/// Sets the steps that the next write records.
#[cfg(feature = "testing")]
pub(crate) use super::failpoints::scope::steps as of_steps;

/// Sets the steps that the next write records.
#[cfg(not(feature = "testing"))]
pub(crate) fn of_steps<'a>(_keys: impl Iterator<Item = &'a str>) {}
