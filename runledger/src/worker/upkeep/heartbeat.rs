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

/// A search that takes longer than this, with its round trip, slows down the next ones.
const SLOW_SEARCH: Duration = Duration::from_millis(500);

/// Slow searches take at most 1/20 of the time, but are at most this long apart: deadlines wait for
/// them.
const SEARCH_SHARE: u32 = 20;
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// When a heartbeat also searches for work of maintenance. Such a search may pass millions of dead
/// rows, and heartbeats must not wait for it.
#[derive(Debug)]
struct SearchPace {
    next: Instant,
    /// Whether the last search failed. Maintenance must then search itself.
    is_unknown: bool,
}

impl SearchPace {
    fn new() -> Self {
        Self { next: Instant::now(), is_unknown: false }
    }

    fn is_due(&self, sent: Instant) -> bool {
        self.next <= sent
    }

    /// Applies a heartbeat with a search that was sent at this instant.
    fn searched(&mut self, sent: Instant, has_failed: bool) {
        let took = sent.elapsed();
        let pause = if has_failed || took > SLOW_SEARCH { took * SEARCH_SHARE } else { Duration::ZERO };
        self.next = Instant::now() + pause.min(LONGEST_PAUSE);
        self.is_unknown = has_failed;
    }

    /// A heartbeat without a search was late too: the search was not the reason.
    fn is_not_slow(&mut self) {
        self.next = Instant::now();
    }

    /// Completes the reply to a heartbeat without a search.
    fn complete(&mut self, reply: &mut HeartbeatReply) {
        if std::mem::take(&mut self.is_unknown) {
            reply.cancels_left = true;
            reply.pauses_left = true;
            reply.timers_due = true;
            reply.deadlines_due = true;
        }
    }
}

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
        let mut pace = SearchPace::new();
        loop {
            self.wake_runtime();
            let sent = Instant::now();
            let searches = pace.is_due(sent);
            let beat = self.once(&mut connection, searches);
            let answer = tokio::time::timeout(self.timings.suspect, beat).await;
            // The server ends a slow search before the answer is overdue here. Other errors say
            // nothing about the search.
            let is_late = matches!(&answer, Ok(Err(error)) if has_run_out_of_time(error));
            if searches && (is_late || matches!(answer, Ok(Ok(_)))) {
                pace.searched(sent, is_late);
            } else if is_late {
                pace.is_not_slow();
            }
            let pause = match answer {
                Ok(Ok(mut reply)) => {
                    if !searches {
                        pace.complete(&mut reply);
                    }
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

    async fn once(
        &self,
        connection: &mut Option<PgConnection>,
        searches: bool,
    ) -> Result<HeartbeatReply, sqlx::Error> {
        let connection = match connection {
            Some(connection) => connection,
            none => none.insert(self.connect().await?),
        };
        let overdue = self.timings.overdue().as_secs_f64();
        heartbeat(connection, self.worker_id, overdue, searches).await
    }

    async fn connect(&self) -> Result<PgConnection, sqlx::Error> {
        let mut connection = connect(&self.options).await?;
        for_heartbeat(&mut connection, self.timings.heartbeat, self.timings.suspect).await?;
        Ok(connection)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn slow_search_is_repeated_after_twenty_times_its_duration() {
        let mut pace = SearchPace::new();
        let sent = Instant::now();
        tokio::time::advance(Duration::from_millis(10)).await;
        pace.searched(sent, false);
        assert!(pace.is_due(Instant::now()), "a fast search costs nothing");
        let sent = Instant::now();
        tokio::time::advance(Duration::from_secs(1)).await;
        pace.searched(sent, false);
        assert!(!pace.is_due(Instant::now() + Duration::from_secs(19)));
        assert!(pace.is_due(Instant::now() + Duration::from_secs(20)));
    }

    #[tokio::test(start_paused = true)]
    async fn heartbeat_after_failed_search_skips_search() {
        let mut pace = SearchPace::new();
        let sent = Instant::now();
        tokio::time::advance(Duration::from_secs(4)).await;
        pace.searched(sent, true);
        assert!(!pace.is_due(Instant::now()) && pace.is_unknown);
        assert!(pace.is_due(Instant::now() + LONGEST_PAUSE));
        pace.is_not_slow();
        assert!(pace.is_due(Instant::now()), "the server was away");
    }
}
