//! Wake-ups that are owed: a run has ended while another transaction kept its parent locked. The end does not wait
//! for the parent, or it would keep its slot, and the journal, from other runs.

use std::time::Duration;

use sqlx::Postgres;
use sqlx::pool::PoolConnection;
use tokio::sync::mpsc;

use super::outage::{Outage, warn_outage};
use super::serve::Session;
use crate::store::locks::IfLocked;
use crate::store::wait::{OwedWake, wake};

/// The pauses between two looks at locked parents.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(200);

/// How long a connection is kept for the next wake-up.
const KEPT: Duration = Duration::from_secs(10);

/// How many wake-ups one transaction carries out.
const AT_ONCE: usize = 500;

/// Takes wake-ups that are owed. Cloning is cheap.
#[derive(Clone, Debug)]
pub(crate) struct Wakes(mpsc::UnboundedSender<OwedWake>);

impl Wakes {
    pub(crate) fn new() -> (Self, mpsc::UnboundedReceiver<OwedWake>) {
        let (owe, owed) = mpsc::unbounded_channel();
        (Self(owe), owed)
    }

    /// Notes wake-ups. Where the worker has stopped, the net of another one finds them.
    pub(crate) fn owe(&self, owed: impl IntoIterator<Item = OwedWake>) {
        for wake in owed {
            let _ = self.0.send(wake);
        }
    }
}

/// Carries out wake-ups until every [`Wakes`] is dropped.
pub(crate) async fn carry_out(session: Session, mut owed: mpsc::UnboundedReceiver<OwedWake>) {
    let (outage, mut left, mut pause, mut connection) = (Outage::new(), Vec::new(), FIRST_PAUSE, None);
    loop {
        let is_open = if left.is_empty() {
            pause = FIRST_PAUSE;
            let next = owed.recv_many(&mut left, AT_ONCE);
            match &connection {
                None => next.await > 0,
                Some(_) => match tokio::time::timeout(KEPT, next).await {
                    Ok(n_owed) => n_owed > 0,
                    Err(_) => {
                        connection = None;
                        continue;
                    }
                },
            }
        } else {
            tokio::select! {
                n_owed = owed.recv_many(&mut left, AT_ONCE) => n_owed > 0,
                () = tokio::time::sleep(pause) => true,
            }
        };
        // A parent that many lock in turn is never free at a look: the last in line waits for it.
        let is_patient = is_open && pause == LONGEST_PAUSE;
        match carry_out_once(&session, &mut connection, &left, is_patient).await {
            Ok(locked) => {
                let _ = outage.succeeded();
                left = locked;
            }
            Err(error) => {
                connection = None;
                warn_outage!(&outage, %error, n_owed = left.len(), "parents of ended runs are not woken yet");
            }
        }
        if !session.has_room() {
            connection = None;
        }
        if !is_open {
            return;
        }
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Returns what is still owed.
async fn carry_out_once(
    session: &Session,
    connection: &mut Option<PoolConnection<Postgres>>,
    owed: &[OwedWake],
    is_patient: bool,
) -> Result<Vec<OwedWake>, sqlx::Error> {
    if owed.is_empty() {
        return Ok(Vec::new());
    }
    let connection = match connection {
        Some(connection) => connection,
        none => none.insert(session.open().await?),
    };
    let mut locked = Vec::new();
    for owed in owed.chunks(AT_ONCE) {
        locked.extend(session.answered(wake(connection, owed, IfLocked::Skip)).await?);
    }
    if is_patient && let Some(first) = locked.first().copied() {
        let of_one: Vec<OwedWake> =
            locked.iter().copied().filter(|owed| owed.parent == first.parent).collect();
        locked.retain(|owed| owed.parent != first.parent);
        // Behind the others, if it is still locked.
        locked.extend(session.answered(wake(connection, &of_one, IfLocked::Queue)).await?);
    }
    Ok(locked)
}
