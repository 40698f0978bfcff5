//! Drops the databases of tests that have ended, and of test processes that have died: their names carry the process id.
//!
//! A thread of each process does it beside the tests. Under a runner that starts a process per test that may not be
//! enough, because a process of 50 ms drops fewer than it makes: beyond a number that the disk does not mind, making one
//! database costs dropping two.

use std::cell::RefCell;
use std::sync::OnceLock;
use std::sync::mpsc::{self, Sender};
use std::thread;

use rustix::process::{Pid, test_kill_process};
use sqlx::{Connection, PgConnection};

use super::{AnyError, execute};

/// Half a gigabyte, at 8 MB each.
const TOLERATED: usize = 64;

/// More than one, so that the number goes down.
const DROPPED_PER_MADE: usize = 2;

/// Templates of migrations that have changed since take 8 MB each; those of other branches are wanted again.
const KEPT_TEMPLATES: i64 = 16;

/// The databases that this thread has made. The harness runs each test in a thread of its own, which ends with the test.
struct Made(RefCell<Vec<String>>);

thread_local! {
    static MADE: Made = const { Made(RefCell::new(Vec::new())) };
}

/// The way to the thread that drops databases.
static ENDED: OnceLock<Sender<String>> = OnceLock::new();

impl Drop for Made {
    fn drop(&mut self) {
        let Some(ended) = ENDED.get() else { return };
        for name in self.0.take() {
            // Where that thread has failed, the next process drops it.
            let _ = ended.send(name);
        }
    }
}

/// Drops this database once the calling thread has ended.
pub(super) fn drop_after_this_thread(name: &str) {
    MADE.with(|made| made.0.borrow_mut().push(name.to_owned()));
}

/// Starts the thread that drops everything that is left over, then the databases of this process's tests as they end. It
/// ends with the process, and whatever it has not dropped is left to the next.
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

/// Drops a few if there are too many.
pub(super) async fn relieve(admin: &mut PgConnection, prefix: &str) -> Result<(), AnyError> {
    let names = find(admin, prefix).await?;
    let n_dropped = if names.len() > TOLERATED { DROPPED_PER_MADE } else { 0 };
    drop_all(admin, &names[..n_dropped]).await;
    Ok(())
}

/// Drops everything that is left over.
pub(super) async fn sweep(admin_url: &str, prefix: &str) -> Result<(), AnyError> {
    let mut admin = PgConnection::connect(admin_url).await?;
    let names = find(&mut admin, prefix).await?;
    drop_all(&mut admin, &names).await;
    Ok(admin.close().await?)
}

/// The databases of dead processes, and all but the newest templates. Each process begins elsewhere in the list, so
/// that they do not wait for one another.
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

/// Another process may drop the same one in the same moment, which is a failure to one of them and no harm.
async fn drop_all(admin: &mut PgConnection, names: &[String]) {
    for name in names {
        let _ = execute(admin, format!("drop database if exists {name} with (force)")).await;
    }
}

/// Whether the process that the name tells of has died. An id that another process has now says no, until that has died
/// too.
pub(super) fn is_left_over(name: &str, prefix: &str) -> bool {
    let pid = name.strip_prefix(prefix).and_then(|rest| rest.split('_').next());
    let Some(pid) = pid.and_then(|pid| pid.parse().ok()).and_then(Pid::from_raw) else { return false };
    test_kill_process(pid) == Err(rustix::io::Errno::SRCH)
}
