//! The inbox of a client: single enqueues that come while one is being committed go together in the next commit.
//!
//! The first enqueue of an idle inbox goes at once; nothing waits to be joined. Only runs without idempotency keys come here: a key can make its
//! statement wait for another transaction, and nobody else should wait with it.
//!
//! A task serves the inbox while there is something in it. Whoever has put a run in owns the outcome: where the task cannot tell it (the statement
//! failed, or the task went with its runtime), the run is enqueued again by its owner alone, which is a no-op if it was written.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::{PgPool, Postgres};
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use super::answer::{PATIENCE, answered};
use super::task;
use crate::store::enqueue::{NewRun, enqueue_fresh};
use crate::store::session::acquire;

/// The largest batch: beyond it a statement takes longer than the commits that it saves.
const MAX_BATCH: usize = 256;

/// How long the connection of an empty inbox is kept for whoever comes next: giving it back and taking another costs a round trip.
const LINGER: Duration = Duration::from_millis(2);

/// What became of a run in the inbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Delivery {
    /// It is committed.
    Committed,
    /// No connection became free: it was not sent.
    NoConnection,
    /// It may be committed.
    Unknown,
}

/// The inbox of a client.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    inner: Mutex<Inner>,
    /// Told when something is put into an inbox that is served.
    more: Notify,
}

#[derive(Debug, Default)]
struct Inner {
    items: Vec<Item>,
    is_served: bool,
}

#[derive(Debug)]
struct Item {
    since: Instant,
    run: NewRun,
    delivered: oneshot::Sender<Delivery>,
}

impl Inbox {
    /// Enqueues a run, in a commit that it may share.
    pub(crate) async fn put(self: &Arc<Self>, pool: &PgPool, run: NewRun) -> Delivery {
        let (delivered, delivery) = oneshot::channel();
        let was_served = {
            let mut inner = self.inner();
            inner.items.push(Item { since: Instant::now(), run, delivered });
            std::mem::replace(&mut inner.is_served, true)
        };
        if was_served {
            self.more.notify_one();
        } else {
            let server = Server { inbox: Arc::clone(self), is_closed: false };
            task::spawn("inbox", server.serve(pool.clone()));
        }
        delivery.await.unwrap_or(Delivery::Unknown)
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        // Nothing panics while it holds the lock.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Serves an inbox until it is empty. However it ends, the next item finds the inbox unserved, and the owners of those that are left are told.
struct Server {
    inbox: Arc<Inbox>,
    is_closed: bool,
}

impl Server {
    async fn serve(mut self, pool: PgPool) {
        let Some(mut connection) = self.connect(&pool).await else { return };
        while !self.is_closed {
            let batch = self.take();
            if batch.is_empty() {
                if tokio::time::timeout(LINGER, self.inbox.more.notified()).await.is_err() {
                    self.close_if_empty();
                }
                continue;
            }
            let (runs, owners): (Vec<NewRun>, Vec<_>) =
                batch.into_iter().map(|item| (item.run, item.delivered)).unzip();
            if let Err(error) = answered(PATIENCE, enqueue_fresh(&mut connection, &runs)).await {
                // It may be in the middle of an answer that nobody waits for.
                connection.close_on_drop();
                tracing::debug!(%error, n_runs = runs.len(), "a shared enqueue failed; each run is enqueued again alone");
                return;
            }
            for owner in owners {
                // An owner that is gone does not want to know.
                let _ = owner.send(Delivery::Committed);
            }
            if pool.num_idle() == 0 && pool.size() >= pool.options().get_max_connections() {
                // Others may wait for a connection: a steady stream of enqueues must not keep this one from them.
                drop(connection);
                let Some(next) = self.connect(&pool).await else { return };
                connection = next;
            }
        }
    }

    /// A connection for those that wait. None where there is none and nobody waits any more.
    async fn connect(&mut self, pool: &PgPool) -> Option<PoolConnection<Postgres>> {
        while !self.is_closed {
            let began = Instant::now();
            match acquire(pool).await {
                Ok(connection) => return Some(connection),
                Err(error) => {
                    tracing::debug!(%error, "the inbox has no connection");
                    self.refuse(began);
                    self.close_if_empty();
                }
            }
        }
        None
    }

    fn take(&self) -> Vec<Item> {
        let items = &mut self.inbox.inner().items;
        let n = items.len().min(MAX_BATCH);
        items.drain(..n).collect()
    }

    /// Tells those that have waited as long as the pool lets anybody wait.
    fn refuse(&self, began: Instant) {
        let mut inner = self.inbox.inner();
        let (late, early) =
            std::mem::take(&mut inner.items).into_iter().partition(|item| item.since <= began);
        inner.items = early;
        let late: Vec<Item> = late;
        for item in late {
            let _ = item.delivered.send(Delivery::NoConnection);
        }
    }

    fn close_if_empty(&mut self) {
        let mut inner = self.inbox.inner();
        self.is_closed = inner.items.is_empty();
        inner.is_served = !self.is_closed;
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if !self.is_closed {
            let mut inner = self.inbox.inner();
            inner.is_served = false;
            inner.items.clear();
        }
    }
}
