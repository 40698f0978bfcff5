//! A folder in which bodies leave what they do, beyond the reach of the database: it survives every kill.

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
    /// It began.
    Start,
    /// It is about to return.
    End,
}

/// One line of the history.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Event {
    /// What happened.
    pub what: What,
    /// The run.
    pub run_id: Uuid,
    /// The step, or empty where the body is the run's own.
    pub key: String,
    /// The fence of the attempt.
    pub token: Uuid,
    /// The process.
    pub pid: u32,
    /// When, in microseconds since 1970.
    pub at_us: i64,
}

/// A folder of one scenario.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    dir: PathBuf,
    /// The number of the call whose input this is, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    call: Option<Uuid>,
}

impl Place {
    /// A fresh folder.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn new() -> io::Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("runledger-check-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let dir = std::env::temp_dir().join(name);
        // One that is left over belongs to a dead process of the same number.
        let _ = fs::remove_dir_all(&dir);
        Self::within(dir)
    }

    /// A folder of the caller's choice, made where there is none.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn within(dir: PathBuf) -> io::Result<Self> {
        fs::create_dir_all(&dir)?;
        Ok(Self { dir, call: None })
    }

    /// The same folder in the input of one call, with a number that no other call has: it tells which runs came of it.
    #[must_use]
    pub fn of_call(&self, call: Uuid) -> Self {
        Self { call: Some(call), ..self.clone() }
    }

    /// Appends a line: one write, so that lines of several processes do not mix.
    ///
    /// # Errors
    /// When the file cannot be written.
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

    /// The history so far. A line that a kill cut short is left out.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn events(&self) -> io::Result<Vec<Event>> {
        let text = match fs::read_to_string(self.dir.join("history")) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            text => text?,
        };
        Ok(text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect())
    }

    /// Lets every body pass that waits at this gate, now or later.
    ///
    /// # Errors
    /// When the gate cannot be made.
    pub fn open(&self, gate: &str) -> io::Result<()> {
        fs::write(self.dir.join(format!("gate-{gate}")), "")
    }

    /// Waits until this gate is open, whatever others are.
    pub async fn gate_of(&self, gate: &str) {
        let gate = self.dir.join(format!("gate-{gate}"));
        while !gate.exists() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Says that what was wrong with the call of this number is mended.
    ///
    /// # Errors
    /// When that cannot be written.
    pub fn mend(&self, call: Uuid) -> io::Result<()> {
        self.open(&call.to_string())
    }

    /// Whether what was wrong with the call whose input this is has been mended.
    #[must_use]
    pub fn is_mended(&self) -> bool {
        self.call.is_some_and(|call| self.dir.join(format!("gate-{call}")).exists())
    }

    /// Waits until the gate is open: for everybody (`all`) or for this process.
    pub async fn gate(&self) {
        let own = self.dir.join(format!("gate-{}", std::process::id()));
        let all = self.dir.join("gate-all");
        while !own.exists() && !all.exists() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

/// Deletes a folder when it is dropped.
#[derive(Debug)]
pub struct Deleted(pub Place);

impl Drop for Deleted {
    fn drop(&mut self) {
        // What cannot be deleted is left to the system's own cleaning.
        let _ = fs::remove_dir_all(&self.0.dir);
    }
}

/// The present instant, in microseconds since 1970.
#[must_use]
pub fn now_us() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}
