//! Waits for the end of a run from outside, without holding a connection of the pool.
//!
//! A waiter first polls a few times in quick succession, because most waits are short. Then it asks
//! the database to notify. All waiters of a process on one database share one listening connection.
//! A notification is a hint, so the waiter still polls rarely as a safety sweep.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};
use std::time::Duration;

use sqlx::PgPool;
use sqlx::postgres::{PgConnectOptions, PgListener};
use tokio::sync::{broadcast, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior};
use uuid::Uuid;

use crate::connection::db_timeout::{PING_LIMIT, with_timeout};
use crate::connection::task;
use crate::store::run::inspect::watch;
use crate::store::session::failover::ServerEpoch;
use crate::store::session::server::server_key;
use crate::store::session::{acquire, answers, listen};

/// The first pause. It doubles up to [`LAST_SHORT`]; after that the waiter listens.
const FIRST: Duration = Duration::from_millis(1);
const LAST_SHORT: Duration = Duration::from_millis(32);

/// How often a listening waiter still polls, and how often the listener checks its connection.
const SAFETY_POLL: Duration = Duration::from_secs(5);

/// How often a waiter polls if listening is not possible: behind a pooler, or without a free
/// connection.
const POLL: Duration = Duration::from_millis(250);

/// How long no waiter tries to listen after a failure to listen.
const UNAVAILABLE_FOR: Duration = Duration::from_secs(5);

/// The limit for opening the listening connection. All waiters of the database poll until it is
/// open.
const OPENING: Duration = Duration::from_secs(10);

/// The channel that announces the end of watched runs.
const CHANNEL: &str = "runledger_ended";

/// How many notifications a slow waiter may fall behind before it polls.
const BACKLOG: usize = 1024;

/// One wait for one run.
#[derive(Debug)]
pub(crate) struct Waiter<'a> {
    pool: &'a PgPool,
    run_id: Uuid,
    pause: Duration,
    subscription: Option<Subscription>,
}

/// How a waiter learns of an end. Each variant keeps the shared listener alive.
#[derive(Debug)]
enum Subscription {
    /// The listener is being opened.
    Opening(Arc<Listener>),
    Listening(broadcast::Receiver<Uuid>, #[expect(dead_code, reason = "held, not read")] Arc<Listener>),
    /// The waiter cannot listen or be notified until this instant.
    Unavailable(Instant, #[expect(dead_code, reason = "held, not read")] Arc<Listener>),
}

impl<'a> Waiter<'a> {
    pub(crate) fn new(pool: &'a PgPool, run_id: Uuid) -> Self {
        Self { pool, run_id, pause: FIRST, subscription: None }
    }

    /// Returns when the run may have ended. The caller then polls.
    pub(crate) async fn wait(&mut self, left: Option<Duration>) {
        let within = |pause: Duration| left.map_or(pause, |left| pause.min(left));
        if self.pause <= LAST_SHORT {
            tokio::time::sleep(within(self.pause)).await;
            self.pause *= 2;
            return;
        }
        match self.subscription.get_or_insert_with(|| Subscription::Opening(LISTENERS.of(self.pool))) {
            Subscription::Opening(shared) => {
                let shared = Arc::clone(shared);
                // While the listener is being opened, the waiter keeps polling.
                if let Ok(opened) = tokio::time::timeout(within(POLL), shared.opened()).await {
                    self.subscription = self.join(shared, opened).await;
                }
            }
            Subscription::Listening(ends, _) => {
                if let Ok(Notification::Silence) =
                    tokio::time::timeout(within(SAFETY_POLL), next_notification(ends, self.run_id)).await
                {
                    self.subscription = None;
                }
            }
            Subscription::Unavailable(until, _) => {
                tokio::time::sleep(within(POLL)).await;
                if *until <= Instant::now() {
                    self.subscription = None;
                }
            }
        }
    }

    /// The caller must poll once more afterwards: a run that ended before the row was written does
    /// not notify.
    async fn join(&self, shared: Arc<Listener>, opened: Option<Opened>) -> Option<Subscription> {
        let ends = match opened? {
            Opened::Listening(ends) => ends.upgrade()?.subscribe(),
            Opened::Unavailable(until) => return Some(Subscription::Unavailable(until, shared)),
        };
        let is_announced = self.announce().await;
        Some(if is_announced {
            Subscription::Listening(ends, shared)
        } else {
            Subscription::Unavailable(Instant::now() + UNAVAILABLE_FOR, shared)
        })
    }

    /// Asks for a notification. False if this client may not write the request, or cannot now.
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

enum Notification {
    /// The run may have ended.
    End,
    /// The listener is gone, together with the runtime that started it. The waiter must start
    /// another.
    Silence,
}

async fn next_notification(ends: &mut broadcast::Receiver<Uuid>, run_id: Uuid) -> Notification {
    loop {
        match ends.recv().await {
            Ok(ended) if ended != run_id => {}
            // A receiver that has fallen behind may have missed the notification.
            Ok(_) | Err(broadcast::error::RecvError::Lagged(_)) => return Notification::End,
            Err(broadcast::error::RecvError::Closed) => return Notification::Silence,
        }
    }
}

/// The shared listener of one database.
#[derive(Debug)]
struct Listener {
    /// `None` while it is being opened. Closed when the listener ends.
    opened: watch::Receiver<Option<Opened>>,
    listener: JoinHandle<()>,
}

/// The result of opening a listener.
#[derive(Clone, Debug)]
enum Opened {
    /// The listener task holds the only strong sender.
    Listening(broadcast::WeakSender<Uuid>),
    /// Listening failed. No waiter tries again before this instant.
    Unavailable(Instant),
}

impl Listener {
    fn open(pool: &PgPool) -> Self {
        let (open, opened) = watch::channel(None);
        Self { opened, listener: task::spawn("ended", serve(pool.connect_options(), open)) }
    }

    /// Waits until the listener is open or has failed. `None` if it ended with the runtime that
    /// started it.
    async fn opened(&self) -> Option<Opened> {
        self.opened.clone().wait_for(Option::is_some).await.ok()?.clone()
    }

    /// Whether the listener is running, or failed too recently to try again.
    fn lives(&self) -> bool {
        !self.listener.is_finished()
            || matches!(*self.opened.borrow(), Some(Opened::Unavailable(until)) if until > Instant::now())
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.listener.abort();
    }
}

/// The listeners in use, by the database they connect to.
#[derive(Debug, Default)]
struct Listeners(Mutex<HashMap<String, Weak<Listener>>>);

static LISTENERS: LazyLock<Listeners> = LazyLock::new(Listeners::default);

impl Listeners {
    fn of(&self, pool: &PgPool) -> Arc<Listener> {
        let options = pool.connect_options();
        let database =
            format!("{}/{:?} {}", server_key(&options), options.get_database(), options.get_username());
        let mut listeners = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(shared) = listeners.get(&database).and_then(Weak::upgrade).filter(|shared| shared.lives())
        {
            return shared;
        }
        // A program may wait on many databases in turn, so remove unused entries.
        listeners.retain(|_, shared| shared.strong_count() > 0);
        let shared = Arc::new(Listener::open(pool));
        listeners.insert(database, Arc::downgrade(&shared));
        shared
    }
}

/// Opens the listener and forwards notifications.
async fn serve(options: Arc<PgConnectOptions>, open: watch::Sender<Option<Opened>>) {
    let epoch = ServerEpoch::begin(&options);
    match with_timeout(OPENING, listen(&options, &[CHANNEL])).await {
        Ok(listener) => {
            let (ends, _) = broadcast::channel(BACKLOG);
            open.send_replace(Some(Opened::Listening(ends.downgrade())));
            Box::pin(forward(listener, epoch, &options, ends)).await;
        }
        Err(error) => {
            tracing::debug!(%error, "nobody can listen for the ends of runs; waiters ask instead");
            open.send_replace(Some(Opened::Unavailable(Instant::now() + UNAVAILABLE_FOR)));
        }
    }
}

async fn forward(
    mut listener: PgListener,
    mut epoch: ServerEpoch,
    options: &PgConnectOptions,
    ends: broadcast::Sender<Uuid>,
) {
    let mut asking = tokio::time::interval_at(Instant::now() + SAFETY_POLL, SAFETY_POLL);
    asking.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let heard = tokio::select! {
            heard = listener.try_recv() => heard,
            // A connection that a firewall dropped, or that leads to a replaced server, stays
            // silent forever.
            _ = asking.tick() => {
                if !epoch.is_over() && with_timeout(PING_LIMIT, answers(&mut listener)).await.is_ok() {
                    continue;
                }
                let next = ServerEpoch::begin(options);
                match with_timeout(OPENING, listen(options, &[CHANNEL])).await {
                    Ok(another) => {
                        tracing::debug!("another connection listens for the ends of runs");
                        (listener, epoch) = (another, next);
                        Ok(None)
                    }
                    Err(error) => Err(error),
                }
            }
        };
        match heard {
            Ok(Some(notification)) => {
                if let Ok(run_id) = notification.payload().parse() {
                    // A send without receivers is not an error.
                    let _ = ends.send(run_id);
                }
            }
            // Reconnected: notifications in between are lost. The safety poll of the waiters covers
            // them.
            Ok(None) => {}
            Err(error) => {
                tracing::debug!(%error, "the listener for the ends of runs starts again");
                tokio::time::sleep(POLL).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use sqlx::postgres::PgPoolOptions;

    use super::*;

    fn pool_before(server: &TcpListener) -> PgPool {
        let options = PgConnectOptions::new_without_pgpass()
            .host("127.0.0.1")
            .port(server.local_addr().unwrap().port())
            .username("nobody");
        PgPoolOptions::new().connect_lazy_with(options)
    }

    fn server() -> TcpListener {
        TcpListener::bind("127.0.0.1:0").unwrap()
    }

    #[tokio::test]
    async fn silent_database_does_not_block_waiters_of_other_database() {
        let (silent, closing) = (server(), server());
        // Nobody accepts, so the connection stays open and silent.
        let opening = LISTENERS.of(&pool_before(&silent));
        let other = LISTENERS.of(&pool_before(&closing));
        std::thread::spawn(move || while closing.accept().is_ok() {});
        let opened = tokio::select! {
            biased;
            opened = other.opened() => opened,
            _ = opening.opened() => unreachable!("a server that says nothing lets nobody listen"),
        };
        assert!(matches!(opened, Some(Opened::Unavailable(_))), "the other one closes every connection");
    }

    #[tokio::test(start_paused = true)]
    async fn waiter_without_limit_polls_while_listener_cannot_open() {
        let silent = server();
        let pool = pool_before(&silent);
        let mut waiter = Waiter::new(&pool, Uuid::now_v7());
        let began = Instant::now();
        let mut n_looks = 0;
        while began.elapsed() < OPENING / 2 {
            waiter.wait(None).await;
            n_looks += 1;
        }
        assert!(n_looks > 10, "it looked {n_looks} times in {:?}", began.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn failed_listener_is_replaced_after_pause_while_still_in_use() {
        let silent = server();
        let (pool, listeners) = (pool_before(&silent), Listeners::default());
        let first = listeners.of(&pool);
        assert!(matches!(first.opened().await, Some(Opened::Unavailable(_))));
        assert!(Arc::ptr_eq(&first, &listeners.of(&pool)), "not at once");
        tokio::time::advance(UNAVAILABLE_FOR).await;
        let second = listeners.of(&pool);
        assert!(!Arc::ptr_eq(&first, &second));
        assert!(Arc::ptr_eq(&second, &listeners.of(&pool)), "together");
    }

    #[tokio::test(start_paused = true)]
    async fn long_wait_retries_listening() {
        let silent = server();
        let pool = pool_before(&silent);
        let mut waiter = Waiter::new(&pool, Uuid::now_v7());
        let mut n_tries = 0;
        let began = Instant::now();
        while began.elapsed() < (OPENING + UNAVAILABLE_FOR) * 3 {
            let was_open = waiter.subscription.is_some();
            waiter.wait(None).await;
            n_tries += usize::from(!was_open && waiter.subscription.is_some());
        }
        assert!(n_tries > 1, "it tried {n_tries} times");
    }

    #[tokio::test]
    async fn listener_of_database_without_waiters_is_dropped() {
        let (one, other) = (server(), server());
        let listeners = Listeners::default();
        drop(listeners.of(&pool_before(&one)));
        let _kept = listeners.of(&pool_before(&other));
        assert_eq!(listeners.0.lock().unwrap().len(), 1);
    }
}
