//! Waiting for the end of a run from outside, without holding a connection of the pool.
//!
//! A waiter asks a few times in quick succession, since most waits are short. Then it asks the database to notify, through one listening connection
//! that all waiters of a process on one database share, and asks only rarely as a net: a notification is a hint.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use sqlx::PgPool;
use sqlx::postgres::PgListener;
use tokio::sync::broadcast;
use uuid::Uuid;

use super::answer::answered;
use super::task;
use crate::store::inspect::watch;
use crate::store::session::{acquire, listen};

/// The first pause; it doubles up to [`LAST_SHORT`], after which the waiter listens.
const FIRST: Duration = Duration::from_millis(1);
const LAST_SHORT: Duration = Duration::from_millis(32);

/// How often a listening waiter asks all the same.
const NET: Duration = Duration::from_secs(5);

/// How often a waiter asks where nobody can listen: behind a pooler, or without a free connection.
const WITHOUT_LISTENING: Duration = Duration::from_millis(250);

/// How long a server may take to let somebody listen: all waiters of its database wait for it, and can do without.
const OPENING: Duration = Duration::from_secs(10);

/// The channel of settlements that somebody waits for.
const CHANNEL: &str = "runledger_ended";

/// Ends that a slow waiter may miss before it asks by itself.
const BACKLOG: usize = 1024;

/// One wait for one run.
#[derive(Debug)]
pub(crate) struct Waiter<'a> {
    pool: &'a PgPool,
    run_id: Uuid,
    pause: Duration,
    ear: Option<Ear>,
}

/// Where a waiter listens.
#[derive(Debug)]
struct Ear {
    /// None where nobody can listen or tell.
    ends: Option<broadcast::Receiver<Uuid>>,
    _hub: Arc<Hub>,
}

impl<'a> Waiter<'a> {
    pub(crate) fn new(pool: &'a PgPool, run_id: Uuid) -> Self {
        Self { pool, run_id, pause: FIRST, ear: None }
    }

    /// Returns when the run may have ended: the caller looks.
    pub(crate) async fn wait(&mut self, left: Option<Duration>) {
        let within = |pause: Duration| left.map_or(pause, |left| pause.min(left));
        if self.pause <= LAST_SHORT {
            tokio::time::sleep(within(self.pause)).await;
            self.pause *= 2;
            return;
        }
        let Some(ear) = &mut self.ear else {
            let hub = hub_of(self.pool).await;
            let ends = hub.ends.upgrade().map(|ends| ends.subscribe());
            // The caller looks once more after this: a run that ended before the row was there does not notify.
            let announced = self.announce().await;
            self.ear = Some(Ear { ends: ends.filter(|_| announced), _hub: hub });
            return;
        };
        let Some(ends) = &mut ear.ends else {
            tokio::time::sleep(within(WITHOUT_LISTENING)).await;
            return;
        };
        if let Ok(Heard::Silence) = tokio::time::timeout(within(NET), hear(ends, self.run_id)).await {
            self.ear = None;
        }
    }

    /// Asks for a notification. False where this client may not ask, or cannot now.
    async fn announce(&self) -> bool {
        let announced = match acquire(self.pool).await {
            Ok(mut connection) => watch(&mut connection, self.run_id).await,
            Err(error) => Err(error),
        };
        if let Err(error) = &announced {
            tracing::debug!(%error, run_id = %self.run_id, "a wait for a result cannot be announced; the waiter asks instead");
        }
        announced.is_ok()
    }
}

enum Heard {
    /// The run may have ended.
    End,
    /// The listener is gone, with the runtime of whoever started it: another must be started.
    Silence,
}

async fn hear(ends: &mut broadcast::Receiver<Uuid>, run_id: Uuid) -> Heard {
    loop {
        match ends.recv().await {
            Ok(ended) if ended != run_id => {}
            // One that has fallen behind may have missed it.
            Ok(_) | Err(broadcast::error::RecvError::Lagged(_)) => return Heard::End,
            Err(broadcast::error::RecvError::Closed) => return Heard::Silence,
        }
    }
}

/// The shared listener of a database.
#[derive(Debug)]
struct Hub {
    /// Closed when the listener ends, which has the only strong one.
    ends: broadcast::WeakSender<Uuid>,
    listener: Option<tokio::task::JoinHandle<()>>,
}

impl Hub {
    /// Whether its listener goes on, or nobody can listen.
    fn lives(&self) -> bool {
        self.listener.as_ref().is_none_or(|listener| !listener.is_finished())
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        if let Some(listener) = &self.listener {
            listener.abort();
        }
    }
}

/// The hubs in use, by what identifies a database for a client. Waiters of one database that come together open one connection together; whoever waits
/// for another database does not wait for them.
type Hubs = Mutex<HashMap<String, Arc<tokio::sync::Mutex<Weak<Hub>>>>>;

async fn hub_of(pool: &PgPool) -> Arc<Hub> {
    static HUBS: OnceLock<Hubs> = OnceLock::new();
    let options = pool.connect_options();
    let database = format!(
        "{}:{}:{:?}:{:?}:{}",
        options.get_host(),
        options.get_port(),
        options.get_socket(),
        options.get_database(),
        options.get_username()
    );
    let hubs = HUBS.get_or_init(Hubs::default);
    let place = Arc::clone(hubs.lock().unwrap_or_else(PoisonError::into_inner).entry(database).or_default());
    let mut place = place.lock().await;
    if let Some(hub) = place.upgrade().filter(|hub| hub.lives()) {
        return hub;
    }
    let hub = Arc::new(open(pool).await);
    *place = Arc::downgrade(&hub);
    hub
}

async fn open(pool: &PgPool) -> Hub {
    let (ends, _) = broadcast::channel(BACKLOG);
    match answered(OPENING, listen(&pool.connect_options(), &[CHANNEL])).await {
        Ok(listener) => {
            let weak = ends.downgrade();
            Hub { ends: weak, listener: Some(task::spawn("ended", forward(listener, ends))) }
        }
        Err(error) => {
            tracing::debug!(%error, "nobody can listen for the ends of runs; waiters ask instead");
            Hub { ends: ends.downgrade(), listener: None }
        }
    }
}

#[expect(clippy::large_futures, reason = "one a database")]
async fn forward(mut listener: PgListener, ends: broadcast::Sender<Uuid>) {
    loop {
        match listener.try_recv().await {
            Ok(Some(notification)) => {
                if let Ok(run_id) = notification.payload().parse() {
                    // Nobody listening any more is no error.
                    let _ = ends.send(run_id);
                }
            }
            // Reconnected: what came in between is lost, and the waiters' own net catches it.
            Ok(None) => {}
            Err(error) => {
                tracing::debug!(%error, "the listener for the ends of runs starts again");
                tokio::time::sleep(WITHOUT_LISTENING).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::net::TcpListener;
    use std::pin::pin;
    use std::task::Poll;

    use sqlx::postgres::{PgConnectOptions, PgPoolOptions};

    use super::*;

    fn pool_before(server: &TcpListener) -> PgPool {
        let options = PgConnectOptions::new_without_pgpass()
            .host("127.0.0.1")
            .port(server.local_addr().unwrap().port())
            .username("nobody");
        PgPoolOptions::new().connect_lazy_with(options)
    }

    #[tokio::test]
    async fn a_database_that_is_silent_does_not_keep_the_waiters_of_another() {
        let [silent, closing] = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let (silent_pool, closing_pool) = (pool_before(&silent), pool_before(&closing));
        // Nobody accepts, so the connection stands and nothing comes back on it.
        let mut opening = pin!(hub_of(&silent_pool));
        poll_fn(|cx| {
            assert!(opening.as_mut().poll(cx).is_pending());
            Poll::Ready(())
        })
        .await;
        std::thread::spawn(move || while closing.accept().is_ok() {});
        let other = tokio::select! {
            biased;
            hub = hub_of(&closing_pool) => hub,
            _ = opening => unreachable!("a server that says nothing lets nobody listen"),
        };
        assert!(other.listener.is_none(), "the other one closes every connection");
    }
}
