//! Drops the databases of tests that have ended and of test processes that have died. Their names
//! contain the process id.
//!
//! In each process, a thread does this beside the tests. That may not be enough under a runner that
//! starts one process per test: a process of 50 ms drops fewer databases than it creates. Above
//! [`TOLERATED`] databases, creating one also drops two.

use std::cell::RefCell;
use std::sync::OnceLock;
use std::sync::mpsc::{self, Sender};
use std::thread;

use rustix::process::{Pid, test_kill_process};
use sqlx::{Connection, PgConnection};

use super::{AnyError, execute};

/// Half a gigabyte, at 8 MB each.
const TOLERATED: usize = 64;

/// More than one, so that the number of databases falls.
const DROPPED_PER_MADE: usize = 2;

/// Old templates take 8 MB each. Those of other branches are used again.
const KEPT_TEMPLATES: i64 = 16;

/// The databases that this thread has created. The harness runs each test in its own thread, which
/// ends with the test.
struct Made(RefCell<Vec<String>>);

thread_local! {
    static MADE: Made = const { Made(RefCell::new(Vec::new())) };
}

/// Sends names to the thread that drops databases.
static ENDED: OnceLock<Sender<String>> = OnceLock::new();

impl Drop for Made {
    fn drop(&mut self) {
        let Some(ended) = ENDED.get() else { return };
        for name in self.0.take() {
            // If that thread has failed, the next process drops the database.
            let _ = ended.send(name);
        }
    }
}

/// Drops this database once the calling thread has ended.
pub(super) fn drop_after_this_thread(name: &str) {
    MADE.with(|made| made.0.borrow_mut().push(name.to_owned()));
}

/// Starts the thread that drops all leftovers, then the databases of this process's tests as they
/// end. The thread ends with the process, and leaves the rest to the next one.
pub(super) fn sweep_in_background(admin_url: &str, prefix: &str) {
    ENDED.get_or_init(|| {
        let (ended, names) = mpsc::channel();
        let (admin_url, prefix) = (admin_url.to_owned(), prefix.to_owned());
        thread::spawn(move || -> Result<(), AnyError> {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(sweep(&admin_url, &prefix))?;
            let mut admin = runtime.block_on(PgConnection::connect(&admin_url))?;
            for name in names {
                runtime.block_on(drop_all(&mut admin, &[name]));
            }
            Ok(())
        });
        ended
    });
}

/// Drops a few databases if there are too many.
pub(super) async fn relieve(admin: &mut PgConnection, prefix: &str) -> Result<(), AnyError> {
    let names = find(admin, prefix).await?;
    let n_dropped = if names.len() > TOLERATED { DROPPED_PER_MADE } else { 0 };
    drop_all(admin, &names[..n_dropped]).await;
    Ok(())
}

/// Drops all leftovers.
pub(super) async fn sweep(admin_url: &str, prefix: &str) -> Result<(), AnyError> {
    let mut admin = PgConnection::connect(admin_url).await?;
    let names = find(&mut admin, prefix).await?;
    drop_all(&mut admin, &names).await;
    Ok(admin.close().await?)
}

/// Returns the databases of dead processes, and all but the newest templates. Each process starts
/// at another point of the list, so that processes do not wait for one another.
async fn find(admin: &mut PgConnection, prefix: &str) -> Result<Vec<String>, sqlx::Error> {
    let made = "select datname::text from pg_database where starts_with(datname, $1)";
    let mut names: Vec<String> = sqlx::query_scalar(made).bind(prefix).fetch_all(&mut *admin).await?;
    names.retain(|name| is_left_over(name, prefix));

    let templates = "select datname::text from pg_database where starts_with(datname, 'rl_t_') order by oid desc offset $1";
    names.extend(sqlx::query_scalar::<_, String>(templates).bind(KEPT_TEMPLATES).fetch_all(admin).await?);

    let start = usize::try_from(std::process::id()).unwrap_or_default() % names.len().max(1);
    names.rotate_left(start);
    Ok(names)
}

/// Another process may drop the same database at the same time. The failure does no harm.
async fn drop_all(admin: &mut PgConnection, names: &[String]) {
    for name in names {
        let _ = execute(admin, format!("drop database if exists {name} with (force)")).await;
    }
}

/// Whether the process in the name has died. If another process has its id now, the database waits
/// until that one has died too.
pub(super) fn is_left_over(name: &str, prefix: &str) -> bool {
    let pid = name.strip_prefix(prefix).and_then(|rest| rest.split('_').next());
    let Some(pid) = pid.and_then(|pid| pid.parse().ok()).and_then(Pid::from_raw) else { return false };
    test_kill_process(pid) == Err(rustix::io::Errno::SRCH)
}
