//! What every body of every peer does, and nothing else: it says that it ran.

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

/// One for the process, because some peers give their bodies no state of the application's; a process measures one figure.
static RAN: AtomicU64 = AtomicU64::new(0);
static HOLDS: AtomicBool = AtomicBool::new(false);
static STARTS: OnceLock<mpsc::Sender<(u64, Instant)>> = OnceLock::new();

/// What every job carries: about a hundred bytes.
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
        // A run beyond those announced to `watch` is one the peer ran twice: the first counts.
        let _ = starts.try_send((job.user_id, Instant::now()));
    }
    RAN.fetch_add(1, Ordering::Relaxed);
}

/// The whole of every step's body: what it returns is recorded by the peer.
pub fn step(index: u64) -> Value {
    RAN.fetch_add(1, Ordering::Relaxed);
    json!({ "ok": true, "index": index })
}

/// From now on what is held in this process stays so.
pub fn hold() {
    HOLDS.store(true, Ordering::Relaxed);
}

/// Never ends in a process that holds.
pub async fn held() {
    if HOLDS.load(Ordering::Relaxed) {
        pending::<()>().await;
    }
}

/// How many bodies have run: a hint when to ask the database, never the answer.
pub fn ran() -> u64 {
    RAN.load(Ordering::Relaxed)
}

/// The number and the instant of each start from now on, of at most so many.
pub fn watch(starts: usize) -> mpsc::Receiver<(u64, Instant)> {
    let (sender, receiver) = mpsc::channel(starts.max(1));
    let _ = STARTS.set(sender);
    receiver
}
