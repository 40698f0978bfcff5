//! Observes every body in this process: counts it, logs it for tests, and kills the process on
//! request.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use runledger::{Context, Db, Error};
use uuid::Uuid;

use crate::screen::n_recorded;

/// The environment variable with a file to which each body appends its step's key, for tests.
const LOG: &str = "RUNLEDGER_EXAMPLE_LOG";

/// The pause between two polls of the recorded steps before the process is killed.
const LOOK: Duration = Duration::from_millis(5);

/// Observes the bodies of one run. Each body calls [`body`](Self::body) first.
#[derive(Debug)]
pub struct Witness {
    db: Db,
    run_id: Uuid,
    recorded_before: u64,
    crash_after: Option<u64>,
    n_begun: AtomicU64,
    log: Option<PathBuf>,
}

impl Witness {
    /// Creates a witness for a run with `recorded_before` steps. It kills the process after
    /// `crash_after` more steps.
    #[must_use]
    pub fn new(db: &Db, run_id: Uuid, recorded_before: u64, crash_after: Option<u64>) -> Self {
        let log = std::env::var_os(LOG).map(PathBuf::from);
        Self { db: db.clone(), run_id, recorded_before, crash_after, n_begun: AtomicU64::new(0), log }
    }

    /// Records the start of a body. The first body over the limit waits until all earlier ones are
    /// recorded, so that the number is exact, and then kills the process.
    ///
    /// # Errors
    /// If the database fails, or the log file cannot be written.
    pub async fn body(&self, context: &Context) -> Result<(), Error> {
        if let Some(limit) = self.crash_after
            && self.n_begun.fetch_add(1, Ordering::Relaxed) >= limit
        {
            while n_recorded(&self.db, self.run_id).await? < self.recorded_before + limit {
                tokio::time::sleep(LOOK).await;
            }
            kill_this_process(limit);
        }
        if let Some(log) = &self.log {
            let line = format!("{}\n", context.step_key().unwrap_or_default());
            OpenOptions::new().create(true).append(true).open(log)?.write_all(line.as_bytes())?;
        }
        Ok(())
    }
}

#[expect(
    clippy::print_stderr,
    reason = "the last words of the process are for the person who asked for them"
)]
fn kill_this_process(limit: u64) {
    use rustix::process::{Signal, getpid, kill_process};
    eprintln!(
        "\n\ncrash: this process has recorded {limit} steps and is killed now (SIGKILL)\nrun the command again, and the survey continues there"
    );
    if kill_process(getpid(), Signal::KILL).is_err() {
        std::process::abort();
    }
}
