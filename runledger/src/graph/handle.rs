//! A handle of a submitted graph.

use std::fmt;
use std::ops::Deref;

use uuid::Uuid;

use crate::client::handle::RunHandle;
use crate::connection::db::{Db, Home};
use crate::engine::builtin::CONCLUDE;

/// A handle of a graph with the result `T`: a [`RunHandle`] that also reaches the gates, the nodes
/// and the picture of the graph.
pub struct GraphHandle<T> {
    run: RunHandle<T>,
}

impl<T> GraphHandle<T> {
    pub(super) fn new(run_id: Uuid, created: bool, home: Option<Home>) -> Self {
        Self { run: RunHandle::new(run_id, created, Some(&CONCLUDE), home) }
    }

    /// Returns a handle of the same graph that queries `db`. Use it for a handle made inside a
    /// transaction.
    #[must_use]
    pub fn with_db(&self, db: &Db) -> Self {
        Self { run: self.run.with_db(db) }
    }
}

impl<T> Deref for GraphHandle<T> {
    type Target = RunHandle<T>;

    fn deref(&self) -> &RunHandle<T> {
        &self.run
    }
}

impl<T> Clone for GraphHandle<T> {
    fn clone(&self) -> Self {
        Self { run: self.run.clone() }
    }
}

impl<T> fmt::Debug for GraphHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("GraphHandle").field(&self.run).finish()
    }
}
