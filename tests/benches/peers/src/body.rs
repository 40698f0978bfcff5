//! The bodies of every peer's jobs and steps. A body only reports that it ran.

use std::{
    future::pending,
    sync::{
        OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Instant,
};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::mpsc;

/// Global, because some peers pass no application state to a body. A process measures one figure.
static RAN: AtomicU64 = AtomicU64::new(0);
static HOLDS: AtomicBool = AtomicBool::new(false);
static STARTS: OnceLock<mpsc::Sender<(u64, Instant)>> = OnceLock::new();

/// The payload of every job, about 100 bytes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Payload {
    pub user_id: u64,
    pub note: String,
}

impl Payload {
    pub fn new(user_id: u64) -> Self {
        let note = "somebody@example.com hello world hello world hello world hello world hello world hello";
        Self { user_id, note: note.to_owned() }
    }

    pub fn batch(numbers: std::ops::Range<u64>) -> Vec<Self> {
        numbers.map(Self::new).collect()
    }
}

/// The first line of every job's body.
pub fn started(job: &Payload) {
    if let Some(starts) = STARTS.get() {
        // The channel is full after the expected starts. A further start is a second run of a job,
        // and only the first run counts.
        let _ = starts.try_send((job.user_id, Instant::now()));
    }
    RAN.fetch_add(1, Ordering::Relaxed);
}

/// The body of every step. The peer records its result.
pub fn step(index: u64) -> Value {
    RAN.fetch_add(1, Ordering::Relaxed);
    json!({ "ok": true, "index": index })
}

/// From now on, held bodies in this process never end.
pub fn hold() {
    HOLDS.store(true, Ordering::Relaxed);
}

/// Never ends after [`hold`].
pub async fn held() {
    if HOLDS.load(Ordering::Relaxed) {
        pending::<()>().await;
    }
}

/// The number of bodies that have run: a hint when to ask the database, never the result.
pub fn ran() -> u64 {
    RAN.load(Ordering::Relaxed)
}

/// Sends the number and the instant of each start from now on, for at most `starts` starts.
pub fn watch(starts: usize) -> mpsc::Receiver<(u64, Instant)> {
    let (sender, receiver) = mpsc::channel(starts.max(1));
    let _ = STARTS.set(sender);
    receiver
}
