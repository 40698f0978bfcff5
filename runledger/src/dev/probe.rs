//! Reads the state of a postmaster from outside: from its socket and its files.

use std::ffi::OsString;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};

/// The name that the server gives to its socket for port 5432.
const SOCKET: &str = ".s.PGSQL.5432";

/// `SSLRequest` of the frontend/backend protocol, the only request without a login: its length and
/// its code.
const SSL_REQUEST: [u8; 8] = [0, 0, 0, 8, 4, 210, 22, 47];

/// An answer takes a fork, about 1 ms.
const ANSWER_PATIENCE: Duration = Duration::from_secs(2);

/// Whether a process listens on the socket. The postmaster does so from before it is ready until it
/// ends.
pub(super) fn is_listening(socket_dir: &Path) -> bool {
    UnixStream::connect(socket_dir.join(SOCKET)).is_ok()
}

/// Whether the postmaster answers. A postmaster that was just killed may still listen, but does not
/// answer.
pub(super) fn answers(socket_dir: &Path) -> bool {
    let ask = || -> std::io::Result<u8> {
        let mut stream = UnixStream::connect(socket_dir.join(SOCKET))?;
        stream.set_read_timeout(Some(ANSWER_PATIENCE))?;
        stream.write_all(&SSL_REQUEST)?;
        let mut answer = [0];
        stream.read_exact(&mut answer)?;
        Ok(answer[0])
    };
    matches!(ask(), Ok(b'N' | b'S'))
}

/// The eighth line of `postmaster.pid`: `starting`, `ready` or `stopping`. `None` if the file does
/// not exist.
pub(super) fn status(data: &Path) -> Option<String> {
    let lines = lines(&data.join("postmaster.pid"))?;
    Some(lines.get(7).map(|line| line.to_string_lossy().trim().to_owned()).unwrap_or_default())
}

/// The process that holds the socket. Its lock file names it even after the data folder was
/// deleted.
pub(super) fn listener(socket_dir: &Path) -> Option<Pid> {
    pid(&lines(&socket_dir.join(format!("{SOCKET}.lock")))?)
}

/// The lines of a file of the postmaster. One of them is the path of the data folder, in any
/// encoding.
fn lines(file: &Path) -> Option<Vec<OsString>> {
    let bytes = fs::read(file).ok()?;
    Some(bytes.split(|byte| *byte == b'\n').map(|line| OsString::from_vec(line.to_owned())).collect())
}

/// The process in the first line.
fn pid(lines: &[OsString]) -> Option<Pid> {
    lines.first()?.to_str()?.trim().parse().ok().and_then(Pid::from_raw)
}

/// A running process that a lock file of PostgreSQL names.
#[derive(Debug)]
pub(super) struct Holder {
    pub(super) pid: i32,
    /// The data folder in the lock file. A copied file names the original folder.
    pub(super) data: PathBuf,
}

/// The files that keep a second postmaster off `data` and off the socket.
pub(super) fn lock_files(data: &Path, socket_dir: &Path) -> [PathBuf; 2] {
    [data.join("postmaster.pid"), socket_dir.join(format!("{SOCKET}.lock"))]
}

/// Returns the process that `lock_file` names, if such a process exists.
pub(super) fn holder(lock_file: &Path) -> Option<Holder> {
    let lines = lines(lock_file)?;
    let pid = pid(&lines)?;
    let data = PathBuf::from(lines.get(1).filter(|line| !line.is_empty())?);
    let exists = test_kill_process(pid) != Err(Errno::SRCH);
    exists.then(|| Holder { pid: pid.as_raw_nonzero().get(), data })
}

impl Holder {
    /// Whether the process is a server of `data` or of the folder in the lock file: its command
    /// line names one of them, or it runs there. A postmaster always runs in its data folder.
    pub(super) fn is_server(&self, data: &Path) -> bool {
        let command_line = match fs::read(format!("/proc/{}/cmdline", self.pid)) {
            Ok(arguments) => arguments.split(|byte| *byte == 0).collect::<Vec<_>>().join(&b' '),
            // macOS has no `/proc`.
            Err(_) => Command::new("ps")
                .args(["-o", "args=", "-p", &self.pid.to_string()])
                .output()
                .map(|output| output.stdout)
                .unwrap_or_default(),
        };
        let command_line = format!("{} ", String::from_utf8_lossy(&command_line).trim_end());
        let runs_in = fs::read_link(format!("/proc/{}/cwd", self.pid)).ok();
        [data, &self.data].iter().any(|data| {
            command_line.contains(&format!("{} ", data.display())) || runs_in.as_deref() == Some(data)
        })
    }
}

#[cfg(test)]
#[path = "probe_tests.rs"]
mod tests;
