//! What a test does for its runs while it waits for them: it sends the signals of its script, and lets time pass.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use sqlx::PgConnection;
use uuid::Uuid;

use crate::api::db::connection;
use crate::api::signal::SendSignal;
use crate::model::payload::{Plain, Sealer};
use crate::runtime::scene::Scene;
use crate::store::testing::{Look, look, skip};
use crate::{ClientError, Db};

/// How long nothing may change before the kit reports what the run waits for. A claim on a busy machine takes
/// much less.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

/// The pause between two looks. Each costs a query.
const PAUSE: Duration = Duration::from_millis(2);

/// How many times the kit skips time or sends a signal while the run under test does not progress. Other runs
/// may sleep again and again for ever.
const NUDGES: u32 = 1_000;

/// How many times the kit skips time or sends a signal in all. A run may sleep again and again for ever.
const MOST_NUDGES: u32 = 5_000;

/// Signals that are sent when a run waits for them.
#[derive(Clone, Debug, Default)]
pub(super) struct Script {
    signals: Vec<(String, Plain)>,
    /// Which of them were sent.
    sent: Arc<Mutex<Vec<usize>>>,
}

impl Script {
    pub(super) fn push(&mut self, name: String, payload: Plain) {
        self.signals.push((name, payload));
    }

    /// The same signals for another database.
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

/// The hand that moves what stands still.
#[derive(Debug)]
pub(super) struct Drive {
    db: Db,
    scene: Arc<Scene>,
    script: Script,
    patience: Duration,
}

impl Drive {
    pub(super) fn new(db: &Db, scene: Arc<Scene>, script: Script, patience: Duration) -> Self {
        Self { db: db.clone(), scene, script, patience }
    }

    /// What opens the payloads of its runs.
    pub(super) fn sealer(&self) -> &Sealer {
        self.db.sealer()
    }

    /// Moves things until the run has ended, or is blocked.
    pub(super) async fn to_end(&self, run_id: Uuid) -> Result<(), ClientError> {
        let mut connection = connection(self.db.pool()).await?;
        let mut still = Still::default();
        loop {
            let look = look(&mut connection, run_id).await?;
            if is_over(&look) {
                return Ok(());
            }
            still.see(&look);
            if still.nudges >= NUDGES {
                return Err(ClientError::Setup(overtaken(run_id, &look)));
            }
            if still.all_nudges >= MOST_NUDGES {
                return Err(ClientError::Setup(endless(run_id, &look)));
            }
            if still.is_held_up_for(self.patience) {
                return Err(ClientError::Setup(stuck(run_id, &look, self.patience)));
            }
            if look.is_at_rest() && self.nudge(&mut connection, &look).await? {
                still.nudged();
            } else if look.n_leased > 0 {
                still.restart();
            } else if still.lasts() > self.patience && !is_due_within(&look, self.patience) {
                return Err(ClientError::Setup(stuck(run_id, &look, self.patience)));
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Waits until nothing goes on.
    pub(super) async fn at_rest(&self, run_id: Uuid) -> Result<Look, ClientError> {
        let mut connection = connection(self.db.pool()).await?;
        let began = Instant::now();
        loop {
            let look = look(&mut connection, run_id).await?;
            if look.is_at_rest() {
                return Ok(look);
            }
            if began.elapsed() > self.patience {
                let Look { n_leased, n_due, .. } = look;
                return Err(ClientError::Setup(format!(
                    "the test is not at rest after {:?}: workers hold {n_leased} runs, and {n_due} runs are due and not claimed{}",
                    self.patience,
                    if n_due > 0 { UNCLAIMED } else { "" }
                )));
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Lets time pass to the next instant, once nothing goes on.
    pub(super) async fn skip(&self) -> Result<Duration, ClientError> {
        let look = self.at_rest(Uuid::nil()).await?;
        let Some(next) = look.next else {
            let message = "no run sleeps, so there is no time to skip; a run that waits for a signal without a limit, or for a person, goes on when it is \
                           given what it waits for";
            return Err(ClientError::Setup(message.to_owned()));
        };
        self.pass(&mut *connection(self.db.pool()).await?, next).await?;
        Ok(next)
    }

    /// Does what lets something that rests go on: sends a signal, or lets time pass. False where there is nothing to do.
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
        // First: whoever is woken must find the time past.
        self.scene.skipped.add(time);
        Ok(skip(connection, time).await?)
    }
}

/// Whether the run goes on no more by itself.
pub(super) fn is_over(look: &Look) -> bool {
    matches!(look.state.as_deref(), Some("completed" | "failed" | "cancelled" | "blocked"))
}

/// Whether time alone lets a run go on so soon. A run that was locked as it left its worker looks again after 30 s.
pub(super) fn is_due_within(look: &Look, patience: Duration) -> bool {
    look.next.is_some_and(|next| next <= patience)
}

/// Measures how long no event has happened, and how often the kit nudged runs without an event of its own run.
#[derive(Default)]
pub(super) struct Still {
    n_events: Option<i64>,
    since: Option<Instant>,
    n_own_events: i64,
    /// Since when the run under test has stood still, while nobody serves it or a run below it.
    held_up_since: Option<Instant>,
    /// Nudges since the last event of the run under test.
    pub(super) nudges: u32,
    /// Nudges since the beginning.
    pub(super) all_nudges: u32,
}

impl Still {
    pub(super) fn see(&mut self, look: &Look) {
        if self.n_events.replace(look.n_events) != Some(look.n_events) {
            self.restart();
        }
        let has_moved = std::mem::replace(&mut self.n_own_events, look.n_own_events) != look.n_own_events;
        if has_moved {
            self.nudges = 0;
        }
        let is_held_up = look.is_held_up && look.state.as_deref() != Some("running");
        self.held_up_since = match self.held_up_since.filter(|_| is_held_up && !has_moved) {
            None if is_held_up => Some(Instant::now()),
            since => since,
        };
    }

    fn is_held_up_for(&self, patience: Duration) -> bool {
        self.held_up_since.is_some_and(|since| since.elapsed() > patience)
    }

    pub(super) fn nudged(&mut self) {
        self.nudges += 1;
        self.all_nudges += 1;
        self.restart();
    }

    pub(super) fn lasts(&self) -> Duration {
        self.since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    fn restart(&mut self) {
        self.since = Some(Instant::now());
    }
}

fn overtaken(run_id: Uuid, look: &Look) -> String {
    let (state, why) = standing(look);
    format!(
        "run `{run_id}` is {state} and made no progress while the test skipped time for other runs {NUDGES} times{why}"
    )
}

fn endless(run_id: Uuid, look: &Look) -> String {
    let (state, why) = standing(look);
    format!(
        "run `{run_id}` is {state} after the test has skipped time or sent signals {MOST_NUDGES} times{why}"
    )
}

/// The state of the run under test, and what its database waits for, as the end of a sentence.
pub(super) fn standing(look: &Look) -> (&str, String) {
    let why = obstacles(look).map(|why| format!(": {why}")).unwrap_or_default();
    (state(look), why)
}

fn state(look: &Look) -> &str {
    look.state.as_deref().unwrap_or("not there")
}

/// A reason why a due run of a served job may not be claimed.
const UNCLAIMED: &str = "; does the run need a permit of a resource that has none left?";

fn stuck(run_id: Uuid, look: &Look, patience: Duration) -> String {
    let state = state(look);
    let why = obstacles(look).unwrap_or_else(|| match look.next {
        Some(next) => format!(
            "the next instant is {next:?} away; skip it with `test.skip_time()`, or `Testing::skipping_time`"
        ),
        None => {
            "nobody will wake it: is its job, and that of each of its children, named in `Testing::with`?"
                .to_owned()
        }
    });
    format!("run `{run_id}` is {state} and nothing has happened for {patience:?}: {why}")
}

/// Describes why runs do not continue, apart from waiting for an instant. `None` if there is no such reason.
fn obstacles(look: &Look) -> Option<String> {
    let mut obstacles = Vec::new();
    if !look.unserved.is_empty() {
        obstacles.push(format!(
            "no worker of the test serves {}; add it to the jobs of `Testing::with`",
            quoted(look.unserved.iter())
        ));
    }
    for (job, queue) in &look.unserved_queues {
        obstacles.push(format!(
            "no worker of the test serves `{job}` in queue `{queue}`; name every queue of the test in `Testing::queues`"
        ));
    }
    for (job, reason) in &look.disabled {
        obstacles.push(format!("job `{job}` is disabled: {reason}; enable it with `Db::untune`"));
    }
    for (job, state) in &look.parked {
        obstacles.push(format!("a run of `{job}` is {state}"));
    }
    if !look.waits.is_empty() {
        obstacles.push(format!(
            "signal {} is waited for; send it with `run.signal`, or name it in `Testing::signals`",
            quoted(look.waits.iter().map(|(_, name)| name))
        ));
    }
    if !look.gates.is_empty() {
        obstacles.push(format!(
            "nobody has decided gate {}; call `GateHandle::complete` or `GateHandle::fail`",
            quoted(look.gates.iter())
        ));
    }
    if look.n_due > 0 {
        obstacles.push(format!("{} runs are due and not claimed{UNCLAIMED}", look.n_due));
    }
    (!obstacles.is_empty()).then(|| obstacles.join(", and "))
}

fn quoted<'n>(names: impl Iterator<Item = &'n String>) -> String {
    names.map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}
