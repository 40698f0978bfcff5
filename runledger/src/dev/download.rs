//! Downloads an archive with the machine's `curl` or `wget`, shows the progress, and verifies the
//! digest of the received bytes.
//!
//! These programs know the machine's proxies and certificates. A TLS client of our own would add
//! thirty crates.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, ErrorKind, IsTerminal, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use sha2::{Digest, Sha512};

use super::archive::{Archive, NotDownloaded, unusable};

/// The number of transfers to try in all. An interrupted transfer starts again from the beginning.
const TRIES: u32 = 3;

/// Larger than any archive with PostgreSQL's programs: a response without end must not fill the
/// disk.
const MOST_BYTES: u64 = 512 << 20;

/// How long a transfer may bring no bytes. Debian's `wget` of busybox crashes if its own option
/// sets a limit.
const STALL: Duration = Duration::from_secs(30);

/// How often a terminal shows the progress.
const TICK: Duration = Duration::from_millis(200);

/// If standard error is not a terminal, print one line per this share of the archive.
const PARTS: u64 = 4;

/// The outcome of one transfer.
enum Ended {
    Whole {
        sha512: String,
    },
    /// Failed after some bytes: another transfer may succeed.
    Broken(String),
    /// Failed without any bytes: the network or the server refuses.
    Refused(String),
}

/// Downloads `archive` to `file`. Returns an error if its digest is wrong.
pub(super) fn download(archive: &Archive, file: &Path) -> Result<(), NotDownloaded> {
    let url = archive.url.clone();
    let mut tries = 0;
    loop {
        tries += 1;
        match transfer(archive, file)? {
            Ended::Whole { sha512 } if sha512 == archive.sha512 => return Ok(()),
            Ended::Whole { sha512 } => {
                return Err(NotDownloaded::WrongDigest { url, got: sha512, wanted: archive.sha512.clone() });
            }
            Ended::Broken(said) if tries < TRIES => {
                tell(&format!("  the download broke off ({said}); it begins again"));
            }
            Ended::Broken(said) | Ended::Refused(said) => return Err(NotDownloaded::Failed { url, said }),
        }
    }
}

/// Prints one line for the user. Ignores a closed standard error.
pub(super) fn tell(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

fn transfer(archive: &Archive, path: &Path) -> Result<Ended, NotDownloaded> {
    let folder = path.parent().unwrap_or(path);
    let mut file = File::create(path).map_err(unusable(folder))?;
    let mut downloader = start(&archive.url)?;
    let (stdout, stderr) = (downloader.stdout.take(), downloader.stderr.take());
    // A full pipe would block `wget`, which reports its progress to standard error.
    let last_line = thread::spawn(move || stderr.and_then(last_line));
    let copied = copy(archive, &chunks(stdout), &mut file, folder, STALL);
    if !matches!(copied, Ok((_, Some(_)))) {
        // The child may be blocked on a pipe that nobody reads.
        let _ = downloader.kill();
    }
    let status = downloader.wait().map_err(unusable(folder))?;
    let (n_bytes, sha512) = copied?;
    let said = match sha512 {
        Some(sha512) if status.success() => return Ok(Ended::Whole { sha512 }),
        Some(_) => last_line.join().ok().flatten().unwrap_or_else(|| status.to_string()),
        None => format!("no data for {} s", STALL.as_secs()),
    };
    Ok(if n_bytes > 0 { Ended::Broken(said) } else { Ended::Refused(said) })
}

/// Reads to the end, and returns the last line that is not empty.
fn last_line(mut from: impl Read) -> Option<String> {
    let mut said = Vec::new();
    // After an error, the lines before it are still the best explanation.
    let _ = from.read_to_end(&mut said);
    let said = String::from_utf8_lossy(&said);
    said.split(['\n', '\r']).map(str::trim).rfind(|line| !line.is_empty()).map(str::to_owned)
}

fn start(url: &str) -> Result<Child, NotDownloaded> {
    let mut curl = Command::new("curl");
    // Give up a transfer that stays below 1 kB/s for 30 s.
    curl.args(["--fail", "--location", "--silent", "--show-error", "--connect-timeout", "20"]).args([
        "--speed-limit",
        "1000",
        "--speed-time",
        "30",
        "--proto-redir",
        "=https,http",
        "--",
        url,
    ]);
    let mut wget = Command::new("wget");
    // By default GNU's tries 20 times, and `-q` hides its reasons. Busybox's ignores `-t`.
    wget.args(["-t", "1", "-O", "-", "--", url]);
    for mut command in [curl, wget] {
        let piped = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        match piped.spawn() {
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => {
                return Err(NotDownloaded::Failed { url: url.to_owned(), said: error.to_string() });
            }
            Ok(child) => return Ok(child),
        }
    }
    Err(NotDownloaded::NoDownloader)
}

/// Reads in another thread, so that the receiver can limit the wait for each chunk.
fn chunks(from: Option<impl Read + Send + 'static>) -> Receiver<io::Result<Vec<u8>>> {
    let (sender, receiver) = sync_channel(4);
    thread::spawn(move || {
        let Some(mut from) = from else { return };
        let mut buffer = vec![0; 1 << 16];
        loop {
            let chunk = match from.read(&mut buffer) {
                Ok(0) => return,
                Ok(n) => Ok(buffer[..n].to_vec()),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => Err(error),
            };
            let is_last = chunk.is_err();
            if sender.send(chunk).is_err() || is_last {
                return;
            }
        }
    });
    receiver
}

/// Returns the number of bytes and their SHA-512, or `None` after `stall` without bytes.
fn copy(
    archive: &Archive,
    from: &Receiver<io::Result<Vec<u8>>>,
    to: &mut impl Write,
    folder: &Path,
    stall: Duration,
) -> Result<(u64, Option<String>), NotDownloaded> {
    let failed = |said: String| NotDownloaded::Failed { url: archive.url.clone(), said };
    let mut progress = Progress::new(archive.bytes);
    let (mut hash, mut n_bytes) = (Sha512::new(), 0_u64);
    loop {
        let chunk = match from.recv_timeout(stall) {
            Ok(chunk) => chunk.map_err(|error| failed(error.to_string()))?,
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                progress.end();
                return Ok((n_bytes, None));
            }
        };
        to.write_all(&chunk).map_err(unusable(folder))?;
        hash.update(&chunk);
        n_bytes += chunk.len() as u64;
        if n_bytes > archive.bytes.unwrap_or(MOST_BYTES) {
            return Err(failed(format!("it is larger than {}", megabytes(n_bytes))));
        }
        progress.at(n_bytes);
    }
    progress.end();
    let mut sha512 = String::with_capacity(128);
    for byte in hash.finalize() {
        let _ = write!(sha512, "{byte:02x}");
    }
    Ok((n_bytes, Some(sha512)))
}

/// Shows the progress of a transfer: one line that changes on a terminal, several lines elsewhere.
struct Progress {
    of: Option<u64>,
    is_terminal: bool,
    shown: Instant,
    parts: u64,
}

impl Progress {
    fn new(of: Option<u64>) -> Self {
        Self { of, is_terminal: io::stderr().is_terminal(), shown: Instant::now(), parts: 0 }
    }

    fn at(&mut self, n_bytes: u64) {
        let line = shown(n_bytes, self.of);
        if self.is_terminal {
            if self.shown.elapsed() >= TICK {
                self.shown = Instant::now();
                let _ = write!(io::stderr(), "\r{line}\x1b[K");
            }
            return;
        }
        let parts = self.of.map_or(0, |of| n_bytes * PARTS / of.max(1));
        if parts > self.parts {
            self.parts = parts;
            tell(&line);
        }
    }

    fn end(&self) {
        if self.is_terminal {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

/// `  11.8 MB of 23.5 MB, 50 %`
fn shown(n_bytes: u64, of: Option<u64>) -> String {
    match of {
        Some(of) => format!("  {} of {}, {} %", megabytes(n_bytes), megabytes(of), n_bytes * 100 / of.max(1)),
        None => format!("  {}", megabytes(n_bytes)),
    }
}

/// Formats megabytes with one decimal, rounded down.
pub(super) fn megabytes(n_bytes: u64) -> String {
    format!("{}.{} MB", n_bytes / 1_000_000, n_bytes / 100_000 % 10)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn stalled_transfer_ends_after_limit() {
        let (reader, mut writer) = io::pipe().unwrap();
        writer.write_all(b"half").unwrap();
        let archive = crate::dev::archive::wanted(true, |_| None).unwrap();
        let mut copied = Vec::new();
        let stall = Duration::from_millis(200);
        let ended = copy(&archive, &chunks(Some(reader)), &mut copied, Path::new("/"), stall).unwrap();
        assert_eq!(ended, (4, None));
        assert_eq!(copied, b"half");
    }

    #[test]
    fn last_line_skips_empty_lines_and_progress() {
        let said = "wget: one\n 10% ***\r 20% ***\rwget: connection closed\n\n";
        assert_eq!(last_line(said.as_bytes()).unwrap(), "wget: connection closed");
        assert_eq!(last_line("\n".as_bytes()), None);
    }

    #[test]
    fn progress_shows_received_and_total_size() {
        assert_eq!(shown(11_750_102, Some(23_500_205)), "  11.7 MB of 23.5 MB, 49 %");
        assert_eq!(shown(900_000, None), "  0.9 MB");
    }
}
