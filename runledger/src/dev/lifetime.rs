//! How long the server runs: as long as any client runs, plus a grace time.
//!
//! The server must survive `kill -9` of any client, because a durable run resumes after a restart.
//! It must not run forever either. A detached watcher therefore follows the clients. It is a shell
//! script, because a library has no program of its own.
//!
//! The watcher reads a named pipe that every client holds open for writing. The kernel closes a
//! client's end however the client dies, so the watcher reads the end of the file after the last
//! client. It then sleeps for the grace time, and sleeps again if a client joined during it.
//! Nothing stores a process id, so no reused id can mislead it.
//!
//! ```text
//! clients-<n>   a watcher reads it and clients may join
//! closing-<n>   its watcher has seen no client for the grace time, and decides or stops the server
//! ```
//!
//! A client can join while the watcher gives up. The watcher renames the pipe and then reads once
//! more. A client writes a line and then checks that the name still exists. In either order, one of
//! them sees the other.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::cluster::Locked;
use super::error::DevError;

const CLIENTS: &str = "clients-";
const CLOSING: &str = "closing-";

/// A watcher that gives up waits up to 30 s for the server to stop.
const PATIENCE: Duration = Duration::from_secs(40);

/// A stop takes about 100 ms.
const POLL: Duration = Duration::from_millis(5);

/// `$1` is the base folder, `$2` the number in the pipe's name, `$3` the grace time in seconds. The
/// pipe is the standard input.
///
/// The script signals the server only if the command line of its process contains our data folder.
/// It sends the signal from the client's account, because `pg_ctl stop` refuses to run as root. The
/// shell keeps the pipe open until the server has stopped, so that a client that wants to join
/// knows to wait.
const WATCHER: &str = r#"
watch() {
    trap '' HUP INT
    while :; do
        while read -r line; do :; done
        sleep "$3" </dev/null
        read -r line && continue
        mv "$1/clients-$2" "$1/closing-$2" || exit
        read -r line || break
        mv "$1/closing-$2" "$1/clients-$2" || exit
    done
    pid=$(head -n 1 "$1/data/postmaster.pid" </dev/null)
    if [ -r "/proc/$pid/cmdline" ]; then
        server=$(tr '\0' ' ' <"/proc/$pid/cmdline")
    else
        server=$(ps -o args= -p "$pid" </dev/null)
    fi
    case $server in
        *"$1/data"*) kill -INT "$pid" ;;
    esac
    tries=0
    while [ -e "$1/data/postmaster.pid" ] && kill -0 "$pid" && [ $tries -lt 300 ]; do
        sleep 0.1 </dev/null
        tries=$((tries + 1))
    done
    rm -f "$1/closing-$2"
}
exec 3<&0
watch "$@" <&3 3<&- &
"#;

/// This process's membership among the clients. It ends when dropped, or with the process.
#[derive(Debug)]
pub(super) struct Client {
    _pipe: File,
}

impl Client {
    /// Joins the clients of the server in `base`, and starts a watcher if none follows them. Check
    /// for the server only after this call, because the server then stays.
    pub(super) fn join(_locked: &Locked, base: &Path, grace: Duration) -> Result<Self, DevError> {
        let start = Instant::now();
        loop {
            if let Some(pipe) = join_watched(base)? {
                return Ok(Self { _pipe: pipe });
            }
            if !is_closing(base)? {
                return Ok(Self { _pipe: start_watcher(base, grace)? });
            }
            if start.elapsed() > PATIENCE {
                let what = "the watcher of the last clients to stop the server";
                return Err(DevError::Timeout { what, base: base.to_owned(), after: PATIENCE });
            }
            thread::sleep(POLL);
        }
    }
}

fn join_watched(base: &Path) -> Result<Option<File>, DevError> {
    for path in pipes(base, CLIENTS)? {
        let Some(mut pipe) = open_if_read(&path) else { continue };
        // A full pipe contains a line already, which is enough.
        let _ = pipe.write(b"\n");
        if path.exists() {
            return Ok(Some(pipe));
        }
    }
    Ok(None)
}

fn is_closing(base: &Path) -> Result<bool, DevError> {
    Ok(pipes(base, CLOSING)?.iter().any(|path| open_if_read(path).is_some()))
}

/// Starts a watcher. Both ends of the pipe are open before the shell starts, so the pipe always has
/// a reader and no second watcher can start.
fn start_watcher(base: &Path, grace: Duration) -> Result<File, DevError> {
    let number = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos().to_string();
    let path = base.join(format!("{CLIENTS}{number}"));
    let failed = |action| DevError::io(action, path.clone());

    // macOS has no `mkfifoat`, but every Unix has the program.
    let made = Command::new("mkfifo")
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .args(["-m", "600"])
        .arg(&path)
        .output();
    let made = made.map_err(DevError::io("run", "mkfifo"))?;
    if !made.status.success() {
        let said = String::from_utf8_lossy(&made.stderr).trim().to_owned();
        return Err(DevError::Program { program: "mkfifo", base: base.to_owned(), said });
    }
    // Opening one end alone would block until another process opens the other end.
    let both = OpenOptions::new().read(true).write(true).open(&path).map_err(failed("open the pipe"))?;
    let reader = File::open(&path).map_err(failed("open the pipe"))?;
    let writer = OpenOptions::new().write(true).open(&path).map_err(failed("open the pipe"))?;
    drop(both);

    let status = Command::new("/bin/sh")
        .args(["-c", WATCHER, "runledger-watch"])
        .arg(base)
        .args([&number, &format!("{:.3}", grace.as_secs_f64())])
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .current_dir("/")
        .process_group(0)
        .stdin(reader)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .map_err(DevError::io("run", "/bin/sh"))?;
    if status.success() {
        return Ok(writer);
    }
    Err(DevError::Program { program: "/bin/sh", base: base.to_owned(), said: status.to_string() })
}

/// Opens a pipe for writing if it has a reader. Otherwise its watcher was killed, so this deletes
/// the pipe.
fn open_if_read(path: &Path) -> Option<File> {
    let nonblocking = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).ok()?;
    match OpenOptions::new().write(true).custom_flags(nonblocking).open(path) {
        Ok(pipe) => Some(pipe),
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::NXIO.raw_os_error()) => {
            let _ = fs::remove_file(path);
            None
        }
        Err(_) => None,
    }
}

fn pipes(base: &Path, prefix: &str) -> Result<Vec<PathBuf>, DevError> {
    let entries = fs::read_dir(base).map_err(DevError::io("list", base))?;
    let is_pipe = |path: &PathBuf| {
        path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with(prefix))
    };
    Ok(entries.flatten().map(|entry| entry.path()).filter(is_pipe).collect())
}
