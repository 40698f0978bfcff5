//! One private cluster on disk and its postmaster.
//!
//! ```text
//! <base>/runledger.lock
//!                      held by a process that creates, starts or stops the server, and by
//!                      `initdb` and `pg_ctl`; marks a folder as ours
//! <base>/server.lock   held by the server and all its processes
//! <base>/data.tmp      a running initdb; becomes <base>/data by a rename, so that nothing uses
//!                      an incomplete one
//! <base>/data          PGDATA
//! <base>/server.log    the server's log since its last start
//! <base>/clients-*     see `lifetime`
//! /tmp/rl-<8 hex>      the socket, the only way in
//! ```

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::ErrorKind;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Signal, kill_process};

use super::error::DevError;
use super::identity::Identity;
use super::locate::{self, Programs};
use super::{Durability, Options, probe};

/// The pause between two checks of a wait. A start takes 50 ms.
const POLL: Duration = Duration::from_millis(10);

/// A first start takes 1 to 2 s, so a lock held for 60 s means that its holder is stuck.
const LOCK_PATIENCE: Duration = Duration::from_secs(60);

/// Includes recovery after a crash.
const START_PATIENCE: Duration = Duration::from_secs(60);

/// After `kill -9` of the postmaster, its children need about 1 s to notice. Until then, its lock
/// file and shared memory keep a new postmaster out. A machine with ten times the load that it can
/// handle needs 10 s.
const RESTART_PATIENCE: Duration = Duration::from_secs(30);

const STOP_PATIENCE: Duration = Duration::from_secs(30);

const LOCK: &str = "runledger.lock";

/// Prevents two servers on one data folder, which would destroy the data. PostgreSQL detects
/// another server by its pid and its shared memory, but neither is visible from another container.
/// This lock is visible wherever the file is.
const SERVER_LOCK: &str = "server.lock";

/// Runs a program with the standard output of the shell as descriptor 9, and without a standard
/// output.
const AS_DESCRIPTOR_9: &str = r#"exec "$0" "$@" 9>&1 1>/dev/null"#;

/// The role that owns everything in the cluster.
pub(super) const ROLE: &str = "runledger";

/// The exclusive right to change the cluster. It ends with this process and the programs that it
/// started.
#[derive(Debug)]
pub(super) struct Locked(File);

/// The location and the account of a cluster, whether or not it runs.
#[derive(Debug, Clone)]
pub(super) struct Cluster {
    pub(super) base: PathBuf,
    pub(super) data: PathBuf,
    pub(super) socket_dir: PathBuf,
    identity: Identity,
}

impl Cluster {
    /// Opens the cluster of `options`. Creates its base folder.
    pub(super) fn open(options: &Options) -> Result<Self, DevError> {
        let identity = Identity::current()?;
        let base = match &options.base_dir {
            Some(dir) => std::path::absolute(dir).map_err(DevError::io("find folder", dir))?,
            None => identity.default_base(options.durability.kind())?,
        };
        refuse_shell_characters(&base)?;
        identity.make_base(&base, LOCK)?;
        // Canonical, because the name of the socket and the watcher's check depend on the path.
        let base = fs::canonicalize(&base).map_err(DevError::io("resolve", &base))?;
        refuse_shell_characters(&base)?;
        let data = base.join("data");
        let identity = Identity::of_data(&data)?;
        identity.check_reach(&base)?;
        Ok(Self { data, socket_dir: identity.socket_dir(&base), base, identity })
    }

    /// Whether data exists at the location in `options`. Creates nothing.
    pub(super) fn exists(options: &Options) -> Result<bool, DevError> {
        let base = match &options.base_dir {
            Some(dir) => dir.clone(),
            None => Identity::current()?.default_base(options.durability.kind())?,
        };
        Ok(has_data(&base))
    }

    /// Waits for the lock of the base folder.
    pub(super) fn lock(&self) -> Result<Locked, DevError> {
        let path = self.base.join(LOCK);
        let file = open_lock(&path)?;
        self.wait("another program to make or start it", LOCK_PATIENCE, || try_lock(&file, &path))?;
        Ok(Locked(file))
    }

    /// Takes the lock that a server holds while it runs. `None` if a server runs on the data.
    fn lock_server(&self) -> Result<Option<File>, DevError> {
        let path = self.base.join(SERVER_LOCK);
        let file = open_lock(&path)?;
        Ok(try_lock(&file, &path)?.then_some(file))
    }

    /// Downloads the programs for a start if none are installed. Does not hold the lock: a download
    /// takes longer than other processes wait for it.
    pub(super) fn fetch_programs(&self) -> Result<(), DevError> {
        if probe::is_listening(&self.socket_dir) {
            return Ok(());
        }
        locate::for_data(&self.data, &self.identity).map(drop)
    }

    /// Creates the cluster if it does not exist, and starts it if it does not run. Returns once it
    /// accepts statements.
    pub(super) fn ensure_running(&self, locked: &Locked, options: &Options) -> Result<(), DevError> {
        self.identity.make_private(&self.socket_dir)?;
        let mut programs = None;
        let first_try = Instant::now();
        self.wait("the server to accept statements", START_PATIENCE, || {
            if probe::is_listening(&self.socket_dir) {
                return match probe::status(&self.data) {
                    Some(status) => Ok(status == "ready" && probe::answers(&self.socket_dir)),
                    // The data was deleted while the server ran: it serves nothing, but keeps the
                    // socket.
                    None => self.stop(locked).map(|()| false),
                };
            }
            let programs = match &programs {
                Some(found) => found,
                None => programs.insert(locate::for_data(&self.data, &self.identity)?),
            };
            refuse_shell_characters(&programs.path("pg_ctl"))?;
            if !self.data.exists() {
                self.initdb(locked, programs, options)?;
            }
            let Err(error) = self.start(locked, programs, options) else { return Ok(false) };
            let is_last = first_try.elapsed() >= RESTART_PATIENCE;
            if matches!(error, DevError::Served { .. }) {
                // The processes of a killed server need time to end.
            } else if self.log_says("lock file \"") {
                self.remove_stale_lock_files(locked, is_last)?;
            } else if !self.log_says("shared memory block") {
                return Err(error);
            }
            if is_last { Err(error) } else { Ok(false) }
        })
    }

    /// Deletes the lock files of a killed postmaster if their pid now belongs to another program.
    /// PostgreSQL itself deletes them only if no process has the pid. Children of the killed
    /// postmaster still keep a new one out through the shared memory, which PostgreSQL finds
    /// without these files.
    ///
    /// Returns an error if the process is a server of another folder, of which this one is a copy.
    /// Returns an error for a server of this folder only if `is_last`: a killed postmaster needs
    /// time to end.
    fn remove_stale_lock_files(&self, _locked: &Locked, is_last: bool) -> Result<(), DevError> {
        for file in probe::lock_files(&self.data, &self.socket_dir) {
            let Some(holder) = probe::holder(&file) else { continue };
            if !holder.is_server(&self.data) {
                ignore_absent(fs::remove_file(&file)).map_err(DevError::io("delete", file))?;
            } else if is_last || holder.data != self.data {
                return Err(DevError::LockFile { file, pid: holder.pid, data: holder.data });
            }
        }
        Ok(())
    }

    /// Stops the server if it runs, ends its connections, and waits until it has ended. Returns
    /// [`DevError::Served`] if a server runs and cannot be reached.
    pub(super) fn stop(&self, _locked: &Locked) -> Result<(), DevError> {
        if probe::is_listening(&self.socket_dir) {
            if let Some(pid) = probe::listener(&self.socket_dir) {
                // An error means that the server ended by itself, which the wait detects.
                let _ = kill_process(pid, Signal::INT);
            }
            self.wait("the server to stop", STOP_PATIENCE, || {
                Ok(!probe::is_listening(&self.socket_dir) && !self.data.join("postmaster.pid").exists())
            })?;
        }
        let first_try = Instant::now();
        while self.lock_server()?.is_none() {
            // The processes of a killed server need time to end.
            if first_try.elapsed() >= RESTART_PATIENCE {
                return Err(self.served());
            }
            thread::sleep(POLL);
        }
        Ok(())
    }

    fn served(&self) -> DevError {
        DevError::Served { base: self.base.clone() }
    }

    /// Deletes the data, the log and the socket of a stopped server. Keeps the lock for processes
    /// that wait for it.
    pub(super) fn delete(&self, _locked: &Locked) -> Result<(), DevError> {
        for dir in [&self.data, &self.base.join("data.tmp"), &self.socket_dir] {
            ignore_absent(fs::remove_dir_all(dir)).map_err(DevError::io("delete", dir))?;
        }
        let log = self.log();
        ignore_absent(fs::remove_file(&log)).map_err(DevError::io("delete", log))
    }

    fn initdb(&self, locked: &Locked, programs: &Programs, options: &Options) -> Result<(), DevError> {
        let made = self.base.join("data.tmp");
        ignore_absent(fs::remove_dir_all(&made)).map_err(DevError::io("delete", &made))?;
        self.identity.make_private(&made)?;
        let mut command = self.identity.command(&programs.path("initdb"));
        command.args(["-A", "trust", "-E", "UTF8", "--no-locale", "-U", ROLE]).arg("-D").arg(&made);
        if options.durability == Durability::Fast {
            command.arg("--no-sync");
        }
        let output = self.run(locked, &mut command, "initdb")?;
        if !output.status.success() {
            return Err(self.failed("initdb", &output));
        }
        fs::rename(&made, &self.data).map_err(DevError::io("rename to `data` the folder", &made))
    }

    fn start(&self, locked: &Locked, programs: &Programs, options: &Options) -> Result<(), DevError> {
        let Some(server_lock) = self.lock_server()? else {
            return Err(self.served());
        };
        let log = self.log();
        ignore_absent(fs::remove_file(&log)).map_err(DevError::io("delete", &log))?;
        let mut fresh = OpenOptions::new();
        fresh.create_new(true).write(true).mode(0o600).open(&log).map_err(DevError::io("make", &log))?;
        self.identity.give(&log)?;

        // `pg_ctl` passes its own folder, `-D` and `-l` in double quotes to a shell, hence
        // `refuse_shell_characters`. The search path excludes the engine's schema, which has the
        // name of the role, so that an application's tables do not land there.
        let mut settings = format!(
            "-c listen_addresses= -c port=5432 -c unix_socket_permissions=0700 -c unix_socket_directories={} \
             -c search_path=public -c max_connections={}",
            self.socket_dir.display(),
            options.max_connections
        );
        if options.durability == Durability::Fast {
            settings.push_str(" -c fsync=off -c full_page_writes=off -c synchronous_commit=off");
        }
        let mut command = self.identity.command(Path::new("/bin/sh"));
        command
            .args(["-c", AS_DESCRIPTOR_9])
            .stdout(server_lock)
            .arg(programs.path("pg_ctl"))
            .arg("start")
            .arg("-D")
            .arg(&self.data)
            .arg("-l")
            .arg(&log)
            .args(["-w", "-t", "60", "-o", &settings]);
        let output = self.run(locked, &mut command, "pg_ctl")?;
        if output.status.success() { Ok(()) } else { Err(self.failed("pg_ctl", &output)) }
    }

    /// Runs a program that inherits the lock as its standard input. If this process is killed, no
    /// other process touches the folder until the program has ended.
    fn run(&self, locked: &Locked, command: &mut Command, program: &'static str) -> Result<Output, DevError> {
        let lock = locked.0.try_clone().map_err(DevError::io("duplicate the lock of", &self.base))?;
        command.stdin(lock).output().map_err(DevError::io("run", program))
    }

    fn failed(&self, program: &'static str, output: &Output) -> DevError {
        let log = self.logged();
        let last_lines = log.lines().rev().take(10).collect::<Vec<_>>();
        let said = String::from_utf8_lossy(&output.stderr);
        let said = said.trim().lines().chain(last_lines.into_iter().rev()).collect::<Vec<_>>().join("\n");
        DevError::Program { program, base: self.base.clone(), said }
    }

    /// Whether the log of the last start contains `text`.
    fn log_says(&self, text: &str) -> bool {
        self.logged().contains(text)
    }

    /// The log of the last start. The paths in it may be in any encoding.
    fn logged(&self) -> String {
        fs::read(self.log()).map(|log| String::from_utf8_lossy(&log).into_owned()).unwrap_or_default()
    }

    fn log(&self) -> PathBuf {
        self.base.join("server.log")
    }

    fn wait(
        &self,
        what: &'static str,
        patience: Duration,
        mut done: impl FnMut() -> Result<bool, DevError>,
    ) -> Result<(), DevError> {
        let start = Instant::now();
        while !done()? {
            if start.elapsed() > patience {
                return Err(DevError::Timeout { what, base: self.base.clone(), after: patience });
            }
            thread::sleep(POLL);
        }
        Ok(())
    }
}

fn open_lock(path: &Path) -> Result<File, DevError> {
    let mut options = OpenOptions::new();
    options.create(true).truncate(false).write(true).mode(0o600);
    options.open(path).map_err(DevError::io("open", path))
}

/// Takes a lock unless it is held. The lock lasts until this process and every program that
/// inherited the file have closed it.
fn try_lock(file: &File, path: &Path) -> Result<bool, DevError> {
    match file.try_lock() {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => Err(DevError::io("lock", path)(error)),
    }
}

/// Refuses a path that would end the double quotes in which `pg_ctl` and `initdb` pass it to a
/// shell.
fn refuse_shell_characters(path: &Path) -> Result<(), DevError> {
    let has_meaning = |byte: &u8| b"\"$`\\\n".contains(byte);
    if path.as_os_str().as_encoded_bytes().iter().any(has_meaning) {
        return Err(DevError::ShellCharacter { path: path.to_owned() });
    }
    Ok(())
}

/// Whether `base` is the base folder of a cluster with data. A project's folder may contain the
/// `data` of another server.
pub(super) fn has_data(base: &Path) -> bool {
    base.join(LOCK).is_file() && base.join("data/PG_VERSION").is_file()
}

fn ignore_absent(result: std::io::Result<()>) -> std::io::Result<()> {
    match result {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
