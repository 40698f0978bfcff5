//! The workers of this process on one database. A crash ends all of them, so a trial excludes the claims of the
//! others, and waits for their runs.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use sqlx::postgres::PgConnectOptions;
use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};

use super::held::Held;
use crate::store::checkpoint::Fence;
use crate::store::server::server_key;

/// The workers of this process with one address and database. Another name of the same server is not recognized.
#[derive(Debug, Default)]
pub(crate) struct ProcessWorkers {
    held: Mutex<Vec<Weak<Held>>>,
    /// A claim reads, a trial writes.
    claims: Arc<RwLock<()>>,
}

impl ProcessWorkers {
    /// Adds a worker, by its runs, to those of its database.
    pub(crate) fn with(held: &Arc<Held>, options: &PgConnectOptions) -> Arc<Self> {
        static ALL: Mutex<BTreeMap<String, Weak<ProcessWorkers>>> = Mutex::new(BTreeMap::new());
        let name = format!("{}/{:?}", server_key(options), options.get_database());
        let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, workers| workers.strong_count() > 0);
        let workers = all.get(&name).and_then(Weak::upgrade).unwrap_or_default();
        all.insert(name, Arc::downgrade(&workers));
        drop(all);
        workers.held().push(Arc::downgrade(held));
        workers
    }

    /// Waits for the trial of another worker, and keeps the next from beginning until the guard is dropped.
    pub(crate) async fn may_claim(&self) -> OwnedRwLockReadGuard<()> {
        Arc::clone(&self.claims).read_owned().await
    }

    /// Waits for claims and for the trial of another worker, and keeps the next from beginning until the guard is
    /// dropped.
    pub(crate) async fn may_try(&self) -> OwnedRwLockWriteGuard<()> {
        Arc::clone(&self.claims).write_owned().await
    }

    /// Whether every other run of the process is older than `company` or has outlived a trial.
    pub(crate) fn are_alone_with(&self, fence: Fence, company: Duration) -> bool {
        let mut held = self.held();
        held.retain(|held| held.strong_count() > 0);
        held.iter().filter_map(Weak::upgrade).all(|held| held.is_alone(fence, company))
    }

    fn held(&self) -> MutexGuard<'_, Vec<Weak<Held>>> {
        // Nothing panics while it holds the lock.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
