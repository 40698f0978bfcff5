//! The control connection: it holds the session lock and receives notifications.

use std::sync::Arc;
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgListener, PgNotification};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, MissedTickBehavior};
use uuid::Uuid;

use crate::connection::db_timeout::{PING_LIMIT, with_timeout};
use crate::connection::outage::{Outage, Recovery, warn_outage};
use crate::connection::task;
use crate::store::session::listen;
use crate::store::worker::{asked_of, lock, lock_is_held, locked};
use crate::worker::in_flight::{InFlight, StopOrder};

/// The channel on which an enqueue wakes sleeping workers.
const READY: &str = "runledger_ready";

/// The channel for requests to cancel a running run.
const CANCEL: &str = "runledger_cancel";

/// The channel for requests to pause a running run.
const PAUSE: &str = "runledger_pause";

/// The channel that wakes resident runs when something they may wait for has arrived.
const NUDGE: &str = "runledger_nudge";

const CHANNELS: [&str; 4] = [READY, CANCEL, PAUSE, NUDGE];

/// How often the worker checks that the connection is alive and holds the lock.
const ASK: Duration = Duration::from_secs(15);

/// The pause before a lost connection is opened again.
const RECONNECT: Duration = Duration::from_millis(200);

/// A connection that holds a worker's session lock and listens.
pub(crate) struct Control {
    listener: PgListener,
    worker_id: i64,
}

impl Control {
    /// Connects, takes the lock and listens. Returns `None` if another session holds the worker's
    /// lock.
    pub(crate) async fn open(
        options: &PgConnectOptions,
        worker_id: i64,
    ) -> Result<Option<Self>, sqlx::Error> {
        let mut listener = listen(options, &CHANNELS).await?;
        if !lock(&mut listener, worker_id).await? {
            return Ok(None);
        }
        locked(&mut listener, worker_id).await?;
        Ok(Some(Self { listener, worker_id }))
    }

    /// Listens until the worker stops. Closing the connection frees the lock.
    pub(crate) async fn listen(
        mut self,
        options: PgConnectOptions,
        in_flight: Arc<InFlight>,
        wake: Arc<Notify>,
        mut stop: watch::Receiver<bool>,
    ) {
        let mut asking = tokio::time::interval_at(Instant::now() + ASK, ASK);
        asking.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let outage = Outage::new();
        loop {
            let heard = tokio::select! {
                heard = self.listener.try_recv() => heard,
                _ = asking.tick() => match self.holds_lock().await {
                    Ok(true) => {
                        if let Some(Recovery { n_failures, lasted }) = outage.succeeded() {
                            tracing::info!(n_failures, ?lasted, "the control connection is back");
                        }
                        continue;
                    }
                    // The listener reconnected silently, or did not get the lock before.
                    Ok(false) => Ok(None),
                    Err(error) => self.replace(&options, &error, &outage).await,
                },
                () = task::raised(&mut stop) => return,
            };
            match heard {
                Ok(Some(notification)) if [CANCEL, PAUSE].contains(&notification.channel()) => {
                    if let Ok(run_id) = notification.payload().parse()
                        && let Err(error) = self.look_for_requests(&in_flight, run_id).await
                    {
                        tracing::debug!(%error, "a request is left to the next heartbeat");
                        asking.reset_immediately();
                    }
                }
                Ok(Some(notification)) if notification.channel() == NUDGE => {
                    if let Ok(run_id) = notification.payload().parse() {
                        in_flight.wake(run_id);
                    }
                }
                Ok(Some(notification)) => {
                    if self.is_for_us(notification.payload()) {
                        wake.notify_one();
                    }
                }
                // The listener reconnected: the lock and all notifications in between are lost.
                Ok(None) => {
                    self.relock().await;
                    wake.notify_one();
                }
                Err(error) => {
                    warn_outage!(&outage, %error, "the control connection is lost; runs are found by polling until it is back");
                    tokio::time::sleep(RECONNECT).await;
                    // The listener may reconnect silently, without its lock.
                    asking.reset_immediately();
                }
            }
        }
    }

    /// Reads the requests to cancel or pause a run, and orders them. The notification alone is no
    /// order, because every role of the database can send one.
    async fn look_for_requests(&mut self, in_flight: &InFlight, run_id: Uuid) -> Result<(), sqlx::Error> {
        if !in_flight.has(run_id) {
            return Ok(());
        }
        let asked = with_timeout(PING_LIMIT, asked_of(&mut self.listener, run_id)).await?;
        if asked.cancel {
            in_flight.stop(run_id, StopOrder::Cancel);
        }
        if asked.pause {
            in_flight.stop(run_id, StopOrder::Pause);
        }
        Ok(())
    }

    /// Whether this session holds the worker's lock. Has a time limit, because a connection that a
    /// firewall has dropped never answers.
    async fn holds_lock(&mut self) -> Result<bool, sqlx::Error> {
        with_timeout(PING_LIMIT, lock_is_held(&mut self.listener)).await
    }

    /// Replaces a connection that does not answer, and reports it as lost.
    async fn replace(
        &mut self,
        options: &PgConnectOptions,
        error: &sqlx::Error,
        outage: &Outage,
    ) -> Result<Option<PgNotification>, sqlx::Error> {
        warn_outage!(&outage, %error, "the control connection does not answer; another takes its place");
        self.listener = with_timeout(PING_LIMIT, listen(options, &CHANNELS)).await?;
        Ok(None)
    }

    /// A notification names the worker that it wakes. An empty one wakes all.
    fn is_for_us(&self, payload: &str) -> bool {
        payload.is_empty() || payload.parse() == Ok(self.worker_id)
    }

    async fn relock(&mut self) {
        match with_timeout(PING_LIMIT, lock(&mut self.listener, self.worker_id)).await {
            Ok(true) => {
                if let Err(error) = with_timeout(PING_LIMIT, locked(&mut self.listener, self.worker_id)).await
                {
                    tracing::warn!(%error, "the session lock was taken again, but not noted");
                }
            }
            // The old session may live until the server notices its end. Until then only the
            // heartbeat proves that this worker is alive.
            Ok(false) => tracing::warn!("the session lock is still held by this worker's old session"),
            Err(error) => tracing::warn!(%error, "the session lock was not taken again"),
        }
    }
}
