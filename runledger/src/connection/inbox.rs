//! Group commit of single enqueues: enqueues that arrive during a commit share the next one.
//!
//! The first enqueue of an idle inbox starts at once; it does not wait for others. Only runs
//! without idempotency keys use the inbox: a key can make the statement wait for another
//! transaction, and the other runs would wait with it.
//!
//! A task serves the inbox while it contains runs. Each caller owns the outcome of its run. If the
//! task cannot report the outcome (the statement failed, or the runtime of the task shut down), the
//! caller enqueues the run again, alone; this is a no-op if the run was written. The caller does
//! the same if the task is silent because nothing drives its runtime. A new task then replaces the
//! silent one.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::{PgPool, Postgres};
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;
use uuid::Uuid;

use super::db_timeout::{STATEMENT_LIMIT, with_timeout};
use super::task;
use crate::store::run::enqueue::{NewRun, enqueue_fresh};
use crate::store::session::acquire;
use crate::store::session::failover::ServerEpoch;

/// The largest batch. Beyond it, a statement takes longer than the commits that it saves.
const MAX_BATCH: usize = 256;

/// How long the task keeps the connection of an empty inbox. Returning it and acquiring another
/// costs a round trip.
const LINGER: Duration = Duration::from_millis(2);

/// How long a run may wait in the inbox before its caller removes it. This is longer than the task
/// waits for the previous statement and then for a connection: a slow server must not make all runs
/// go alone.
const UNTAKEN: Duration = Duration::from_secs(STATEMENT_LIMIT.as_secs() + 10);

/// How much longer a caller waits for a run that the task has taken. The task waits this long for
/// the reply to its statement.
const TAKEN: Duration = STATEMENT_LIMIT;

/// The outcome of a run in the inbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Delivery {
    /// The run is committed.
    Committed,
    /// No connection became free, and the run was not sent.
    NoConnection,
    /// The run may be committed.
    Unknown,
}

/// The inbox of a client.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    inner: Mutex<Inner>,
    /// Wakes the task when a run arrives.
    more: Notify,
}

#[derive(Debug, Default)]
struct Inner {
    items: Vec<Item>,
    /// The number of the current task.
    server: Option<u64>,
    /// The number of tasks so far.
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
        // No code panics while it holds the lock.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// The number of the task that serves the inbox, and whether the caller must start it.
    fn served(&mut self) -> (u64, bool) {
        if let Some(number) = self.server {
            return (number, false);
        }
        self.n_servers += 1;
        self.server = Some(self.n_servers);
        (self.n_servers, true)
    }

    /// Removes a run that the task has not taken. Returns false if the task has taken it.
    fn take_back(&mut self, run_id: Uuid, number: u64) -> bool {
        let Some(at) = self.items.iter().position(|item| item.run.run_id == run_id) else { return false };
        self.items.swap_remove(at);
        self.dismiss(number);
        true
    }

    /// Lets a new task replace a silent one. If the silent task resumes, it reports the outcomes of
    /// its runs and stops.
    fn dismiss(&mut self, number: u64) {
        if self.server == Some(number) {
            self.server = None;
        }
    }
}

/// Serves an inbox until it is empty. However the task ends, the next run starts a new task, and
/// the callers of the remaining runs learn that the task is gone.
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
                // The connection may be in the middle of a reply that no code reads.
                connection.close_on_drop();
                tracing::debug!(%error, n_runs = runs.len(), "a shared enqueue failed; each run is enqueued again alone");
                return;
            }
            for owner in owners {
                // The send fails if the caller is gone.
                let _ = owner.send(Delivery::Committed);
            }
            if pool.num_idle() == 0 && pool.size() >= pool.options().get_max_connections() {
                // Other callers may wait for a connection. A steady stream of enqueues must not
                // keep this one.
                drop(connection);
                let Some(next) = self.connect(&pool).await else { return };
                connection = next;
            }
        }
    }

    /// A connection for the waiting runs. `None` if no run waits any more.
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

    /// Takes the next runs to write. `None` if another task serves the inbox.
    fn take(&self) -> Option<Vec<Item>> {
        let mut inner = self.inbox.inner();
        let n = inner.items.len().min(MAX_BATCH);
        (inner.server == Some(self.number)).then(|| inner.items.drain(..n).collect())
    }

    /// Reports `NoConnection` to callers that have waited as long as the pool allows.
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
    use crate::model::run::request::RequestOptions;

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

    /// A runtime whose clock advances when it is idle.
    fn runtime() -> Runtime {
        Builder::new_current_thread().enable_all().start_paused(true).build().unwrap()
    }

    #[test]
    fn enqueue_does_not_wait_for_task_of_stalled_runtime() {
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
