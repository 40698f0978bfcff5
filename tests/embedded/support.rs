//! Helpers for the tests of the embedded server: a base folder per test, client processes, and
//! waits.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use runledger::dev::{Options, reset};

/// Far more than the slowest machine needs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// Evaluates the expression until it returns `Some`, and fails after [`PATIENCE`].
macro_rules! eventually {
    ($what:literal, $probe:expr) => {{
        let start = std::time::Instant::now();
        loop {
            if let Some(value) = $probe {
                break value;
            }
            let patience = $crate::support::PATIENCE;
            assert!(start.elapsed() < patience, "waited {patience:?} for {}", $what);
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }};
}
pub(crate) use eventually;

/// A base folder that no other test uses. At the end its server is stopped and its files are
/// deleted.
pub(crate) struct Base {
    pub(crate) dir: PathBuf,
    pub(crate) grace: Duration,
}

impl Base {
    /// `grace` is the grace time that the clients request.
    pub(crate) fn new(grace: Duration) -> Self {
        Self::below("/var/tmp", grace)
    }

    pub(crate) fn below(parent: &str, grace: Duration) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("runledger-test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        Self { dir: PathBuf::from(parent).join(name), grace }
    }

    pub(crate) fn options(&self) -> Options {
        let mut options = Options::test();
        options.base_dir = Some(self.dir.clone());
        options.grace = self.grace;
        options
    }

    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_dev_client"));
        command.arg("hold").arg(&self.dir).arg(self.grace.as_millis().to_string());
        with_few_variables(&mut command).stdin(Stdio::piped()).stdout(Stdio::piped());
        command
    }

    pub(crate) fn client(&self) -> Client {
        Client { child: self.command().spawn().unwrap() }
    }

    /// The process id in `postmaster.pid`.
    pub(crate) fn postmaster(&self) -> Option<i32> {
        let file = fs::read(self.dir.join("data/postmaster.pid")).ok()?;
        String::from_utf8_lossy(&file).lines().next()?.parse().ok()
    }

    pub(crate) fn postmasters(&self) -> Vec<i32> {
        processes(&format!("postgres -D {}", self.dir.join("data").display()))
    }

    pub(crate) fn watchers(&self) -> Vec<i32> {
        processes(&format!("runledger-watch {} ", self.dir.display()))
    }
}

impl Drop for Base {
    fn drop(&mut self) {
        if self.dir.exists() {
            let _ = reset(&self.options());
            let _ = fs::remove_dir_all(&self.dir);
        }
    }
}

/// A `dev_client` process. Killed on drop.
pub(crate) struct Client {
    pub(crate) child: Child,
}

impl Client {
    /// Waits for the line that the client prints, and returns it without its first word.
    pub(crate) fn url(&mut self) -> String {
        let line = self.line();
        line.strip_prefix("ready ").unwrap_or_else(|| panic!("client said: {line}")).to_owned()
    }

    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        BufReader::new(self.child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    /// `kill -9`.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn socket_dir(url: &str) -> &str {
    url.split_once("host=").unwrap().1.split('&').next().unwrap()
}

/// Whether a server answers on the socket in `url`.
pub(crate) fn listens(url: &str) -> bool {
    UnixStream::connect(format!("{}/.s.PGSQL.5432", socket_dir(url))).is_ok()
}

/// Returns the processes with `wanted` in their command line. A child that was just forked still
/// shows its parent's command line, so processes whose parent is among them are left out.
fn processes(wanted: &str) -> Vec<i32> {
    let output = Command::new("ps").args(["-eo", "pid=,ppid=,args="]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let id = |word: Option<&str>| word.unwrap().parse::<i32>().unwrap();
    let found: Vec<(i32, i32)> = text
        .lines()
        .filter(|line| line.contains(wanted))
        .map(|line| {
            let mut words = line.split_whitespace();
            (id(words.next()), id(words.next()))
        })
        .collect();
    let is_child = |parent: i32| found.iter().any(|(pid, _)| *pid == parent);
    found.iter().filter(|(_, parent)| !is_child(*parent)).map(|(pid, _)| *pid).collect()
}

/// Removes all environment variables except those that locate PostgreSQL's programs.
pub(crate) fn with_few_variables(command: &mut Command) -> &mut Command {
    command.env_clear();
    let of_programs =
        |name: &str| name == "HOME" || name.starts_with("RUNLEDGER_PG_") || name == "RUNLEDGER_OFFLINE";
    command.envs(std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(of_programs)))
}
