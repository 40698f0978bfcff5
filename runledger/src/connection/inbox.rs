//! The inbox of a client: single enqueues that come while one is being committed go together in the next commit.
//!
//! The first enqueue of an idle inbox goes at once; nothing waits to be joined. Only runs without idempotency keys come here: a key can make its
//! statement wait for another transaction, and nobody else should wait with it.
//!
//! A task serves the inbox while there is something in it. Whoever has put a run in owns the outcome: where the task cannot tell it (the statement
//! failed, or the task went with its runtime), the run is enqueued again by its owner alone, which is a no-op if it was written. The same where the task
//! is silent, because nobody drives its runtime: its place is then free for another.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::{PgPool, Postgres};
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;
use uuid::Uuid;

use super::db_timeout::{STATEMENT_LIMIT, with_timeout};
use super::task;
use crate::store::enqueue::{NewRun, enqueue_fresh};
use crate::store::failover::ServerEpoch;
use crate::store::session::acquire;

/// The largest batch: beyond it a statement takes longer than the commits that it saves.
const MAX_BATCH: usize = 256;

/// How long the connection of an empty inbox is kept for whoever comes next: giving it back and taking another costs a round trip.
const LINGER: Duration = Duration::from_millis(2);

/// How long a run may lie in the inbox before its owner takes it out: longer than the task waits for the answer to the statement before it, and then for
/// a connection. A server that is slow must not make all of them go alone.
const UNTAKEN: Duration = Duration::from_secs(STATEMENT_LIMIT.as_secs() + 10);

/// How long an owner waits beyond that for a run that was taken: longer than the task waits for the answer to its statement.
const TAKEN: Duration = STATEMENT_LIMIT;

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
    /// The number of the task that serves it.
    server: Option<u64>,
    /// How many tasks there have been.
    n_servers: u64,
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
        let run_id = run.run_id;
        let (delivered, mut delivery) = oneshot::channel();
        let (number, is_new) = {
            let mut inner = self.inner();
            inner.items.push(Item { since: Instant::now(), run, delivered });
            inner.served()
        };
        if is_new {
            let server = Server { inbox: Arc::clone(self), number, is_closed: false };
            task::spawn("inbox", server.serve(pool.clone()));
        } else {
            self.more.notify_one();
        }
        if let Ok(told) = tokio::time::timeout(UNTAKEN, &mut delivery).await {
            return told.unwrap_or(Delivery::Unknown);
        }
        if !self.inner().take_back(run_id, number) {
            if let Ok(told) = tokio::time::timeout(TAKEN, delivery).await {
                return told.unwrap_or(Delivery::Unknown);
            }
            self.inner().dismiss(number);
        }
        tracing::debug!(%run_id, "nobody serves the inbox; the run is enqueued alone");
        Delivery::Unknown
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        // Nothing panics while it holds the lock.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// The number of the task that serves the inbox, and whether it has yet to be started.
    fn served(&mut self) -> (u64, bool) {
        if let Some(number) = self.server {
            return (number, false);
        }
        self.n_servers += 1;
        self.server = Some(self.n_servers);
        (self.n_servers, true)
    }

    /// Takes a run out that the task has let lie. False where the task has taken it.
    fn take_back(&mut self, run_id: Uuid, number: u64) -> bool {
        let Some(at) = self.items.iter().position(|item| item.run.run_id == run_id) else { return false };
        self.items.swap_remove(at);
        self.dismiss(number);
        true
    }

    /// Lets another task serve the inbox in the place of one that is silent. Should that one go on, it tells the owners of what it has, and stops.
    fn dismiss(&mut self, number: u64) {
        if self.server == Some(number) {
            self.server = None;
        }
    }
}

/// Serves an inbox until it is empty. However it ends, the next item finds the inbox unserved, and the owners of those that are left are told.
struct Server {
    inbox: Arc<Inbox>,
    number: u64,
    is_closed: bool,
}

impl Server {
    async fn serve(mut self, pool: PgPool) {
        let mut era = ServerEpoch::begin(&pool.connect_options());
        let Some(mut connection) = self.connect(&pool).await else { return };
        while !self.is_closed {
            if era.is_over() {
                era = ServerEpoch::begin(&pool.connect_options());
                drop(connection);
                let Some(next) = self.connect(&pool).await else { return };
                connection = next;
            }
            let Some(batch) = self.take() else { return };
            if batch.is_empty() {
                if tokio::time::timeout(LINGER, self.inbox.more.notified()).await.is_err() {
                    self.close_if_empty();
                }
                continue;
            }
            let (runs, owners): (Vec<NewRun>, Vec<_>) =
                batch.into_iter().map(|item| (item.run, item.delivered)).unzip();
            if let Err(error) = with_timeout(STATEMENT_LIMIT, enqueue_fresh(&mut connection, &runs)).await {
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

    /// The next runs to be written. None where another serves the inbox by now.
    fn take(&self) -> Option<Vec<Item>> {
        let mut inner = self.inbox.inner();
        let n = inner.items.len().min(MAX_BATCH);
        (inner.server == Some(self.number)).then(|| inner.items.drain(..n).collect())
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
        self.is_closed = inner.items.is_empty() || inner.server != Some(self.number);
        if self.is_closed {
            inner.dismiss(self.number);
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let mut inner = self.inbox.inner();
        if !self.is_closed && inner.server == Some(self.number) {
            inner.dismiss(self.number);
            inner.items.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::{Future, poll_fn};
    use std::pin::pin;
    use std::task::Poll;

    use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
    use tokio::runtime::{Builder, Runtime};

    use super::*;
    use crate::model::request::RequestOptions;

    fn run() -> NewRun {
        NewRun {
            run_id: Uuid::now_v7(),
            job: "charge".to_owned(),
            tenant: String::new(),
            queue: "default".to_owned(),
            priority: 0,
            input: crate::model::payload::Stored::read("{}".to_owned()),
            options: RequestOptions::default(),
            idempotency_key: None,
        }
    }

    /// One whose clock goes on when nothing is left to do.
    fn runtime() -> Runtime {
        Builder::new_current_thread().enable_all().start_paused(true).build().unwrap()
    }

    #[test]
    fn an_enqueue_does_not_wait_for_a_task_whose_runtime_nobody_drives() {
        let (theirs, ours) = (runtime(), runtime());
        let inbox = Arc::<Inbox>::default();
        let pool = theirs.block_on(async { PgPoolOptions::new().connect_lazy_with(PgConnectOptions::new()) });
        let mut first = pin!(inbox.put(&pool, run()));
        theirs.block_on(poll_fn(|cx| {
            assert!(first.as_mut().poll(cx).is_pending());
            Poll::Ready(())
        }));
        assert_eq!(inbox.inner().server, Some(1), "it is served by a task of that runtime");
        assert_eq!(ours.block_on(inbox.put(&pool, run())), Delivery::Unknown);
        assert_eq!(inbox.inner().server, None, "the next one finds a server of its own");
        assert_eq!(inbox.inner().items.len(), 1, "the other's own is left to it");
    }
}
