//! Downloads an archive with the machine's `curl` or `wget`, shows the progress, and verifies the digest of
//! the received bytes.
//!
//! These programs know the machine's proxies and certificates. A TLS client of our own would add thirty
//! crates.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, ErrorKind, IsTerminal, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use sha2::{Digest, Sha512};

use super::archive::{Archive, NotDownloaded, unusable};

/// The number of transfers to try in all. An interrupted transfer starts again from the beginning.
const TRIES: u32 = 3;

/// Larger than any archive with PostgreSQL's programs: a response without end must not fill the disk.
const MOST_BYTES: u64 = 512 << 20;

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
    let stdout = downloader.stdout.take();
    let copied = stdout.map_or(Ok((0, String::new())), |stdout| copy(archive, stdout, &mut file, folder));
    if copied.is_err() {
        // The child may be blocked on a pipe that nobody reads.
        let _ = downloader.kill();
    }
    let output = downloader.wait_with_output().map_err(unusable(folder))?;
    let (n_bytes, sha512) = copied?;
    if output.status.success() {
        return Ok(Ended::Whole { sha512 });
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let said = said.lines().map(str::trim).rfind(|line| !line.is_empty());
    let said = said.map_or_else(|| output.status.to_string(), str::to_owned);
    Ok(if n_bytes > 0 { Ended::Broken(said) } else { Ended::Refused(said) })
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
    wget.args(["-q", "-O", "-", "--", url]);
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

/// Returns the number of bytes and their SHA-512.
fn copy(
    archive: &Archive,
    mut from: ChildStdout,
    to: &mut File,
    folder: &Path,
) -> Result<(u64, String), NotDownloaded> {
    let failed = |said: String| NotDownloaded::Failed { url: archive.url.clone(), said };
    let mut progress = Progress::new(archive.bytes);
    let (mut hash, mut n_bytes, mut buffer) = (Sha512::new(), 0_u64, vec![0; 1 << 16]);
    loop {
        let n = match from.read(&mut buffer) {
            Ok(0) => break,
            Ok(n) => n,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(failed(error.to_string())),
        };
        to.write_all(&buffer[..n]).map_err(unusable(folder))?;
        hash.update(&buffer[..n]);
        n_bytes += n as u64;
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
    Ok((n_bytes, sha512))
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
mod tests {
    use super::*;

    #[test]
    fn progress_names_the_part_and_the_whole() {
        assert_eq!(shown(11_750_102, Some(23_500_205)), "  11.7 MB of 23.5 MB, 49 %");
        assert_eq!(shown(900_000, None), "  0.9 MB");
    }
}
