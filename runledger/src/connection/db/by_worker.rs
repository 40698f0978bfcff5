//! The database, as a worker uses it.

use std::sync::Arc;

use sqlx::postgres::PgConnectOptions;

use super::Db;
use crate::model::payload::Sealer;
use crate::store::session::failover::ServerEpoch;
use crate::store::session::reserve::Reserve;

impl Db {
    /// The same pool with the codec and the limits of another `Db`.
    pub(crate) fn sealed_by(self, sealer: &Sealer) -> Self {
        Self { sealer: sealer.clone(), ..self }
    }

    /// A pool that cannot connect, for code that needs a pool and must not use it.
    pub(crate) fn nowhere() -> Self {
        Self::lazily(PgConnectOptions::new_without_pgpass().socket("/dev/null/nowhere"), 1)
    }

    /// The application name of the sessions. Other processes end those of a dead process by it.
    pub(crate) fn session_name(&self) -> &str {
        &self.session_name
    }

    /// The same for a worker: [`acquire`](Self::acquire) succeeds even if bodies hold the pool.
    pub(crate) fn with_reserve(self) -> Self {
        Self { reserve: Some(Reserve::beside(&self.pool)), ..self }
    }

    /// The same database for a worker's claimed runs in one server epoch. After a promotion, it
    /// opens no connections. The promoted server may lack records that the worker knows of. It has
    /// the worker's leases, so the fence would not stop writes that depend on lost records.
    pub(crate) fn within(self, era: Arc<ServerEpoch>) -> Self {
        Self { era: Some(era), ..self }
    }
}
