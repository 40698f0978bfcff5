//! Databases that runs use one after another.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sqlx::PgConnection;

use super::super::database::{Database, Server, admin};
use crate::ClientError;
use crate::store::testing::{reset, save};

/// A database that one run uses exclusively until it is given back.
pub(super) struct Slot {
    pub(super) database: Database,
    /// The test's own connection. A reset ends all other sessions of the database.
    pub(super) connection: PgConnection,
    shape: String,
}

/// Databases with the same content, created on demand.
pub(super) struct Slots {
    server: Arc<Server>,
    template: String,
    free: Mutex<Vec<Slot>>,
}

impl Slots {
    pub(super) fn new(server: Arc<Server>, template: String) -> Self {
        Self { server, template, free: Mutex::default() }
    }

    pub(super) async fn take(&self) -> Result<Slot, ClientError> {
        let free = self.free().pop();
        if let Some(slot) = free {
            return Ok(slot);
        }
        let database = self.server.clone_of(&self.template).await?;
        let mut connection = admin(&database.options()).await?;
        let shape = save(&mut connection).await?;
        Ok(Slot { database, connection, shape })
    }

    /// Resets the database to its saved content. Drops the database if the role may not reset it,
    /// or if its tables were changed.
    pub(super) async fn give_back(&self, mut slot: Slot) {
        match reset(&mut slot.connection, &slot.shape).await {
            Ok(true) => self.free().push(slot),
            Ok(false) => slot.database.drop_now().await,
            Err(error) => {
                tracing::debug!(%error, "a database cannot be reset; another one takes its place");
                slot.database.drop_now().await;
            }
        }
    }

    /// Drops the free databases.
    pub(super) async fn clear(&self) {
        let free = std::mem::take(&mut *self.free());
        for slot in free {
            slot.database.drop_now().await;
        }
    }

    fn free(&self) -> MutexGuard<'_, Vec<Slot>> {
        // Nothing panics while it holds the lock.
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
