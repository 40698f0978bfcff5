//! The client of a fleet: it asks for runs all the time, and keeps what it asked for and what it was told, outside the database.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Result;
use runledger::{Call, Db, Handle, Job, Tx};
use runledger_tests::check::calls::{Submission, Told};
use runledger_tests::check::jobs;
use runledger_tests::check::place::Place;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;
use uuid::Uuid;

use super::jobs as own;
use crate::dice::Dice;

/// Calls that are under way at once: while the database is away, more would only wait.
const MOST_OPEN: usize = 64;

/// How long a call may take before its caller gives it up.
const PATIENCE: Duration = Duration::from_secs(20);

/// How often a caller repeats a call of which it heard nothing: longer than any fault lasts.
const MOST_TRIES: usize = 30;

/// Of how many keys the calls with a key choose one: some meet.
const KEYS: u64 = 1000;

/// A client that goes on until it is ended.
#[derive(Debug)]
pub struct Client {
    db: Db,
    history: Arc<Mutex<Vec<Submission>>>,
    cancelled: Arc<Mutex<Vec<Uuid>>>,
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Client {
    /// Begins to make so many calls a second.
    #[must_use]
    pub fn start(db: Db, place: Place, rate: u64, seed: u64) -> Self {
        let (history, cancelled) = (Arc::default(), Arc::default());
        let (stop, stopped) = watch::channel(false);
        let caller = Caller {
            db: db.clone(),
            place,
            history: Arc::clone(&history),
            cancelled: Arc::clone(&cancelled),
        };
        let task = tokio::spawn(call_steadily(caller, rate, Dice::new(seed), stopped));
        Self { db, history, cancelled, stop, task }
    }

    /// Its pool, for others to use and to spoil.
    #[must_use]
    pub fn db(&self) -> &Db {
        &self.db
    }

    /// How many calls have been answered or given up.
    #[must_use]
    pub fn n_calls(&self) -> usize {
        lock(&self.history).len()
    }

    /// Makes no more calls, waits for those that are under way, and gives all, and the runs that it cancelled.
    ///
    /// # Errors
    /// When it has panicked.
    pub async fn end(self) -> Result<(Vec<Submission>, Vec<Uuid>)> {
        let _ = self.stop.send(true);
        self.task.await?;
        Ok((lock(&self.history).clone(), lock(&self.cancelled).clone()))
    }
}

#[derive(Clone, Debug)]
struct Caller {
    db: Db,
    place: Place,
    history: Arc<Mutex<Vec<Submission>>>,
    cancelled: Arc<Mutex<Vec<Uuid>>>,
}

async fn call_steadily(caller: Caller, rate: u64, mut dice: Dice, mut stopped: watch::Receiver<bool>) {
    let open = Arc::new(Semaphore::new(MOST_OPEN));
    let mut ticks =
        tokio::time::interval(Duration::from_secs(1) / u32::try_from(rate.max(1)).unwrap_or(u32::MAX));
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    loop {
        tokio::select! {
            biased;
            _ = stopped.changed() => break,
            _ = ticks.tick() => {}
        }
        let Ok(permit) = Arc::clone(&open).try_acquire_owned() else { continue };
        let (caller, kind, key) = (caller.clone(), dice.below(100), dice.below(KEYS));
        tokio::spawn(async move {
            caller.call(kind, key).await;
            drop(permit);
        });
    }
    // When all permits are back, nothing is under way. The semaphore is never closed.
    let _ = open.acquire_many(u32::try_from(MOST_OPEN).unwrap_or(u32::MAX)).await;
}

impl Caller {
    /// Makes one call: which, the dice say.
    async fn call(&self, kind: u64, key: u64) {
        let place = || self.place.clone();
        let call = Uuid::now_v7();
        let numbered = self.place.of_call(call);
        match kind {
            0..22 => self.once(call, jobs::check_quick(numbered)).await,
            22..30 => self.once(call, own::chaos_slow(numbered, key)).await,
            30..38 => self.once(call, jobs::check_post(numbered)).await,
            38..48 => self.once(call, own::chaos_ten(numbered)).await,
            48..56 => self.once(call, own::chaos_posting(numbered)).await,
            56..62 => self.once(call, own::chaos_family(numbered, 20 * key % 700)).await,
            62..64 => self.once(call, jobs::check_flaky(numbered)).await,
            64..66 => self.once(call, own::chaos_stumbling(numbered)).await,
            66..70 => self.once(call, jobs::check_racing(numbered)).await,
            70..72 => self.cancelled(call, own::chaos_family(numbered, 700)).await,
            72..84 => self.until_acknowledged(&format!("shared-{key}"), || jobs::check_quick(place())).await,
            84..92 => {
                self.until_acknowledged(&Uuid::now_v7().to_string(), || jobs::check_steps(place())).await;
            }
            _ => self.beside_a_business_row().await,
        }
    }

    fn note(&self, submission: Submission) {
        lock(&self.history).push(submission);
    }

    async fn once<J: Job>(&self, number: Uuid, call: Call<J>) {
        self.numbered(number, call).await;
    }

    /// Without a key, so that a call of which nothing was heard cannot be repeated. Its number says which run came of it.
    async fn numbered<J: Job>(&self, number: Uuid, call: Call<J>) -> Option<Handle<J>> {
        let run = match tokio::time::timeout(PATIENCE, call.enqueue(&self.db)).await {
            Ok(Ok(run)) => Some(run),
            Ok(Err(error)) => {
                tracing::info!(%error, "a call failed");
                None
            }
            Err(_) => None,
        };
        self.note(match &run {
            Some(run) => Submission { call: Some(number), ..Submission::acknowledged(run.id()) },
            None => Submission::unanswered(number),
        });
        run
    }

    /// Cancelled at some moment of its life. It may have ended before.
    async fn cancelled<J: Job>(&self, number: Uuid, call: Call<J>) {
        let Some(run) = self.numbered(number, call).await else { return };
        lock(&self.cancelled).push(run.id());
        tokio::time::sleep(Duration::from_millis(300)).await;
        for _ in 0..MOST_TRIES {
            if let Ok(Ok(_)) =
                tokio::time::timeout(PATIENCE, run.cancel("the client thought better of it")).await
            {
                return;
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    }

    /// With a key, again and again until it is acknowledged.
    async fn until_acknowledged<J: Job>(&self, key: &str, call: impl Fn() -> Call<J>) {
        for _ in 0..MOST_TRIES {
            if let Ok(Ok(run)) =
                tokio::time::timeout(PATIENCE, call().idempotency_key(key).enqueue(&self.db)).await
            {
                return self
                    .note(Submission { key: Some(key.to_owned()), ..Submission::acknowledged(run.id()) });
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        self.note(Submission { run_id: None, key: Some(key.to_owned()), call: None, told: Told::Unknown });
    }

    /// In a transaction with a row of the application.
    async fn beside_a_business_row(&self) {
        let id = Uuid::now_v7();
        let (run_id, told) = match tokio::time::timeout(PATIENCE, self.begin_beside(id)).await {
            Ok(Ok((run_id, tx))) => match tokio::time::timeout(PATIENCE, tx.commit()).await {
                Ok(Ok(())) => (Some(run_id), Told::Ok),
                Ok(Err(_)) | Err(_) => (Some(run_id), Told::Unknown),
            },
            Ok(Err(_)) | Err(_) => (None, Told::Unknown),
        };
        self.note(Submission { run_id, key: Some(id.to_string()), call: None, told });
    }

    async fn begin_beside(&self, id: Uuid) -> Result<(Uuid, Tx)> {
        let mut tx = self.db.begin().await?;
        sqlx::query("insert into audit.business values ($1)").bind(id).execute(&mut *tx).await?;
        let call = jobs::check_quick(self.place.clone()).tenant("torn").idempotency_key(id.to_string());
        let run_id = call.enqueue(&mut tx).await?.id();
        Ok((run_id, tx))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
