//! Spare connections of a worker, for the engine's own statements while bodies use the whole pool.
//!
//! A body may hold a connection without a time limit, and the application may use the rest. The
//! engine must still renew leases, cancel, wake and record for every run of the worker.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use sqlx::Postgres;
use sqlx::pool::PoolConnection;
use sqlx::postgres::PgPool;

use crate::store::session::acquire;
use crate::store::session::without_connection::is_exhausted;

/// One for the claimer, two for the writers of the commit queue, and one each for maintenance, a
/// slow scan and short statements.
const MOST: u32 = 6;

/// How long the engine first waits for a connection of the pool. Short statements return theirs
/// sooner.
const BRIEF: Duration = Duration::from_millis(100);

/// How long an unused spare connection stays open.
const IDLE: Duration = Duration::from_secs(10);

/// The shortest time between two warnings about an exhausted pool.
const SAY_AGAIN: Duration = Duration::from_secs(60);

/// A second pool for the same database. It opens no connection until the first pool is exhausted.
#[derive(Clone, Debug)]
pub(crate) struct Reserve {
    pool: PgPool,
    said_at: Arc<Mutex<Option<Instant>>>,
}

impl Reserve {
    /// Creates the reserve of `pool`, with the same setup and reset of sessions.
    pub(crate) fn beside(pool: &PgPool) -> Self {
        let options = pool.options().clone().max_connections(MOST).idle_timeout(IDLE);
        let pool = options.connect_lazy_with((*pool.connect_options()).clone());
        Self { pool, said_at: Arc::default() }
    }

    /// Returns a connection of `first`, or a spare one while every connection of `first` is in use.
    pub(crate) async fn or_of(&self, first: &PgPool) -> Result<PoolConnection<Postgres>, sqlx::Error> {
        let mut waiting = std::pin::pin!(acquire(first));
        loop {
            if let Ok(acquired) = tokio::time::timeout(BRIEF, &mut waiting).await {
                return acquired;
            }
            // A pool is not exhausted while its server starts. A second pool would wait for the
            // same server.
            if is_exhausted(first) {
                break;
            }
        }
        self.say(first);
        tokio::select! {
            biased;
            acquired = &mut waiting => acquired,
            Ok(acquired) = acquire(&self.pool) => Ok(acquired),
        }
    }

    fn say(&self, first: &PgPool) {
        let mut said_at = self.said_at.lock().unwrap_or_else(PoisonError::into_inner);
        if said_at.is_none_or(|at| at.elapsed() >= SAY_AGAIN) {
            *said_at = Some(Instant::now());
            tracing::warn!(
                connections = first.options().get_max_connections(),
                "every connection of the pool is in use, by bodies, by the application or by other workers of this process; the engine opens up to {MOST} of \
                 its own beside it; allow more in `Db::connect_with`, or hold them for shorter"
            );
        }
    }
}
