//! What can be known of a postmaster from outside: its socket and the files that it keeps.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use rustix::process::Pid;

/// The name that the server gives to its socket for port 5432.
const SOCKET: &str = ".s.PGSQL.5432";

/// `SSLRequest` of the frontend/backend protocol, the one question that needs no login: its length, and its code.
const SSL_REQUEST: [u8; 8] = [0, 0, 0, 8, 4, 210, 22, 47];

/// An answer takes a fork, about a millisecond.
const ANSWER_PATIENCE: Duration = Duration::from_secs(2);

/// Whether somebody holds the socket open: the postmaster does from before it is ready until its last moment.
pub(super) fn is_listening(socket_dir: &Path) -> bool {
    UnixStream::connect(socket_dir.join(SOCKET)).is_ok()
}

/// Whether the postmaster answers. One that was killed a moment ago may still be listening, and answers no more.
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

/// The eighth line of `postmaster.pid`: `starting`, `ready`, `stopping`; `None` when there is no such file.
pub(super) fn status(data: &Path) -> Option<String> {
    let file = fs::read_to_string(data.join("postmaster.pid")).ok()?;
    Some(file.lines().nth(7).unwrap_or_default().trim().to_owned())
}

/// The process that holds the socket. Its lock file names it even when the data folder has been deleted.
pub(super) fn listener(socket_dir: &Path) -> Option<Pid> {
    let file = fs::read_to_string(socket_dir.join(format!("{SOCKET}.lock"))).ok()?;
    file.lines().next()?.trim().parse().ok().and_then(Pid::from_raw)
}
