//! What must hold at every second, asked of the database by somebody who is not of the fleet.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use runledger_tests::check::{Violations, progress};
use sqlx::{Connection, PgConnection};
use tokio::sync::{Mutex, OwnedMutexGuard, watch};
use tokio::task::JoinHandle;
use uuid::Uuid;

/// How often it asks.
const EVERY: Duration = Duration::from_secs(1);

/// How long an answer may take before the connection is given up: faults meet this one too.
const PATIENCE: Duration = Duration::from_secs(20);

/// How long something may stand that others will move while there are faults: longer than any fault lasts.
const BOUND: &str = "90 seconds";

/// Workers that are believed to live though they have said nothing for longer than any fault lasts.
const SILENT: &str = "
select format('worker %s has been silent since %s, and is not declared dead', worker_id, heartbeat_at)
from runledger.worker
where state <> 'dead' and heartbeat_at < clock_timestamp() - $1::text::interval";

/// The newest claim of each run that was held at some look.
pub type Claims = HashMap<Uuid, i32>;

/// Asks each second until it is ended.
#[derive(Debug)]
pub struct Monitor {
    claims: Arc<Mutex<Claims>>,
    stop: Arc<watch::Sender<bool>>,
    task: JoinHandle<(Violations, usize)>,
}

impl Monitor {
    /// Begins to watch the database at an address that no fault cuts off, but those of the server.
    #[must_use]
    pub fn start(url: &str) -> Self {
        let (stop, mut stopped) = watch::channel(false);
        let url = url.to_owned();
        let claims = Arc::<Mutex<Claims>>::default();
        let known = Arc::clone(&claims);
        let task = tokio::spawn(async move {
            let (mut seen, mut n_looks) = (BTreeSet::new(), 0);
            let mut connection = None;
            while !*stopped.borrow() {
                let mut claims = known.lock().await;
                let looked = tokio::time::timeout(PATIENCE, look(&url, &mut connection, &mut claims)).await;
                drop(claims);
                match looked {
                    Ok(Ok(violations)) => {
                        n_looks += 1;
                        seen.extend(violations);
                    }
                    // The server is down, or the session was ended: the next look is by another.
                    Ok(Err(_)) | Err(_) => connection = None,
                }
                // The sender lives until the end.
                let _ = tokio::time::timeout(EVERY, stopped.changed()).await;
            }
            (seen.into_iter().collect(), n_looks)
        });
        Self { claims, stop: Arc::new(stop), task }
    }

    /// Lets it look at nothing until what this gives is dropped: while a clock is set, or another server takes the place of the one that it knew
    /// the claims of.
    pub async fn pause(&self) -> OwnedMutexGuard<Claims> {
        Arc::clone(&self.claims).lock_owned().await
    }

    /// What it saw, and how often it looked.
    ///
    /// # Errors
    /// When it has panicked.
    pub async fn end(self) -> Result<(Violations, usize)> {
        let _ = self.stop.send(true);
        Ok(self.task.await?)
    }
}

async fn look(
    url: &str,
    connection: &mut Option<PgConnection>,
    claims: &mut Claims,
) -> Result<Violations, sqlx::Error> {
    let connection = match connection {
        Some(connection) => connection,
        None => connection.insert(PgConnection::connect(url).await?),
    };
    let mut violations = progress::lost_for(connection, BOUND).await?;
    violations.extend(sqlx::query_scalar::<_, String>(SILENT).bind(BOUND).fetch_all(&mut *connection).await?);
    let held: Vec<(Uuid, i32)> =
        sqlx::query_as("select run_id, claims from runledger.lease").fetch_all(connection).await?;
    for (run_id, now) in held {
        let before = claims.insert(run_id, now).unwrap_or_default();
        if now < before {
            violations.push(format!("run {run_id} is in claim {now} after claim {before}"));
        }
    }
    Ok(violations)
}
