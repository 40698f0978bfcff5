//! A web server that serves one archive, and clients that download it into their own cache.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::{fs, thread};

/// A test folder that every account can enter. Deleted at the end.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("runledger-site-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let folder = PathBuf::from("/var/tmp").join(name);
        fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Writes a program that can be executed at once. A child process writes it: the kernel does not
/// execute a file that any process has open for writing.
pub(crate) fn write_program(path: &Path, script: &str) {
    let written = Command::new("sh")
        .args(["-c", r#"printf '%s\n' "$1" > "$0" && chmod 755 "$0""#])
        .arg(path)
        .arg(script)
        .status();
    assert!(written.unwrap().success());
}

/// The answer of the server to the next requests.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    Whole,
    /// Sends half of the archive, then closes the connection.
    Half,
    /// Sends half of the archive, then nothing until the answer changes.
    Held,
}

pub(crate) struct Site {
    pub(crate) folder: Folder,
    pub(crate) url: String,
    pub(crate) sha512: String,
    pub(crate) n_requests: Arc<AtomicU32>,
    answer: Arc<(Mutex<Answer>, Condvar)>,
}

impl Site {
    /// Serves an archive in the format of the npm registry. Its programs print only their version.
    pub(crate) fn with_small_archive() -> Self {
        let folder = Folder::new();
        let native = folder.0.join("made/package/native");
        fs::create_dir_all(native.join("bin")).unwrap();
        fs::create_dir_all(native.join("lib")).unwrap();
        for program in ["initdb", "pg_ctl", "postgres"] {
            let text = format!("#!/bin/sh\necho '{program} (PostgreSQL) 17.10'\n");
            fs::write(native.join("bin").join(program), text).unwrap();
        }
        // Random bytes do not compress, so half of the archive is not empty.
        let mut noise = vec![0; 400_000];
        fastrand::Rng::with_seed(7).fill(&mut noise);
        fs::write(native.join("lib/libpq.so.5.17"), noise).unwrap();
        let links = r#"[{"source":"native/lib/libpq.so.5.17","target":"native/lib/libpq.so.5"}]"#;
        fs::write(native.join("pg-symlinks.json"), links).unwrap();
        sh(&folder.0.join("made"), "chmod 700 package/native/bin/* && tar -czf ../archive.tgz package");
        Self::of(folder)
    }

    /// Serves the installed programs, in the layout in which they find their files.
    pub(crate) fn with_installed_programs() -> Self {
        let folder = Folder::new();
        let (bin, _) = runledger::dev::on_this_machine().unwrap();
        let bin = bin.components().as_path().to_owned();
        let prefix = bin.parent().unwrap();
        // On Debian the programs are in `lib/postgresql/15` and search
        // `../../../share/postgresql/15`.
        let version = prefix.file_name().unwrap().to_str().unwrap();
        let [lib, share] = ["lib", "share"].map(|part| format!("{part}/postgresql/{version}"));
        let pack = match prefix
            .ancestors()
            .nth(3)
            .filter(|root| root.join(&share).is_dir() && prefix.ends_with(&lib))
        {
            Some(root) => format!("tar -czhf archive.tgz -C {} {lib} {share}", root.display()),
            None => format!("tar -czf archive.tgz -C {} bin lib share", prefix.display()),
        };
        sh(&folder.0, &pack);
        Self::of(folder)
    }

    fn of(folder: Folder) -> Self {
        let bytes = fs::read(folder.0.join("archive.tgz")).unwrap();
        let sha512 = sha512(&folder.0.join("archive.tgz"));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/archive.tgz", listener.local_addr().unwrap());
        let answer = Arc::new((Mutex::new(Answer::Whole), Condvar::new()));
        let n_requests = Arc::new(AtomicU32::new(0));
        let site = Self { folder, url, sha512, n_requests: n_requests.clone(), answer: answer.clone() };
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (stream, bytes, answer) = (stream.unwrap(), bytes.clone(), answer.clone());
                n_requests.fetch_add(1, Ordering::SeqCst);
                thread::spawn(move || serve(stream, &bytes, &answer));
            }
        });
        site
    }

    pub(crate) fn answers(&self, answer: Answer) {
        *self.answer.0.lock().unwrap() = answer;
        self.answer.1.notify_all();
    }

    pub(crate) fn requests(&self) -> u32 {
        self.n_requests.load(Ordering::SeqCst)
    }

    pub(crate) fn cache(&self) -> PathBuf {
        self.folder.0.join("cache")
    }

    /// The entries of the cache, sorted.
    pub(crate) fn cached(&self) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.cache()) else { return Vec::new() };
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// A process that downloads the archive into the cache of this test.
    pub(crate) fn client(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_dev_client"));
        command.arg("downloaded").env_clear().env("PATH", "/usr/bin:/bin");
        command.env("RUNLEDGER_PG_ARCHIVE", &self.url).env("RUNLEDGER_PG_ARCHIVE_SHA512", &self.sha512);
        command.env("RUNLEDGER_PG_CACHE", self.cache());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }
}

pub(crate) fn sha512(file: &Path) -> String {
    let summed = Command::new("sha512sum").arg(file).output().unwrap().stdout;
    String::from_utf8(summed).unwrap().split_whitespace().next().unwrap().to_owned()
}

/// Returns the output of a client: the folder of the programs, or the error.
pub(crate) fn said(output: Output) -> Result<PathBuf, String> {
    let line = String::from_utf8(output.stdout).unwrap().trim_end().to_owned();
    match line.strip_prefix("ready ") {
        Some(bin) => Ok(PathBuf::from(bin)),
        None => Err(line.strip_prefix("error ").unwrap_or_else(|| panic!("{line}")).to_owned()),
    }
}

pub(crate) fn run(command: &mut Command) -> Result<PathBuf, String> {
    said(command.output().unwrap())
}

pub(crate) fn wait(client: Child) -> Result<PathBuf, String> {
    said(client.wait_with_output().unwrap())
}

fn serve(mut stream: TcpStream, bytes: &[u8], answer: &(Mutex<Answer>, Condvar)) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut line = String::new();
    while reader.read_line(&mut line).is_ok_and(|n| n > 2) {
        line.clear();
    }
    let first = *answer.0.lock().unwrap();
    // Ignore clients that have disconnected.
    let _ = write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", bytes.len());
    let half = bytes.len() / 2;
    let _ = stream.write_all(&bytes[..half]);
    if first == Answer::Held {
        let held = answer.0.lock().unwrap();
        drop(answer.1.wait_while(held, |answer| *answer == Answer::Held).unwrap());
    }
    if first != Answer::Half {
        let _ = stream.write_all(&bytes[half..]);
    }
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let _ = reader.read_to_end(&mut Vec::new());
}

fn sh(folder: &Path, script: &str) {
    let status = Command::new("sh").args(["-ec", script]).current_dir(folder).status().unwrap();
    assert!(status.success(), "{script}");
}
