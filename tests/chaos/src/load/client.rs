//! The client of a fleet. It enqueues runs all the time, and stores its requests and their answers
//! outside the database.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Result;
use runledger::{Call, Db, Job, RunHandle, Tx};
use runledger_tests::check::calls::{Submission, Told};
use runledger_tests::check::jobs;
use runledger_tests::check::place::Place;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;
use uuid::Uuid;

use super::history::History;
use super::jobs::{self as own, ENDLESS};
use crate::dice::Dice;

/// The limit of open calls. While the database is down, more calls would only wait.
const MOST_OPEN: usize = 256;

/// Calls of this kind and higher act on their runs later. They have their own limit of open calls,
/// so that they never block the other calls.
const FIRST_VISIT: u64 = 78;

/// How long a call may take before its caller abandons it.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);

/// How often a caller repeats an unanswered call: together longer than any fault lasts.
pub(super) const MOST_TRIES: usize = 30;

/// The pause before a repetition.
pub(super) const AGAIN: Duration = Duration::from_millis(500);

/// Longer than any scenario and any jump of a clock.
const DAY: Duration = Duration::from_secs(24 * 3600);

/// Calls with a key choose one of this many, so that some calls share a key.
const KEYS: u64 = 1000;

/// A client that runs until [`end`](Self::end).
#[derive(Debug)]
pub struct Client {
    db: Db,
    history: Arc<Mutex<History>>,
    /// Calls per second. 0 stops the client.
    rate: watch::Sender<u64>,
    task: JoinHandle<()>,
}

impl Client {
    /// Starts making `rate` calls per second.
    #[must_use]
    pub fn start(db: Db, place: Place, rate: u64, seed: u64) -> Self {
        let history = Arc::default();
        let (rate, rates) = watch::channel(rate.max(1));
        let caller = Caller { db: db.clone(), place, history: Arc::clone(&history) };
        let task = tokio::spawn(call_steadily(caller, Dice::new(seed), rates));
        Self { db, history, rate, task }
    }

    /// Returns the client's pool, which scenarios also use and break.
    #[must_use]
    pub fn db(&self) -> &Db {
        &self.db
    }

    /// Returns how many calls were answered or abandoned.
    #[must_use]
    pub fn n_calls(&self) -> usize {
        lock(&self.history).calls.len()
    }

    /// Reduces the rate to a tenth.
    pub fn slow_down(&self) {
        self.rate.send_modify(|rate| *rate = (*rate / 10).max(1));
    }

    /// Stops calling, waits for open calls, and returns everything that the client did and learned.
    ///
    /// # Errors
    /// The task panicked.
    pub async fn end(self) -> Result<History> {
        self.rate.send_replace(0);
        self.task.await?;
        Ok(std::mem::take(&mut *lock(&self.history)))
    }
}

#[derive(Clone, Debug)]
pub(super) struct Caller {
    pub(super) db: Db,
    pub(super) place: Place,
    history: Arc<Mutex<History>>,
}

async fn call_steadily(caller: Caller, mut dice: Dice, mut rates: watch::Receiver<u64>) {
    let [calls, visits] = [(); 2].map(|()| Arc::new(Semaphore::new(MOST_OPEN)));
    let ticks = |rate: u64| {
        let second = Duration::from_secs(1);
        let mut ticks = tokio::time::interval(second / u32::try_from(rate).unwrap_or(u32::MAX));
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
        ticks
    };
    let mut tick = ticks(*rates.borrow_and_update());
    loop {
        tokio::select! {
            biased;
            _ = rates.changed() => match *rates.borrow_and_update() {
                0 => break,
                rate => tick = ticks(rate),
            },
            _ = tick.tick() => {}
        }
        let (caller, kind, key) = (caller.clone(), dice.below(100), dice.below(KEYS));
        let shape = dice.below(u64::MAX);
        let open = if kind < FIRST_VISIT { &calls } else { &visits };
        let Ok(permit) = Arc::clone(open).try_acquire_owned() else { continue };
        tokio::spawn(async move {
            caller.call(kind, key, shape).await;
            drop(permit);
        });
    }
    for open in [calls, visits] {
        // When all permits are back, no call is open. The semaphore is never closed.
        let _ = open.acquire_many(u32::try_from(MOST_OPEN).unwrap_or(u32::MAX)).await;
    }
}

impl Caller {
    /// Makes one call of this kind.
    async fn call(&self, kind: u64, key: u64, shape: u64) {
        let place = || self.place.clone();
        let call = Uuid::now_v7();
        let numbered = self.place.of_call(call);
        match kind {
            0..12 => self.once(call, jobs::check_quick(numbered)).await,
            // The key is unique, so the call is never refused.
            12 => self.once(call, own::chaos_slow(numbered, key).active_key(call.to_string())).await,
            // Eight resources and short bodies, so that every run gets its turn and some runs
            // compete.
            13 => {
                let resource = format!("account {}", key % 8);
                self.once(call, own::chaos_slow(numbered, key / 4).resource(resource)).await;
            }
            14..20 => self.once(call, own::chaos_slow(numbered, key)).await,
            20..26 => self.once(call, jobs::check_post(numbered)).await,
            26..35 => self.once(call, own::chaos_ten(numbered)).await,
            35..41 => self.posting(call).await,
            41..47 => {
                self.once(call, own::chaos_family(numbered, 20 * key % 700).deadline(DAY)).await;
            }
            47..49 => self.once(call, jobs::check_flaky(numbered)).await,
            49..51 => self.once(call, own::chaos_stumbling(numbered)).await,
            51..54 => self.once(call, jobs::check_racing(numbered)).await,
            54..56 => self.once(call, jobs::check_continued(numbered, 0)).await,
            56..58 => self.once(call, jobs::check_sliced(numbered)).await,
            58..60 => self.once(call, own::chaos_fan(numbered)).await,
            60..67 => {
                self.until_acknowledged(&format!("shared-{key}"), || jobs::check_quick(place())).await;
            }
            67..72 => {
                self.until_acknowledged(&Uuid::now_v7().to_string(), || jobs::check_steps(place())).await;
            }
            72..FIRST_VISIT => self.beside_a_business_row().await,
            FIRST_VISIT..81 => self.family_cancelled(call, key.is_multiple_of(2)).await,
            81..85 => self.signalled(Duration::from_millis(key)).await,
            85..87 => self.paused(|| own::chaos_ten(place()), Duration::from_millis(key)).await,
            87 => {
                let call = || own::chaos_family(place(), 700);
                self.paused(call, Duration::from_millis(key)).await;
            }
            88 if key.is_multiple_of(2) => self.paused_too_late().await,
            88 => self.moved().await,
            89..92 => self.doomed(key).await,
            92 => self.again().await,
            93 => self.forked(key).await,
            94 if key.is_multiple_of(2) => self.graph(key).await,
            94 => self.graph_cancelled(key).await,
            95..97 => self.revived().await,
            97 => self.shape(shape).await,
            98 => self.tuned().await,
            _ => self.journeys(key).await,
        }
    }

    pub(super) fn note(&self, add: impl FnOnce(&mut History)) {
        add(&mut lock(&self.history));
    }

    fn note_call(&self, call: Submission) {
        self.note(|history| history.calls.push(call));
    }

    async fn once<J: Job>(&self, number: Uuid, call: Call<J>) {
        self.numbered(number, call).await;
    }

    /// Enqueues without a key, so an unanswered call cannot be repeated. The number in its input
    /// identifies its run.
    async fn numbered<J: Job>(&self, number: Uuid, call: Call<J>) -> Option<RunHandle<J::Output>> {
        let run = match tokio::time::timeout(PATIENCE, call.enqueue(&self.db)).await {
            Ok(Ok(run)) => Some(run),
            Ok(Err(error)) => {
                tracing::info!(%error, "a call failed");
                None
            }
            Err(_) => None,
        };
        self.note_call(match &run {
            Some(run) => Submission { call: Some(number), ..Submission::acknowledged(run.id()) },
            None => Submission::unanswered(number),
        });
        run
    }

    /// Cancels a run while its child runs, or near its end. Revives the short one.
    async fn family_cancelled(&self, number: Uuid, is_short: bool) {
        let millis = if is_short { 700 } else { u64::try_from(ENDLESS.as_millis()).unwrap_or(u64::MAX) };
        let call = own::chaos_family(self.place.of_call(number), millis);
        let Some(run) = self.numbered(number, call).await else { return };
        self.cancelled(&run, Duration::from_millis(300), is_short).await;
    }

    /// A run that enqueues another run itself, in a transaction.
    async fn posting(&self, number: Uuid) {
        let sale = Uuid::now_v7();
        self.note_call(Submission::unanswered_key(&sale));
        self.once(number, own::chaos_posting(self.place.of_call(number), sale)).await;
    }

    /// Enqueues with a key, repeatedly until the call is acknowledged.
    pub(super) async fn until_acknowledged<J: Job>(
        &self,
        key: &str,
        call: impl Fn() -> Call<J>,
    ) -> Option<RunHandle<J::Output>> {
        for _ in 0..MOST_TRIES {
            if let Ok(Ok(run)) =
                tokio::time::timeout(PATIENCE, call().idempotency_key(key).enqueue(&self.db)).await
            {
                self.note_call(Submission {
                    key: Some(key.to_owned()),
                    ..Submission::acknowledged(run.id())
                });
                return Some(run);
            }
            tokio::time::sleep(AGAIN).await;
        }
        self.note_call(Submission::unanswered_key(&key));
        None
    }

    /// Enqueues in a transaction with an application row.
    async fn beside_a_business_row(&self) {
        let id = Uuid::now_v7();
        let (run_id, told) = match tokio::time::timeout(PATIENCE, self.begin_beside(id)).await {
            Ok(Ok((run_id, tx))) => match tokio::time::timeout(PATIENCE, tx.commit()).await {
                Ok(Ok(())) => (Some(run_id), Told::Ok),
                Ok(Err(_)) | Err(_) => (Some(run_id), Told::Unknown),
            },
            Ok(Err(_)) | Err(_) => (None, Told::Unknown),
        };
        self.note_call(Submission { run_id, told, ..Submission::unanswered_key(&id) });
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
