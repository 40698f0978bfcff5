//! Drops the databases of test processes that have died; their names carry the process id.
//!
//! Each process does it beside its tests. Under a runner that starts a process per test that may not be enough, because
//! a process of 50 ms drops fewer than it makes: beyond a number that the disk does not mind, making one database costs
//! dropping two.

use std::sync::Once;
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

/// Starts dropping everything that is left over, once in a process. The thread ends with the process, and whatever it
/// has not dropped is left to the next.
pub(super) fn sweep_in_background(admin_url: &str, prefix: &str) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let (admin_url, prefix) = (admin_url.to_owned(), prefix.to_owned());
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(sweep(&admin_url, &prefix))
        });
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
