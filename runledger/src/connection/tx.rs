//! The transaction of a transactional body.

use std::ops::{Deref, DerefMut};

use sqlx::{PgConnection, Postgres, Transaction};

use crate::model::payload::Sealer;
use crate::store::session::commit_whole;

/// An open transaction. It dereferences to a connection of sqlx: `query.execute(&mut **tx)`.
///
/// In a body with `#[inject] tx: &mut Tx`, it commits together with the record of the step or run,
/// and rolls back when the body fails. Its writes commit once, however many attempts the body has.
#[derive(Debug)]
pub struct Tx(Transaction<'static, Postgres>, Sealer);

impl Tx {
    pub(crate) fn new(inner: Transaction<'static, Postgres>, sealer: Sealer) -> Self {
        Self(inner, sealer)
    }

    pub(crate) fn sealer(&self) -> &Sealer {
        &self.1
    }

    /// Commits the transaction. Not available for the borrowed `tx` of a transactional body.
    ///
    /// # Errors
    /// Same as [`Transaction::commit`].
    pub async fn commit(self) -> Result<(), sqlx::Error> {
        self.0.commit().await
    }

    /// Commits, including savepoints that a body has forgotten (`std::mem::forget`).
    /// [`Transaction::commit`] would only release the innermost savepoint, and report success.
    pub(crate) async fn commit_whole(mut self) -> Result<(), sqlx::Error> {
        commit_whole(&mut self.0).await
    }

    /// Rolls back, like dropping the transaction.
    ///
    /// # Errors
    /// Same as [`Transaction::rollback`].
    pub async fn rollback(self) -> Result<(), sqlx::Error> {
        self.0.rollback().await
    }
}

impl Deref for Tx {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        &self.0
    }
}

impl DerefMut for Tx {
    fn deref_mut(&mut self) -> &mut PgConnection {
        &mut self.0
    }
}
