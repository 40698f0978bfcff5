//! The local guard: no body starts while this process may have been declared dead.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

/// When the database last acknowledged a heartbeat of this process, and how old that may be when a
/// body starts.
///
/// The limit is a part of the time after which other workers suspect this one, not of the lease. A
/// model check showed that a guard based on the lease lets stale bodies start.
#[derive(Clone, Debug)]
pub(crate) struct Liveness {
    acknowledged: watch::Receiver<Instant>,
    limit: Duration,
}

impl Liveness {
    /// Creates the guard, and the sender for the heartbeat. The heartbeat reports the instant at
    /// which it *sent* the acknowledged heartbeat.
    pub(crate) fn new(limit: Duration) -> (watch::Sender<Instant>, Self) {
        let (sender, acknowledged) = watch::channel(Instant::now());
        (sender, Self { acknowledged, limit })
    }

    /// Whether this process is known to be alive.
    pub(crate) fn is_proven(&self) -> bool {
        self.is_recent(&self.acknowledged.borrow())
    }

    fn is_recent(&self, acknowledged: &Instant) -> bool {
        acknowledged.elapsed() < self.limit
    }

    /// Returns when this process is known to be alive: at once, unless it was paused or
    /// disconnected.
    pub(crate) async fn guard(&self) {
        let mut acknowledged = self.acknowledged.clone();
        while !self.is_recent(&acknowledged.borrow_and_update()) {
            if acknowledged.changed().await.is_err() {
                // The heartbeat has ended: the worker shuts down, and no body may start any more.
                std::future::pending::<()>().await;
            }
        }
    }
}
