//! Connections for the engine's own statements.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions, PgConnection, Postgres};

use super::db::Db;
use super::db_timeout::{STATEMENT_LIMIT, with_timeout};
use crate::store::error::unopened;
use crate::store::session::failover::ServerEpoch;
use crate::store::session::{connect, for_engine, for_writer};

/// Opens connections for the engine's own statements.
#[derive(Clone, Debug)]
pub(crate) struct Session {
    db: Db,
    answer_limit: Duration,
}

impl Session {
    pub(crate) fn to(db: Db, answer_limit: Duration) -> Self {
        Self { db, answer_limit }
    }

    pub(crate) fn db(&self) -> &Db {
        &self.db
    }

    /// A connection of the pool with the engine's settings. It closes when it is dropped, so no
    /// user's statement runs with these settings.
    pub(crate) async fn open(&self) -> Result<PoolConnection<Postgres>, sqlx::Error> {
        self.open_with(for_engine).await
    }

    /// A connection of the pool for a writer.
    pub(crate) async fn open_writer(&self) -> Result<PoolConnection<Postgres>, sqlx::Error> {
        self.open_with(async |connection| for_writer(connection, self.answer_limit).await).await
    }

    async fn open_with(
        &self,
        set_up: impl AsyncFnOnce(&mut PgConnection) -> Result<(), sqlx::Error>,
    ) -> Result<PoolConnection<Postgres>, sqlx::Error> {
        let mut connection = self.db.acquire().await?;
        connection.close_on_drop();
        self.with_timeout(set_up(&mut connection)).await.map_err(unopened)?;
        Ok(connection)
    }

    /// The same session for a worker's claimed runs in one server epoch.
    pub(crate) fn within(self, era: Arc<ServerEpoch>) -> Self {
        Self { db: self.db.within(era), ..self }
    }

    /// Whether a standby was promoted in place of the server that the claimed runs began on.
    pub(crate) fn is_overtaken(&self) -> bool {
        self.db.is_overtaken()
    }

    /// Whether the pool is large enough for maintenance to keep a connection. The claimer, a
    /// writer, a body and short statements need one each.
    pub(crate) fn has_room(&self) -> bool {
        self.db.pool().options().get_max_connections() >= 5
    }

    /// A connection outside the pool with the engine's settings. A worker uses it to sign off while
    /// bodies hold the whole pool.
    pub(crate) async fn open_beside(&self) -> Result<PgConnection, sqlx::Error> {
        self.with_timeout(async {
            let mut connection = connect(&engine_options(&self.db)).await?;
            for_engine(&mut connection).await?;
            Ok(connection)
        })
        .await
    }

    /// Waits for the reply to a claim, for longer than the server's own time limit even if the
    /// lease is short. If the worker gave up while the server continued, the claim would keep its
    /// runs locked.
    pub(crate) async fn answered_claim<T>(
        &self,
        claim: impl Future<Output = Result<T, sqlx::Error>>,
    ) -> Result<T, sqlx::Error> {
        with_timeout(self.answer_limit.max(STATEMENT_LIMIT), claim).await
    }

    /// Waits for the reply to a statement of the engine. After an error, close the connection.
    pub(crate) async fn with_timeout<T>(
        &self,
        statement: impl Future<Output = Result<T, sqlx::Error>>,
    ) -> Result<T, sqlx::Error> {
        with_timeout(self.answer_limit, statement).await
    }
}

pub(crate) fn engine_options(db: &Db) -> PgConnectOptions {
    (*db.pool().connect_options()).clone().disable_statement_logging()
}
