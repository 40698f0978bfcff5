//! Moves the runs of a test while it waits for them: sends signals and skips time.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use sqlx::PgConnection;
use uuid::Uuid;

use super::database::admin;
use super::standstill::{Standstill, is_over, unclaimed};
use crate::client::signal::SendSignal;
use crate::engine::test_hooks::TestHooks;
use crate::model::payload::{Plain, Sealer};
use crate::store::testing::{Look, look, skip};
use crate::{ClientError, Db};

/// How long nothing may change before the kit reports what the run waits for. A claim on a busy
/// machine takes much less.
pub(super) const STALL_LIMIT: Duration = Duration::from_secs(30);

/// The pause between two polls. Each poll costs a query.
const PAUSE: Duration = Duration::from_millis(2);

/// Signals that are sent when a run waits for them.
#[derive(Clone, Debug, Default)]
pub(super) struct Script {
    signals: Vec<(String, Plain)>,
    /// The indices of signals that were sent.
    sent: Arc<Mutex<Vec<usize>>>,
}

impl Script {
    pub(super) fn push(&mut self, name: String, payload: Plain) {
        self.signals.push((name, payload));
    }

    /// The same signals, all unsent, for another database.
    pub(super) fn anew(&self) -> Self {
        Self { signals: self.signals.clone(), sent: Arc::default() }
    }

    /// Takes the next signal of a name.
    fn take(&self, name: &str) -> Option<(usize, &Plain)> {
        // Nothing panics while it holds the lock.
        let mut sent = self.sent.lock().unwrap_or_else(PoisonError::into_inner);
        let mut left = self.signals.iter().enumerate();
        let (at, (_, payload)) = left.find(|(at, (its, _))| its == name && !sent.contains(at))?;
        sent.push(at);
        Some((at, payload))
    }
}

/// The connection that polls and moves the runs of a test. It is outside the pool, because bodies
/// may exhaust the pool.
///
/// Only one caller at a time uses it, from a poll to the resulting action. Otherwise two results
/// that are awaited together would skip the same time twice, or send two signals to one run.
#[derive(Debug, Default)]
pub(super) struct Hand(tokio::sync::Mutex<Option<PgConnection>>);

impl Hand {
    async fn with<T>(
        &self,
        db: &Db,
        work: impl AsyncFnOnce(&mut PgConnection) -> Result<T, ClientError>,
    ) -> Result<T, ClientError> {
        let mut hand = self.0.lock().await;
        // Put back only after success: a dropped future may leave an answer unread.
        let mut connection = match hand.take() {
            Some(connection) => connection,
            None => admin(&db.pool().connect_options()).await?,
        };
        let done = Box::pin(work(&mut connection)).await?;
        *hand = Some(connection);
        Ok(done)
    }
}

/// The next action of the test kit after a poll that found no progress.
#[derive(Clone, Copy, Debug)]
enum Then {
    Nudge,
    Skip,
    Nothing,
}

/// Moves runs that do not progress by themselves.
#[derive(Clone, Debug)]
pub(super) struct Drive {
    db: Db,
    scene: Arc<TestHooks>,
    script: Script,
    names: Names,
    stall_limit: Duration,
}

/// Each name of a job, paired with every name of that job.
pub(super) type Names = Arc<[(&'static str, &'static str)]>;

impl Drive {
    pub(super) fn new(
        db: &Db,
        scene: Arc<TestHooks>,
        script: Script,
        names: Names,
        stall_limit: Duration,
    ) -> Self {
        Self { db: db.clone(), scene, script, names, stall_limit }
    }

    /// Polls the database, and one run in it.
    pub(super) async fn look(
        &self,
        connection: &mut PgConnection,
        run_id: Uuid,
    ) -> Result<Look, sqlx::Error> {
        look(connection, run_id, &self.names).await
    }

    /// The key to the payloads of its runs.
    pub(super) fn sealer(&self) -> &Sealer {
        self.db.sealer()
    }

    /// Moves runs until this run has ended or is blocked.
    pub(super) async fn to_end(&self, hand: &Arc<Hand>, run_id: Uuid) -> Result<(), ClientError> {
        let mut standstill = Standstill::default();
        loop {
            let (look, has_moved) = self.look_then(hand, run_id, Then::Nudge).await?;
            if is_over(&look) {
                return Ok(());
            }
            standstill.see(&look);
            if has_moved {
                standstill.nudged();
            } else if look.n_leased > 0 {
                standstill.bodies_run(&look);
            }
            if let Some(limit) = standstill.limit(&look, self.stall_limit) {
                let (state, why) = (look.state(), limit.why(&look));
                return Err(ClientError::Config(format!("run `{run_id}` is {state} and {limit}{why}")));
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Waits until no run is active.
    pub(super) async fn wait_until_idle(&self, hand: &Arc<Hand>, run_id: Uuid) -> Result<(), ClientError> {
        self.once_at_rest(hand, run_id, Then::Nothing).await.map(drop)
    }

    /// Skips time to the next instant, once no run is active.
    pub(super) async fn skip(&self, hand: &Arc<Hand>) -> Result<Duration, ClientError> {
        self.once_at_rest(hand, Uuid::nil(), Then::Skip).await?.ok_or_else(|| {
            let message = "no run sleeps, so there is no time to skip; a run that waits for a signal without a limit, or for a person, goes on when it is \
                           given what it waits for";
            ClientError::Config(message.to_owned())
        })
    }

    /// Waits until no run is active. Returns the time until the next run is due.
    async fn once_at_rest(
        &self,
        hand: &Arc<Hand>,
        run_id: Uuid,
        then: Then,
    ) -> Result<Option<Duration>, ClientError> {
        let began = Instant::now();
        loop {
            let (look, _) = self.look_then(hand, run_id, then).await?;
            if look.is_at_rest() {
                return Ok(look.next);
            }
            if began.elapsed() > self.stall_limit {
                let (stall_limit, unclaimed) = (self.stall_limit, unclaimed(&look));
                let unclaimed = unclaimed.map(|unclaimed| format!(", and {unclaimed}")).unwrap_or_default();
                return Err(ClientError::Config(format!(
                    "the test is not at rest after {stall_limit:?}: workers hold {} runs{unclaimed}",
                    look.n_leased
                )));
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Polls, and acts if no run is active. Returns whether it moved a run.
    async fn look_then(
        &self,
        hand: &Arc<Hand>,
        run_id: Uuid,
        then: Then,
    ) -> Result<(Look, bool), ClientError> {
        let (drive, hand) = (self.clone(), Arc::clone(hand));
        // In a task, so that a caller whose future is not polled does not block others.
        let looking = tokio::spawn(async move {
            let work = async |connection: &mut PgConnection| {
                let look = drive.look(connection, run_id).await?;
                let has_moved =
                    look.is_at_rest() && !is_over(&look) && drive.act(connection, &look, then).await?;
                Ok((look, has_moved))
            };
            hand.with(&drive.db, work).await
        });
        looking
            .await
            .unwrap_or_else(|error| Err(ClientError::Config(format!("a look at the test failed: {error}"))))
    }

    async fn act(&self, connection: &mut PgConnection, look: &Look, then: Then) -> Result<bool, ClientError> {
        match (then, look.next) {
            (Then::Nudge, _) => self.nudge(connection, look).await,
            (Then::Skip, Some(next)) => self.pass(connection, next).await.map(|()| true),
            (Then::Skip, None) | (Then::Nothing, _) => Ok(false),
        }
    }

    /// Sends a signal or skips time, so that an idle run continues. Returns false if it can do
    /// neither.
    pub(super) async fn nudge(
        &self,
        connection: &mut PgConnection,
        look: &Look,
    ) -> Result<bool, ClientError> {
        for (run_id, name) in &look.waits {
            if let Some((at, payload)) = self.script.take(name) {
                let signal = SendSignal::ready(*run_id, name, payload.clone());
                signal.idempotency_key(format!("script-{at}")).send(&self.db).await?;
                return Ok(true);
            }
        }
        match look.next {
            Some(next) if self.scene.skipped.by_itself => {
                self.pass(connection, next).await?;
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    async fn pass(&self, connection: &mut PgConnection, time: Duration) -> Result<(), ClientError> {
        // First, because a woken run must find the time past.
        self.scene.skipped.add(time);
        Ok(skip(connection, time).await?)
    }
}
