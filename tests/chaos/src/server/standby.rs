//! A standby that streams from a server and can replace it.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Write};
use std::path::Path;
use std::time::{Duration, Instant};
use std::{fs, io};

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use sqlx::{Connection, PgConnection};

use super::cluster::{Cluster, ROLE};

/// The setting that makes commits wait for a standby.
const SYNCHRONOUS: &str = "synchronous_standby_names";

const PATIENCE: Duration = Duration::from_secs(60);

const POLL: Duration = Duration::from_millis(20);

/// The standby's process that receives the WAL.
const RECEIVER: &str = "select pid from pg_stat_activity where backend_type = 'walreceiver'";

impl Cluster {
    /// Creates and starts a standby of this server. Returns once it streams.
    ///
    /// # Errors
    /// The copy failed, the server refused the backup, or the standby did not start.
    pub async fn standby(&self) -> Result<Self> {
        let mut settings = self.settings().clone();
        // The new standby has no standby of its own to wait for.
        settings.lines.retain(|(name, _)| name != SYNCHRONOUS);
        let standby = Self::prepare(settings).await?;
        self.back_up(&standby).await?;
        standby.write_settings()?;
        standby.start().await?;
        self.wait_for("exists (select from pg_stat_replication where state = 'streaming')").await?;
        Ok(standby)
    }

    /// Copies the files of this server while it runs, as the PostgreSQL manual describes in "Making
    /// a Base Backup Using the Low Level API". Packages for embedding do not contain
    /// `pg_basebackup`.
    async fn back_up(&self, standby: &Self) -> Result<()> {
        // The server ends the backup when this session ends.
        let mut session = self.connect().await?;
        let backup = Backup::of(&mut session).await?;
        sqlx::query(backup.start).execute(&mut session).await?;
        standby.copy(&self.data(), &standby.data())?;
        let label: String = sqlx::query_scalar(backup.stop).fetch_one(&mut session).await?;
        session.close().await?;
        standby.write("backup_label", &label)?;
        standby.write("standby.signal", "")?;
        let primary = format!("user={ROLE} host={} port=5432", self.socket().display());
        standby.write("postgresql.auto.conf", &format!("primary_conninfo = '{primary}'\n"))
    }

    /// Copies a folder of a running server, which may delete files during the copy.
    fn copy(&self, from: &Path, to: &Path) -> Result<()> {
        self.make_private(to)?;
        for entry in fs::read_dir(from)? {
            let entry = entry?;
            let (name, at) = (entry.file_name(), to.join(entry.file_name()));
            let name = name.to_string_lossy();
            if NOT_COPIED.contains(&&*name) || name.starts_with("pgsql_tmp") {
                continue;
            }
            if EMPTY.contains(&&*name) {
                self.make_private(&at)?;
            } else if entry.file_type()?.is_dir() {
                self.copy(&entry.path(), &at)?;
            } else {
                match fs::copy(entry.path(), &at) {
                    Ok(_) => self.give(&at)?,
                    Err(error) if error.kind() == ErrorKind::NotFound => {}
                    Err(error) => return Err(error).with_context(|| format!("copy `{name}`")),
                }
            }
        }
        Ok(())
    }

    /// Appends to a file in the data folder.
    fn write(&self, name: &str, text: &str) -> Result<()> {
        let path = self.data().join(name);
        let append = || -> io::Result<()> {
            OpenOptions::new().create(true).append(true).open(&path)?.write_all(text.as_bytes())?;
            self.give(&path)
        };
        append().with_context(|| format!("write `{}`", path.display()))
    }

    /// Makes commits wait for a standby, or again only for the server's own disk. Returns once a
    /// standby is synchronous.
    ///
    /// # Errors
    /// The server refused, or no standby became synchronous.
    pub async fn wait_for_standby(&mut self, waits: bool) -> Result<()> {
        self.set(SYNCHRONOUS, if waits { "*" } else { "" }).await?;
        if waits {
            self.wait_for("exists (select from pg_stat_replication where sync_state = 'sync')").await?;
        }
        Ok(())
    }

    /// Pauses the receiver of a standby, without notice to the other server.
    ///
    /// # Errors
    /// The standby has no receiver.
    pub async fn stop_receiving(&self) -> Result<()> {
        self.signal_one(RECEIVER, Signal::STOP).await.map(drop)
    }

    /// Discards the buffers of a standby with a paused receiver. The standby recovers, and finds no
    /// server to receive from.
    ///
    /// # Errors
    /// The standby did not recover.
    pub async fn forget_received(&self) -> Result<()> {
        let pid = self.kill_one(RECEIVER).await?;
        self.wait_for(&format!("not exists (select from pg_stat_activity where pid = {pid})")).await
    }

    /// Makes a standby an independent server, on the next timeline.
    ///
    /// # Errors
    /// The standby was not promoted.
    pub async fn promote(&self) -> Result<()> {
        self.ready().await?;
        self.execute("select pg_promote(true, 60)").await?;
        self.wait_for("not pg_is_in_recovery()").await
    }

    async fn wait_for(&self, condition: &str) -> Result<()> {
        let began = Instant::now();
        loop {
            let seen = self.holds(condition).await;
            if seen.as_ref().is_ok_and(|holds| *holds) {
                return Ok(());
            }
            ensure!(began.elapsed() < PATIENCE, "`{condition}` does not become true: {seen:?}");
            tokio::time::sleep(POLL).await;
        }
    }

    async fn holds(&self, condition: &str) -> Result<bool> {
        let mut connection = self.connect().await?;
        let statement = sqlx::AssertSqlSafe(format!("select {condition}"));
        Ok(sqlx::query_scalar(statement).fetch_one(&mut connection).await?)
    }
}

/// Files that belong to the running process.
const NOT_COPIED: [&str; 2] = ["postmaster.pid", "postmaster.opts"];

/// Folders that the standby needs empty: it receives the WAL from the primary and rebuilds the rest
/// at its start.
const EMPTY: [&str; 8] = [
    "pg_wal",
    "pg_replslot",
    "pg_dynshmem",
    "pg_notify",
    "pg_serial",
    "pg_snapshots",
    "pg_stat_tmp",
    "pg_subtrans",
];

/// The statements that start and end a backup.
struct Backup {
    start: &'static str,
    /// Returns the text of the file `backup_label`.
    stop: &'static str,
}

impl Backup {
    async fn of(session: &mut PgConnection) -> Result<Self> {
        let version = "select current_setting('server_version_num')::int";
        let version: i32 = sqlx::query_scalar(version).fetch_one(session).await?;
        Ok(if version < 150_000 {
            Self {
                start: "select pg_start_backup('standby', true, false)",
                stop: "select labelfile from pg_stop_backup(false, false)",
            }
        } else {
            Self {
                start: "select pg_backup_start('standby', true)",
                stop: "select labelfile from pg_backup_stop(false)",
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use runledger::{App, Db, jobs};
    use runledger_tests::check::jobs::check_canary;

    use super::*;
    use crate::server::Settings;

    #[tokio::test(flavor = "multi_thread")]
    async fn verify_reads_runs_from_standby() -> Result<()> {
        let server = Cluster::start_new(Settings::new()?).await?;
        server.create_database("fleet").await?;
        check_canary().enqueue(&Db::connect(&server.url("fleet")).await?).await?;
        let standby = server.standby().await?;
        let looking = Db::connect_read_only(&standby.url("fleet")).await?;
        let verification = App::new(looking).with(jobs![check_canary]).verify().await?;
        assert_eq!((verification.n_runs, verification.is_ok()), (1, true));
        Ok(())
    }
}
