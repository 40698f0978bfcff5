//! One server: created, started, stopped in every way, and deleted when dropped.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, lchown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command as StdCommand, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tokio::process::Command;

use super::settings::{Disk, Settings};
use super::volume::Volume;

/// The role that owns everything.
pub(super) const ROLE: &str = "runledger";

/// The limit for a start after a kill: the old children notice the kill after a second, and
/// recovery takes time.
const START_PATIENCE: Duration = Duration::from_secs(60);

/// The pause between two checks of a wait.
const POLL: Duration = Duration::from_millis(20);

/// `$1` is the base folder. The server's account may not signal this shell, and Ctrl-C does not
/// reach it.
const WATCHER: &str = r#"
trap '' HUP INT
read -r _
server() { head -n 1 "$1/data/postmaster.pid" 2>/dev/null; }
pid=$(server "$1") && kill -QUIT "$pid" 2>/dev/null
n=0
while [ -n "$pid" ] && kill -0 "$pid" 2>/dev/null && [ $n -lt 100 ]; do sleep 0.1; n=$((n + 1)); done
umount -l "$1/volume" 2>/dev/null
rm -rf "$1"
"#;

/// How a server stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// It ends its sessions and writes everything to disk.
    Fast,
    /// As in a failure: the next start recovers from what is on disk.
    Immediate,
}

/// A scenario's own server.
#[derive(Debug)]
pub struct Cluster {
    base: PathBuf,
    settings: Settings,
    volume: Option<Volume>,
    watcher: Child,
}

impl Cluster {
    /// Creates a server with the durability of production, and starts it.
    ///
    /// # Errors
    /// [`tools::Missing`](runledger_tests::tools::Missing) without the needed programs, or `initdb`
    /// failed.
    pub async fn start_new(settings: Settings) -> Result<Self> {
        let cluster = Self::prepare(settings).await?;
        let mut initdb = cluster.command(&cluster.settings.programs.path("initdb")?);
        initdb.args(["-A", "trust", "-E", "UTF8", "--no-locale", "--no-sync", "-U", ROLE]);
        initdb.arg("-D").arg(cluster.data());
        if let (Some(volume), Some((Disk::Wal, _))) = (&cluster.volume, cluster.settings.small) {
            initdb.arg("--waldir").arg(volume.join("wal"));
        }
        if let (Some(volume), Some((Disk::Data, _))) = (&cluster.volume, cluster.settings.small) {
            let data = volume.join("data");
            std::os::unix::fs::symlink(&data, cluster.data())?;
            cluster.make_private(&data)?;
            initdb.arg("--waldir").arg(cluster.base.join("wal"));
        }
        run(&mut initdb, "initdb").await?;
        let main = cluster.data().join("postgresql.conf");
        let text = fs::read_to_string(&main)?;
        fs::write(main, format!("{text}\ninclude 'faults.conf'\n"))?;
        cluster.write_settings()?;
        cluster.start().await?;
        Ok(cluster)
    }

    /// Creates the folders and the watcher of a server that has no data yet.
    pub(super) async fn prepare(settings: Settings) -> Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("rl-faults-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        // The server's account must be able to enter the folder, and a socket's path must be short.
        let base = PathBuf::from("/var/tmp").join(name);
        // A leftover folder belongs to a dead process with the same id, whose watcher is deleting
        // it.
        ensure!(!base.exists(), "{} is still there", base.display());
        fs::DirBuilder::new().mode(0o700).create(&base)?;
        let watcher = watch(&base)?;
        let mut cluster = Self { base, settings, volume: None, watcher };
        cluster.give(&cluster.base)?;
        cluster.make_private(&cluster.base.join("socket"))?;
        if let Some((_, megabytes)) = cluster.settings.small {
            let at = cluster.base.join("volume");
            cluster.volume = Some(Volume::mount(&at, megabytes, cluster.settings.programs.account).await?);
        }
        Ok(cluster)
    }

    /// Returns the address of a database, through the server's socket.
    #[must_use]
    pub fn url(&self, database: &str) -> String {
        let socket = self.base.join("socket");
        format!("postgres://{ROLE}@localhost:5432/{database}?host={}&sslmode=disable", socket.display())
    }

    /// Returns the server's small disk.
    ///
    /// # Errors
    /// The server was created without one.
    pub fn volume(&self) -> Result<&Volume> {
        self.volume.as_ref().context("the server has no volume of its own")
    }

    /// Opens a session as the owner.
    ///
    /// # Errors
    /// The server refused the session.
    pub async fn connect(&self) -> Result<PgConnection> {
        Ok(PgConnection::connect(&self.url("postgres")).await?)
    }

    /// Executes statements as the owner, each in its own transaction.
    ///
    /// # Errors
    /// The server refused a statement.
    pub async fn execute(&self, statement: &str) -> Result<()> {
        let mut connection = self.connect().await?;
        sqlx::raw_sql(AssertSqlSafe(statement.to_owned())).execute(&mut connection).await?;
        Ok(connection.close().await?)
    }

    /// Creates an empty database.
    ///
    /// # Errors
    /// The server refused.
    pub async fn create_database(&self, name: &str) -> Result<()> {
        self.execute(&format!("create database {name} template template0")).await
    }

    /// Changes a setting of the running server. Only for settings that a reload applies.
    ///
    /// # Errors
    /// The file of the settings cannot be written, or the server refused to reload.
    pub async fn set(&mut self, name: &str, value: &str) -> Result<()> {
        self.settings.lines.push((name.to_owned(), value.to_owned()));
        self.write_settings()?;
        self.execute("select pg_reload_conf()").await
    }

    /// Starts the server, and returns when it accepts statements. Waits for the remaining processes
    /// of a killed predecessor.
    ///
    /// # Errors
    /// The server's own message.
    pub async fn start(&self) -> Result<()> {
        let began = Instant::now();
        loop {
            let log = self.base.join("log");
            let mut command = self.command(&self.settings.programs.path("pg_ctl")?);
            command.arg("start").arg("-D").arg(self.data()).arg("-l").arg(&log).args(["-w", "-t", "60"]);
            command.envs(self.settings.environment.iter().map(|(name, value)| (name, value)));
            let started = run(&mut command, "pg_ctl").await;
            let Err(error) = started else { return self.ready().await };
            let said = fs::read_to_string(&log).unwrap_or_default();
            let last = said.lines().rev().take(5).collect::<Vec<_>>();
            let blocked =
                last.iter().any(|line| line.contains("lock file") || line.contains("shared memory block"));
            if !blocked || began.elapsed() > START_PATIENCE {
                let last = last.into_iter().rev().collect::<Vec<_>>().join("\n");
                return Err(error.context(last));
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Waits until the server accepts statements. It accepts none during recovery.
    ///
    /// # Errors
    /// The last answer after one minute.
    pub async fn ready(&self) -> Result<()> {
        let began = Instant::now();
        loop {
            match self.execute("select 1").await {
                Ok(()) => return Ok(()),
                Err(error) if began.elapsed() > START_PATIENCE => return Err(error),
                Err(_) => tokio::time::sleep(POLL).await,
            }
        }
    }

    /// Stops the server, and waits until its process has ended.
    ///
    /// # Errors
    /// The server did not end.
    pub async fn stop(&self, how: Stop) -> Result<()> {
        let signal = match how {
            Stop::Fast => Signal::INT,
            Stop::Immediate => Signal::QUIT,
        };
        self.end_postmaster(signal).await
    }

    /// Kills the postmaster (SIGKILL). Its children end by themselves a moment later.
    ///
    /// # Errors
    /// The postmaster does not run.
    pub async fn kill(&self) -> Result<()> {
        self.end_postmaster(Signal::KILL).await
    }

    /// Whether the postmaster runs.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.postmaster().is_ok_and(|pid| test_kill_process(pid).is_ok())
    }

    async fn end_postmaster(&self, signal: Signal) -> Result<()> {
        let pid = self.postmaster()?;
        kill_process(pid, signal)?;
        let began = Instant::now();
        while test_kill_process(pid).is_ok() {
            ensure!(began.elapsed() < START_PATIENCE, "the server does not go");
            tokio::time::sleep(POLL).await;
        }
        Ok(())
    }

    /// Kills one of the server's processes, selected by a statement that returns its id. Returns
    /// the id. The server ends all other processes and recovers by itself.
    ///
    /// # Errors
    /// No process was found.
    pub async fn kill_one(&self, which: &'static str) -> Result<i32> {
        self.signal_one(which, Signal::KILL).await
    }

    pub(super) async fn signal_one(&self, which: &'static str, signal: Signal) -> Result<i32> {
        let mut connection = self.connect().await?;
        let pid: i32 = sqlx::query_scalar(which).fetch_one(&mut connection).await?;
        // The server ends this session with all the others.
        drop(connection);
        kill_process(Pid::from_raw(pid).context("a process has no number")?, signal)?;
        Ok(pid)
    }

    fn postmaster(&self) -> Result<Pid> {
        let file =
            fs::read_to_string(self.data().join("postmaster.pid")).context("the server does not run")?;
        let pid = file.lines().next().and_then(|line| line.trim().parse().ok());
        pid.and_then(Pid::from_raw).context("the server's file has no process id")
    }

    /// Returns the server's log since its creation.
    ///
    /// # Errors
    /// The log cannot be read.
    pub fn log(&self) -> Result<String> {
        Ok(fs::read_to_string(self.base.join("log"))?)
    }

    /// Returns the server's version.
    ///
    /// # Errors
    /// The server refused the query.
    pub async fn version(&self) -> Result<String> {
        Ok(sqlx::query_scalar("select version()").fetch_one(&mut self.connect().await?).await?)
    }

    pub(super) fn settings(&self) -> &Settings {
        &self.settings
    }

    pub(super) fn data(&self) -> PathBuf {
        self.base.join("data")
    }

    pub(super) fn socket(&self) -> PathBuf {
        self.base.join("socket")
    }

    /// A program that runs under the server's account.
    pub(super) fn command(&self, program: &Path) -> Command {
        let mut command = StdCommand::new(program);
        command.env_clear().env("PATH", "/usr/bin:/bin").env("HOME", "/").env("LC_ALL", "C").current_dir("/");
        command.process_group(0).stdin(Stdio::null());
        if let Some((uid, gid)) = self.settings.programs.account {
            command.uid(uid).gid(gid);
        }
        command.into()
    }

    /// The last line of a name applies.
    pub(super) fn write_settings(&self) -> Result<()> {
        let socket = self.socket();
        let mut text = format!(
            "listen_addresses = ''\nport = 5432\nunix_socket_directories = '{}'\nsearch_path = 'public'\n\
             max_connections = 200\nwal_level = replica\nwal_keep_size = 128MB\n",
            socket.display()
        );
        for (name, value) in &self.settings.lines {
            text.push_str(&format!("{name} = '{value}'\n"));
        }
        Ok(fs::write(self.data().join("faults.conf"), text)?)
    }

    pub(super) fn make_private(&self, dir: &Path) -> io::Result<()> {
        fs::DirBuilder::new().mode(0o700).create(dir)?;
        self.give(dir)
    }

    pub(super) fn give(&self, path: &Path) -> io::Result<()> {
        let Some((uid, gid)) = self.settings.programs.account else { return Ok(()) };
        lchown(path, Some(uid), Some(gid))
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // The end of its input makes the watcher clean up.
        drop(self.watcher.stdin.take());
        let _ = self.watcher.wait();
    }
}

fn watch(base: &Path) -> Result<Child> {
    let mut command = StdCommand::new("/bin/sh");
    command.args(["-c", WATCHER, "rl-faults-watch"]).arg(base).current_dir("/").process_group(0);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().context("start the watcher of a server")
}

/// Runs a program to its end. Discards its output, because a server that it starts would keep a
/// pipe open.
pub(super) async fn run(command: &mut Command, name: &str) -> Result<()> {
    let status = command.stdout(Stdio::null()).stderr(Stdio::null()).status().await;
    let status = status.with_context(|| format!("run {name}"))?;
    if !status.success() {
        bail!("{name} failed: {status}");
    }
    Ok(())
}
