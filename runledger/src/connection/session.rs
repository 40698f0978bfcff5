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
use crate::store::failover::ServerEpoch;
use crate::store::session::{connect, for_engine, for_writer};

/// The way to connections for the engine's own statements.
#[derive(Clone, Debug)]
pub(crate) struct Session {
    db: Db,
    patience: Duration,
}

impl Session {
    pub(crate) fn to(db: Db, patience: Duration) -> Self {
        Self { db, patience }
    }

    pub(crate) fn db(&self) -> &Db {
        &self.db
    }

    /// A connection of the pool with the engine's settings. It is closed when it is dropped, so that no user's statement meets them.
    pub(crate) async fn open(&self) -> Result<PoolConnection<Postgres>, sqlx::Error> {
        self.open_with(for_engine).await
    }

    /// A connection of the pool for a writer.
    pub(crate) async fn open_writer(&self) -> Result<PoolConnection<Postgres>, sqlx::Error> {
        self.open_with(async |connection| for_writer(connection, self.patience).await).await
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

    /// The same session for the runs that a worker executes under one number.
    pub(crate) fn within(self, era: Arc<ServerEpoch>) -> Self {
        Self { db: self.db.within(era), ..self }
    }

    /// Whether what is in hand rests on a server whose place a promoted one has taken.
    pub(crate) fn is_overtaken(&self) -> bool {
        self.db.is_overtaken()
    }

    /// Whether the pool is large enough for maintenance to keep a connection of it: the claimer, a writer, a body and short work need one each.
    pub(crate) fn has_room(&self) -> bool {
        self.db.pool().options().get_max_connections() >= 5
    }

    /// A connection beside the pool with the engine's settings, for a farewell that bodies which hold the whole pool must not prevent.
    pub(crate) async fn open_beside(&self) -> Result<PgConnection, sqlx::Error> {
        self.with_timeout(async {
            let mut connection = connect(&engine_options(&self.db)).await?;
            for_engine(&mut connection).await?;
            Ok(connection)
        })
        .await
    }

    /// Waits for the answer to a claim, with any lease longer than the server's own time limit. A claim that the server
    /// continued after the worker has given up would keep its runs locked.
    pub(crate) async fn answered_claim<T>(
        &self,
        claim: impl Future<Output = Result<T, sqlx::Error>>,
    ) -> Result<T, sqlx::Error> {
        with_timeout(self.patience.max(STATEMENT_LIMIT), claim).await
    }

    /// The answer to a statement of the engine, or an error where none comes; the connection must be given up then.
    pub(crate) async fn with_timeout<T>(
        &self,
        statement: impl Future<Output = Result<T, sqlx::Error>>,
    ) -> Result<T, sqlx::Error> {
        with_timeout(self.patience, statement).await
    }
}

pub(crate) fn engine_options(db: &Db) -> PgConnectOptions {
    (*db.pool().connect_options()).clone().disable_statement_logging()
}
