//! The heartbeat. It has its own thread, runtime and connection, so that no body and no full pool
//! can delay it.

use std::sync::Arc;
use std::time::Duration;

use sqlx::postgres::PgConnectOptions;
use sqlx::{Connection, PgConnection};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use crate::connection::outage::{Outage, Recovery, warn_outage};
use crate::connection::task;
use crate::store::session::{connect, for_heartbeat};
use crate::store::worker::{HeartbeatReply, heartbeat};
use crate::worker::in_flight::{InFlight, StopOrder};
use crate::worker::timings::Timings;

/// The pause before the next connection attempt.
const RECONNECT: Duration = Duration::from_millis(200);

/// Sends heartbeats until the worker stops.
pub(crate) struct Heartbeat {
    pub(crate) options: PgConnectOptions,
    pub(crate) worker_id: i64,
    pub(crate) timings: Timings,
    /// The runs in flight. Orders reach them without waiting for maintenance.
    pub(crate) in_flight: Arc<InFlight>,
    /// The replies for maintenance. If the channel is full, a reply is dropped: the next one
    /// carries the same information.
    pub(crate) replies: mpsc::Sender<HeartbeatReply>,
    /// When the last acknowledged heartbeat was sent.
    pub(crate) acknowledged: watch::Sender<Instant>,
    pub(crate) stop: watch::Receiver<bool>,
    /// The runtime of the worker's tasks.
    pub(crate) runtime: Handle,
}

/// Whether the server aborted the statement because of a time limit. The session still works; a new
/// session would also wait for the lock.
fn has_run_out_of_time(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(sqlx::error::DatabaseError::code);
    // `lock_not_available`, `query_canceled`
    code.is_some_and(|code| ["55P03", "57014"].contains(&code.as_ref()))
}

impl Heartbeat {
    /// Starts the thread. It ends after `stop`, or when the worker is dead.
    pub(crate) fn start(self) -> Result<(), std::io::Error> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        std::thread::Builder::new()
            .name("runledger-heartbeat".to_owned())
            .spawn(move || runtime.block_on(self.send_heartbeats()))?;
        Ok(())
    }

    async fn send_heartbeats(mut self) {
        let mut connection: Option<PgConnection> = None;
        let mut next = Instant::now();
        let outage = Outage::new();
        loop {
            self.wake_runtime();
            let sent = Instant::now();
            let pause = match tokio::time::timeout(self.timings.suspect, self.once(&mut connection)).await {
                Ok(Ok(reply)) => {
                    let alive = reply.alive;
                    if let Some(Recovery { n_failures, lasted }) = outage.succeeded() {
                        tracing::info!(n_failures, ?lasted, "heartbeats are acknowledged again");
                    }
                    if alive {
                        // The send fails if the worker stops and the receiver is gone.
                        let _ = self.acknowledged.send(sent);
                        self.stop_requested_runs(&reply);
                    }
                    let _ = if alive {
                        self.replies.try_send(reply).ok()
                    } else {
                        self.replies.send(reply).await.ok()
                    };
                    if !alive {
                        return;
                    }
                    next = (next + self.timings.heartbeat).max(sent);
                    next.saturating_duration_since(Instant::now())
                }
                Ok(Err(error)) => {
                    warn_outage!(&outage, %error, "a heartbeat was not acknowledged; no body starts until one is");
                    if !has_run_out_of_time(&error) {
                        connection = None;
                    }
                    RECONNECT
                }
                Err(_) => {
                    warn_outage!(
                        &outage,
                        "a heartbeat was not acknowledged in time; no body starts until one is"
                    );
                    connection = None;
                    RECONNECT
                }
            };
            if tokio::time::timeout(pause, task::raised(&mut self.stop)).await.is_ok() {
                break;
            }
        }
        if let Some(connection) = connection {
            // An error while closing changes nothing.
            let _ = connection.close().await;
        }
    }

    /// Wakes a thread of the worker's runtime, so that it polls the I/O driver. A body may block
    /// the thread that polled the driver last, and tokio does not hand the driver to a sleeping
    /// thread.
    fn wake_runtime(&self) {
        self.runtime.spawn(std::future::ready(()));
    }

    /// Sends requested cancels and pauses to the runs in flight.
    fn stop_requested_runs(&self, reply: &HeartbeatReply) {
        for run_id in &reply.cancels {
            self.in_flight.stop(*run_id, StopOrder::Cancel);
        }
        for run_id in &reply.pauses {
            self.in_flight.stop(*run_id, StopOrder::Pause);
        }
    }

    async fn once(&self, connection: &mut Option<PgConnection>) -> Result<HeartbeatReply, sqlx::Error> {
        let connection = match connection {
            Some(connection) => connection,
            none => none.insert(self.connect().await?),
        };
        let overdue = self.timings.overdue().as_secs_f64();
        heartbeat(connection, self.worker_id, overdue).await
    }

    async fn connect(&self) -> Result<PgConnection, sqlx::Error> {
        let mut connection = connect(&self.options).await?;
        for_heartbeat(&mut connection, self.timings.heartbeat, self.timings.suspect).await?;
        Ok(connection)
    }
}
