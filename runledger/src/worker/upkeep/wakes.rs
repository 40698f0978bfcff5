//! Wakes runs that another transaction had locked: parents whose child has ended, and runs that
//! were just suspended. Their callers do not wait for the lock, because that would hold up a slot
//! or the commit queue.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use sqlx::PgConnection;
use tokio::sync::mpsc;
use uuid::Uuid;

use crate::connection::outage::{Outage, warn_outage};
use crate::connection::session::Session;
use crate::store::attempt::wait::wake;
use crate::store::locks::IfLocked;
use crate::store::worker::set_aside::SetAside;

/// The pauses between two tries to wake locked runs.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(200);

/// The pauses between two waits for the lock of a run. A wait that times out is an error in the
/// server's log.
const FIRST_PAUSE_OF_WAITS: Duration = Duration::from_secs(1);
const LONGEST_PAUSE_OF_WAITS: Duration = Duration::from_secs(10);

/// How many runs one transaction wakes.
const AT_ONCE: usize = 500;

/// Wakes runs until every [`Wakes`](crate::engine::wakes::Wakes) is dropped.
pub(crate) async fn carry_out(session: Session, mut owed: mpsc::UnboundedReceiver<Uuid>) {
    let (outage, mut left, mut pause) = (Outage::new(), Vec::new(), FIRST_PAUSE);
    let mut aside = SetAside::default();
    let mut waits = WaitsInLine::new();
    loop {
        let n_left = left.len();
        let is_open = if left.is_empty() {
            pause = FIRST_PAUSE;
            owed.recv_many(&mut left, AT_ONCE).await > 0
        } else {
            tokio::select! {
                n_owed = owed.recv_many(&mut left, AT_ONCE) => n_owed > 0,
                () = tokio::time::sleep(pause) => true,
            }
        };
        if left.len() > n_left {
            waits = WaitsInLine::new();
        }
        // A run may be added again while it is locked.
        let mut seen = HashSet::new();
        left.retain(|run_id| seen.insert(*run_id));
        // A run that many transactions lock in turn is never free without waiting.
        let is_patient = is_open && pause == LONGEST_PAUSE && waits.is_due();
        let set_aside: HashSet<Uuid> = aside.runs().into_iter().collect();
        let (later, now): (Vec<Uuid>, Vec<Uuid>) =
            left.iter().partition(|run_id| set_aside.contains(*run_id));
        match carry_out_once(&session, &mut aside, &now, is_patient).await {
            Ok(still_owed) => {
                let _ = outage.succeeded();
                left = later;
                left.extend(still_owed);
            }
            Err(error) => {
                warn_outage!(&outage, %error, n_owed = left.len(), "runs that were locked when something came for them are not woken yet");
            }
        }
        if !is_open {
            return;
        }
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// When the next wait for a lock is due.
struct WaitsInLine {
    next: Instant,
    pause: Duration,
}

impl WaitsInLine {
    fn new() -> Self {
        Self { next: Instant::now(), pause: FIRST_PAUSE_OF_WAITS }
    }

    /// Whether a wait is due now. If so, schedules the next one after a longer pause.
    fn is_due(&mut self) -> bool {
        let now = Instant::now();
        let is_due = self.next <= now;
        if is_due {
            self.next = now + self.pause;
            self.pause = (self.pause * 2).min(LONGEST_PAUSE_OF_WAITS);
        }
        is_due
    }
}

/// Tries to wake the runs, and returns the locked ones. Keeps no connection between two calls:
/// several workers on one pool would otherwise use it up.
async fn carry_out_once(
    session: &Session,
    aside: &mut SetAside,
    owed: &[Uuid],
    is_patient: bool,
) -> Result<Vec<Uuid>, sqlx::Error> {
    if owed.is_empty() {
        return Ok(Vec::new());
    }
    let mut connection = session.open().await?;
    let (mut locked, mut failed) = (Vec::new(), Vec::new());
    for owed in owed.chunks(AT_ONCE) {
        let wake =
            async |connection: &mut PgConnection, runs: &[Uuid]| wake(connection, runs, IfLocked::Skip).await;
        let spared = session.with_timeout(aside.spare(&mut connection, owed, wake)).await?;
        locked.extend(spared.done);
        failed.extend(spared.failed);
    }
    if is_patient && !locked.is_empty() {
        // The newest first: the others may stay locked for long. If it is locked too, it comes
        // last.
        let newest = locked.split_off(locked.len() - 1);
        let still_locked = session.with_timeout(wake(&mut connection, &newest, IfLocked::Queue)).await?;
        locked.splice(..0, still_locked);
    }
    locked.splice(..0, failed);
    Ok(locked)
}
