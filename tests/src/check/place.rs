//! A folder in which bodies record what they do, outside the database. It survives every kill.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use runledger::Context;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// What a body did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum What {
    /// The body started.
    Start,
    /// The body is about to return.
    End,
}

/// One line of the history.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Event {
    /// What happened.
    pub what: What,
    /// The run.
    pub run_id: Uuid,
    /// The step. Empty for the run's own body.
    pub key: String,
    /// The fence of the attempt.
    pub token: Uuid,
    /// The process.
    pub pid: u32,
    /// The time, in microseconds since 1970.
    pub at_us: i64,
}

/// The folder of one scenario.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    dir: PathBuf,
    /// The number of the call whose input this is, if the call has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    call: Option<Uuid>,
}

impl Place {
    /// Creates a new folder.
    ///
    /// # Errors
    /// If the folder cannot be created.
    pub fn new() -> io::Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("runledger-check-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let dir = std::env::temp_dir().join(name);
        // A folder of this name belonged to a dead process with the same id.
        let _ = fs::remove_dir_all(&dir);
        Self::within(dir)
    }

    /// Uses this folder, and creates it if it is missing.
    ///
    /// # Errors
    /// If the folder cannot be created.
    pub fn within(dir: PathBuf) -> io::Result<Self> {
        fs::create_dir_all(&dir)?;
        Ok(Self { dir, call: None })
    }

    /// Returns the same folder for the input of one call. The unique number identifies the runs
    /// that the call created.
    #[must_use]
    pub fn of_call(&self, call: Uuid) -> Self {
        Self { call: Some(call), ..self.clone() }
    }

    /// Appends a line with one write, so that lines of several processes do not mix.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn note(&self, what: What, context: &Context) -> io::Result<()> {
        let event = Event {
            what,
            run_id: context.run_id(),
            key: context.step_key().unwrap_or_default().to_owned(),
            token: context.fence_token(),
            pid: std::process::id(),
            at_us: now_us(),
        };
        let line = format!("{}\n", serde_json::to_string(&event)?);
        let mut file = OpenOptions::new().create(true).append(true).open(self.dir.join("history"))?;
        file.write_all(line.as_bytes())
    }

    /// Returns the history so far, without a line that a kill cut short.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn events(&self) -> io::Result<Vec<Event>> {
        let text = match fs::read_to_string(self.dir.join("history")) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            text => text?,
        };
        Ok(text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect())
    }

    /// Opens this gate for every body that waits there, now or later.
    ///
    /// # Errors
    /// If the gate cannot be created.
    pub fn open(&self, gate: &str) -> io::Result<()> {
        fs::write(self.dir.join(format!("gate-{gate}")), "")
    }

    /// Waits until this gate is open. Other gates do not count.
    pub async fn gate_of(&self, gate: &str) {
        let gate = self.dir.join(format!("gate-{gate}"));
        while !gate.exists() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Marks the call with this number as repaired.
    ///
    /// # Errors
    /// If the mark cannot be written.
    pub fn mend(&self, call: Uuid) -> io::Result<()> {
        self.open(&call.to_string())
    }

    /// Whether the call whose input this is was marked as repaired.
    #[must_use]
    pub fn is_mended(&self) -> bool {
        self.call.is_some_and(|call| self.dir.join(format!("gate-{call}")).exists())
    }

    /// Waits until the gate is open: for all processes (`all`) or for this one.
    pub async fn gate(&self) {
        let own = self.dir.join(format!("gate-{}", std::process::id()));
        let all = self.dir.join("gate-all");
        while !own.exists() && !all.exists() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

/// Deletes its folder on drop.
#[derive(Debug)]
pub struct Deleted(pub Place);

impl Drop for Deleted {
    fn drop(&mut self) {
        // The system cleans up what cannot be deleted here.
        let _ = fs::remove_dir_all(&self.0.dir);
    }
}

/// Returns the present time, in microseconds since 1970.
#[must_use]
pub fn now_us() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}
