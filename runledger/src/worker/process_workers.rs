//! The workers of this process on one database. A crash ends all of them. Therefore the trial of
//! one worker stops the claims of the others and waits for their runs.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use sqlx::postgres::PgConnectOptions;
use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};

use super::in_flight::InFlight;
use crate::store::attempt::checkpoint::Fence;
use crate::store::session::server::server_key;

/// The workers of this process with the same server address and database. Another name of the same
/// server counts as another server.
#[derive(Debug, Default)]
pub(crate) struct ProcessWorkers {
    in_flight: Mutex<Vec<Weak<InFlight>>>,
    /// A claim takes the read lock, a trial the write lock.
    claims: Arc<RwLock<()>>,
}

impl ProcessWorkers {
    /// Adds a worker, represented by its runs, to the workers of its database.
    pub(crate) fn with(in_flight: &Arc<InFlight>, options: &PgConnectOptions) -> Arc<Self> {
        static ALL: Mutex<BTreeMap<String, Weak<ProcessWorkers>>> = Mutex::new(BTreeMap::new());
        let name = format!("{}/{:?}", server_key(options), options.get_database());
        let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, workers| workers.strong_count() > 0);
        let workers = all.get(&name).and_then(Weak::upgrade).unwrap_or_default();
        all.insert(name, Arc::downgrade(&workers));
        drop(all);
        workers.in_flight().push(Arc::downgrade(in_flight));
        workers
    }

    /// Waits for the trial of another worker. No trial starts until the guard is dropped.
    pub(crate) async fn may_claim(&self) -> OwnedRwLockReadGuard<()> {
        Arc::clone(&self.claims).read_owned().await
    }

    /// Waits for claims and for the trial of another worker. Neither starts until the guard is
    /// dropped.
    pub(crate) async fn may_try(&self) -> OwnedRwLockWriteGuard<()> {
        Arc::clone(&self.claims).write_owned().await
    }

    /// Whether every other run of the process is older than `company` or has survived a trial.
    pub(crate) fn are_alone_with(&self, fence: Fence, company: Duration) -> bool {
        let mut in_flight = self.in_flight();
        in_flight.retain(|in_flight| in_flight.strong_count() > 0);
        in_flight.iter().filter_map(Weak::upgrade).all(|in_flight| in_flight.is_alone(fence, company))
    }

    fn in_flight(&self) -> MutexGuard<'_, Vec<Weak<InFlight>>> {
        // Nothing panics while it holds the lock.
        self.in_flight.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
