//! The client's actions on its runs: it signals, pauses, cancels, revives, reruns and forks them.
//! It repeats actions that a server may have lost until the run ends.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::time::Duration;

use runledger::{
    Call, ClientError, Db, GateLinkKey, Graph, GraphHandle, Job, JobOverrides, Paused, Payload, RunHandle,
    RunState,
};
use runledger_tests::check::calls::{Submission, Told};
use runledger_tests::check::jobs;
use runledger_tests::check::pauses::Pause;
use runledger_tests::check::place::now_us;
use runledger_tests::check::shapes;
use runledger_tests::check::signals::{Sent, heard};
use sqlx::AssertSqlSafe;
use uuid::Uuid;

use super::client::{AGAIN, Caller, MOST_TRIES, PATIENCE};
use super::history::{History, Revoked};
use super::jobs::{self as own, ENDLESS, GATE, Journey};

/// How many signals of each name [`own::chaos_hearing`] receives.
const SIGNALS: u32 = 3;

/// How long a run stays paused: several heartbeats.
const PAUSE: Duration = Duration::from_millis(1200);

/// The deadline of runs that cannot meet it.
const SHORT: Duration = Duration::from_secs(1);

/// The validity of gate links.
const A_DAY: Duration = Duration::from_secs(86_400);

/// How long the client waits for a result before it repeats an action.
const A_WHILE: Duration = Duration::from_secs(2);

/// How a run ended, as far as a client can know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Completed,
    Failed,
    Cancelled,
    /// A server lost the run, or no answer came for too long.
    Unknown,
}

/// The result of a request.
enum Answer<T> {
    Done(T),
    Refused,
    Unknown,
}

impl Caller {
    /// Sends two series of signals at once: one from the start, and one from a later moment,
    /// perhaps while the run waits. Sends one more signal after the run's end.
    pub(super) async fn signalled(&self, later: Duration) {
        let Some(run) = self.fresh(|| own::chaos_hearing(self.place.clone(), SIGNALS)).await else { return };
        tokio::join!(self.series(&run, "left", Duration::ZERO), self.series(&run, "right", later));
        let again = || async {
            for name in ["left", "right"] {
                for value in 0..SIGNALS {
                    self.send(&run, name, value).await;
                }
            }
        };
        if self.until_ended(&run, again).await == End::Completed {
            let at_us = now_us();
            let told = self.send(&run, "left", SIGNALS).await;
            self.note(|history| {
                let (run_id, value) = (run.id(), SIGNALS);
                history.signals.push(Sent { run_id, name: "left", value, told, at_us, is_late: true });
            });
        }
    }

    async fn series<T: Payload>(&self, run: &RunHandle<T>, name: &'static str, later: Duration) {
        for value in 0..SIGNALS {
            tokio::time::sleep(later).await;
            let told = self.send(run, name, value).await;
            if value == 1 {
                // The same key makes it the same signal.
                self.send(run, name, value).await;
            }
            let (run_id, at_us) = (run.id(), now_us());
            self.note(|history| {
                history.signals.push(Sent { run_id, name, value, told, at_us, is_late: false });
            });
        }
    }

    async fn send<T>(&self, run: &RunHandle<T>, name: &str, value: u32) -> Told {
        let key = heard(name, value);
        match self.answered(|| run.signal(name, &value).idempotency_key(&key).into_future()).await {
            Answer::Done(_) => Told::Ok,
            Answer::Refused => Told::RolledBack,
            Answer::Unknown => Told::Unknown,
        }
    }

    /// Pauses a run at some moment of its life, and resumes it later.
    pub(super) async fn paused<J: Job>(&self, call: impl Fn() -> Call<J>, after: Duration) {
        let Some(run) = self.fresh(call).await else { return };
        tokio::time::sleep(after).await;
        if self.is_paused(&run).await {
            let from_us = now_us();
            tokio::time::sleep(PAUSE).await;
            let (run_id, until_us) = (run.id(), now_us());
            self.note(|history| history.pauses.push(Pause { run_id, from_us, until_us }));
        }
        self.let_go_on(&run).await;
    }

    /// Whether the run is paused, not only about to pause.
    async fn is_paused<T: Payload>(&self, run: &RunHandle<T>) -> bool {
        for _ in 0..MOST_TRIES {
            match self.answered(|| run.pause("the client wants to look at it")).await {
                Answer::Done(Paused::Now) => return true,
                Answer::Done(_) => tokio::time::sleep(AGAIN / 10).await,
                Answer::Refused | Answer::Unknown => return false,
            }
        }
        false
    }

    /// Requests a pause while the body is blocking and cannot be stopped, so that the pause comes
    /// too late.
    pub(super) async fn paused_too_late(&self) {
        let Some(run) = self.fresh(|| jobs::check_blocking(150)).await else { return };
        for _ in 0..MOST_TRIES {
            match run.state().await {
                Ok(RunState::Running) => break,
                Ok(state) if state.is_terminal() => return,
                _ => tokio::time::sleep(AGAIN / 50).await,
            }
        }
        self.answered(|| run.pause("the client wants to look at it")).await;
        self.let_go_on(&run).await;
    }

    /// Resumes the run whenever it is paused, until it ends. A blocked run stays blocked, and is a
    /// violation.
    async fn let_go_on<T: Payload>(&self, run: &RunHandle<T>) {
        let resume = || async {
            if matches!(run.state().await, Ok(RunState::Paused)) {
                self.answered(|| run.resume()).await;
            }
        };
        resume().await;
        self.until_ended(run, resume).await;
    }

    /// Pins a run to another version of its code before it becomes due.
    pub(super) async fn moved(&self) {
        let Some(run) = self.fresh(|| own::chaos_moving(self.place.clone()).delay(A_WHILE)).await else {
            return;
        };
        let pin = || async {
            self.answered(|| run.pin(2)).await;
        };
        pin().await;
        self.until_ended(&run, pin).await;
    }

    /// Sets a deadline that the run cannot meet: while it sleeps beside a running child, while it
    /// runs, or while it waits.
    pub(super) async fn doomed(&self, kind: u64) {
        match kind % 3 {
            0 => self.limited(|| own::chaos_family(self.place.clone(), millis(ENDLESS))).await,
            1 => self.limited(|| own::chaos_slow(self.place.clone(), millis(ENDLESS))).await,
            _ => self.limited(|| own::chaos_hearing(self.place.clone(), SIGNALS)).await,
        }
    }

    async fn limited<J: Job>(&self, call: impl Fn() -> Call<J>) {
        let Some(run) = self.fresh(|| call().deadline(SHORT)).await else { return };
        self.must_end(&run, "cancelled");
    }

    /// Reruns a run after its end.
    pub(super) async fn again(&self) {
        let Some(run) = self.fresh(|| jobs::check_quick(self.place.clone())).await else { return };
        if self.until_ended(&run, async || {}).await == End::Completed {
            self.linked(run.id(), tokio::time::timeout(PATIENCE, run.rerun()).await);
        }
    }

    /// Forks a run at one of its steps, while it runs or after its end.
    pub(super) async fn forked(&self, kind: u64) {
        let Some(run) = self.fresh(|| own::chaos_ten(self.place.clone())).await else { return };
        let step = if kind.is_multiple_of(2) {
            tokio::time::sleep(AGAIN).await;
            "check.quick[3]"
        } else {
            self.until_ended(&run, async || {}).await;
            "check.quick[6]"
        };
        self.linked(run.id(), tokio::time::timeout(PATIENCE, run.fork(step)).await);
    }

    /// Revives a run after the cause of its failure is fixed.
    pub(super) async fn revived(&self) {
        let number = Uuid::now_v7();
        let Some(run) = self.fresh(|| own::chaos_mendable(self.place.of_call(number))).await else { return };
        self.must_end(&run, "failed");
        if self.until_ended(&run, async || {}).await == End::Failed && self.place.mend(number).is_ok() {
            self.revive(&run, RunState::Failed).await;
        }
    }

    /// Revives a run twice. Both calls return the same new run.
    async fn revive<T: Payload>(&self, run: &RunHandle<T>, state: RunState) {
        for _ in 0..2 {
            let mut told = Submission::unanswered_link(run.id());
            for _ in 0..MOST_TRIES {
                match tokio::time::timeout(PATIENCE, run.revive(state)).await {
                    Ok(Ok(revived)) => {
                        told =
                            Submission { origin: Some(run.id()), ..Submission::acknowledged(revived.id()) };
                        break;
                    }
                    Ok(Err(ClientError::NoSuchRun { .. } | ClientError::WrongState { .. })) => break,
                    Ok(Err(_)) | Err(_) => tokio::time::sleep(AGAIN).await,
                }
            }
            self.note(|history| history.calls.push(told));
        }
    }

    /// Cancels a run at some moment of its life, unless it ends first. Optionally revives it
    /// afterwards.
    pub(super) async fn cancelled<T: Payload>(&self, run: &RunHandle<T>, after: Duration, is_revived: bool) {
        self.note(|history| history.hopeless.extend([run.id()]));
        tokio::time::sleep(after).await;
        let cancel = || async {
            self.answered(|| run.cancel("the client thought better of it")).await;
        };
        cancel().await;
        if is_revived && self.until_ended(run, cancel).await == End::Cancelled {
            self.revive(run, RunState::Cancelled).await;
        }
    }

    /// Starts one journey of this kind.
    pub(super) async fn journeys(&self, kind: u64) {
        let number = Uuid::now_v7();
        let journey = match kind % 5 {
            0 => Journey::Arrives,
            1 => Journey::TurnsBack,
            2 => Journey::Fails,
            3 => Journey::Strands,
            _ => Journey::Waits,
        };
        let Some(run) = self.fresh(|| own::chaos_journey(self.place.of_call(number), journey)).await else {
            return;
        };
        match journey {
            Journey::Arrives | Journey::TurnsBack => {}
            Journey::Fails => self.must_end(&run, "failed"),
            Journey::Strands => {
                self.must_end(&run, "failed");
                let mend = || async {
                    if matches!(run.state().await, Ok(RunState::Blocked)) && self.place.mend(number).is_ok() {
                        self.answered(|| run.resume()).await;
                    }
                };
                self.until_ended(&run, mend).await;
            }
            Journey::Waits => self.cancelled(&run, AGAIN, false).await,
        }
    }

    /// Records the only state in which the run can end.
    fn must_end<T>(&self, run: &RunHandle<T>, state: &'static str) {
        self.note(|history| history.ends.extend([(run.id(), state)]));
    }

    /// Enqueues a run with a unique key.
    async fn fresh<J: Job>(&self, call: impl Fn() -> Call<J>) -> Option<RunHandle<J::Output>> {
        self.until_acknowledged(&Uuid::now_v7().to_string(), call).await
    }

    /// Records the answer to a rerun or fork. Such a request is sent once, because a repetition
    /// would create another run.
    fn linked<T, E: Debug>(&self, origin: Uuid, told: Result<Result<RunHandle<T>, ClientError>, E>) {
        let told = match told {
            Ok(Ok(run)) => Submission { origin: Some(origin), ..Submission::acknowledged(run.id()) },
            Ok(Err(_)) | Err(_) => Submission::unanswered_link(origin),
        };
        self.note(|history| history.calls.push(told));
    }

    /// Repeats a request until it is answered.
    async fn answered<T, F>(&self, request: impl Fn() -> F) -> Answer<T>
    where
        F: Future<Output = Result<T, ClientError>> + Send,
    {
        for _ in 0..MOST_TRIES {
            match tokio::time::timeout(PATIENCE, request()).await {
                Ok(Ok(done)) => return Answer::Done(done),
                Ok(Err(ClientError::NoSuchRun { .. } | ClientError::WrongState { .. })) => {
                    return Answer::Refused;
                }
                Ok(Err(_)) | Err(_) => tokio::time::sleep(AGAIN).await,
            }
        }
        Answer::Unknown
    }

    /// Waits until a run ends, and repeats an action every 2 s, because a server may have lost it.
    async fn until_ended<T: Payload, F>(&self, run: &RunHandle<T>, again: impl Fn() -> F) -> End
    where
        F: Future<Output = ()> + Send,
    {
        for _ in 0..MOST_TRIES {
            match run.result_within(A_WHILE).await {
                Ok(_) => return End::Completed,
                Err(ClientError::RunFailed { .. }) => return End::Failed,
                Err(ClientError::RunCancelled { .. }) => return End::Cancelled,
                Err(ClientError::NoSuchRun { .. }) => return End::Unknown,
                Err(ClientError::RunBlocked { .. } | ClientError::WaitTimedOut { .. }) => {}
                Err(_) => tokio::time::sleep(AGAIN).await,
            }
            again().await;
        }
        End::Unknown
    }
}

impl Caller {
    /// Submits a graph with parallel chains, a gate and a failing node. Uses a gate link after
    /// revoking it, then decides the gate.
    pub(super) async fn graph(&self, millis: u64) {
        let key = Uuid::now_v7().to_string();
        let Some(graph) = self.submitted(&key, || own::graph(&self.place, millis)).await else { return };
        self.revoke(&graph).await;
        let again = || async {
            // The graph's end shows the result.
            let _ = tokio::time::timeout(PATIENCE, graph.gate(GATE).complete(&1_u64)).await;
        };
        again().await;
        self.until_ended(&graph, again).await;
    }

    /// Revokes a link to the gate, and uses the link.
    async fn revoke(&self, graph: &GraphHandle<u64>) {
        let Ok(key) = GateLinkKey::new([7; 32]) else { return };
        let from_us = now_us();
        let link = self.answered(|| async { graph.gate(GATE).link_to_complete(&key, A_DAY, &1_u64).await });
        let Answer::Done(text) = link.await else { return };
        let Ok(link) = self.db.gate_link(&key, &text) else { return };
        let Answer::Done(()) = self.answered(|| async { graph.gate(GATE).revoke_links().await }).await else {
            return;
        };
        let decided = matches!(tokio::time::timeout(PATIENCE, link.decide()).await, Ok(Ok(())));
        let (run_id, until_us) = (graph.id(), now_us());
        self.note(|history| history.revoked.push(Revoked { run_id, from_us, until_us, decided }));
    }

    /// Cancels a graph before its gate is decided, when most of its nodes have not started.
    pub(super) async fn graph_cancelled(&self, millis: u64) {
        let key = Uuid::now_v7().to_string();
        let Some(graph) = self.submitted(&key, || own::graph(&self.place, millis)).await else { return };
        self.cancelled(&graph, Duration::from_millis(millis), false).await;
    }

    /// Calls the operator functions in ways that change nothing: overrides a job with its own value
    /// and clears the override, stores and deletes a configuration that no job uses, sets a
    /// resource to its default permits, and adopts a database that is not a copy.
    pub(super) async fn tuned(&self) {
        let overrides = JobOverrides::new().max_attempts(2);
        // Nothing checks the result, so any answer is acceptable.
        let _ = tokio::time::timeout(PATIENCE, self.db.set_overrides("check.flaky", overrides)).await;
        let _ = tokio::time::timeout(PATIENCE, self.db.clear_overrides("check.flaky")).await;
        let _ = tokio::time::timeout(PATIENCE, self.db.set_permits("account 0", 1)).await;
        let config = BTreeMap::from([("answer", 42)]);
        let _ = tokio::time::timeout(PATIENCE, self.db.set_job_config("check.flaky", 1, &config)).await;
        let _ = tokio::time::timeout(PATIENCE, self.db.delete_job_config("check.flaky", 1)).await;
        let _ = tokio::time::timeout(PATIENCE, self.db.adopt()).await;
    }

    /// Submits a graph of a random shape. The final checks derive the expected result from the seed
    /// in its key.
    pub(super) async fn shape(&self, seed: u64) {
        let graph = || shapes::graph_of(&shapes::shapes(seed));
        self.submitted(&shapes::key_of(seed), graph).await;
    }

    async fn submitted<T: Payload>(&self, key: &str, graph: impl Fn() -> Graph<T>) -> Option<GraphHandle<T>> {
        for _ in 0..MOST_TRIES {
            let graph = graph().idempotency_key(key);
            if let Ok(Ok(graph)) = tokio::time::timeout(PATIENCE, graph.enqueue(&self.db)).await {
                let call = Submission { key: Some(key.to_owned()), ..Submission::acknowledged(graph.id()) };
                self.note(|history| history.calls.push(call));
                return Some(graph);
            }
            tokio::time::sleep(AGAIN).await;
        }
        self.note(|history| history.calls.push(Submission::unanswered_key(&key)));
        None
    }
}

/// Repeats, with the same keys, the client's actions on runs that may be back in an earlier state
/// after a server lost data: sends signals, decides gates and resumes paused runs.
///
/// # Errors
/// The database did not answer.
pub async fn repeat(db: &Db, history: &History) -> Result<(), ClientError> {
    for Sent { run_id, name, value, .. } in history.signals.iter().filter(|sent| !sent.is_late) {
        match db.run(*run_id).signal(name, value).idempotency_key(heard(name, *value)).await {
            Ok(_) | Err(ClientError::NoSuchRun { .. } | ClientError::WrongState { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    // An unacknowledged graph may exist too.
    let graphs = format!("select run_id from runledger.run where {WITH_GATE}");
    let graphs: Vec<Uuid> = sqlx::query_scalar(AssertSqlSafe(graphs)).fetch_all(db.pool()).await?;
    decide(db, &graphs).await?;
    let paused = "select run_id from runledger.waiting where state = 'paused'";
    let paused: Vec<Uuid> = sqlx::query_scalar(paused).fetch_all(db.pool()).await?;
    for run_id in paused {
        RunHandle::attach(own::chaos_ten, db, run_id).resume().await?;
    }
    Ok(())
}

/// Decides the gates of graphs that exist although their submission was never acknowledged, so that
/// their client does not know them.
///
/// # Errors
/// The database did not answer.
pub async fn decide_unheard(db: &Db, submissions: &[Submission]) -> Result<(), ClientError> {
    let unheard = submissions.iter().filter(|submission| submission.told != Told::Ok);
    let keys: Vec<&str> = unheard.filter_map(|submission| submission.key.as_deref()).collect();
    let graphs = format!("select run_id from runledger.run where {WITH_GATE} and idempotency_key = any ($1)");
    let graphs: Vec<Uuid> =
        sqlx::query_scalar(AssertSqlSafe(graphs)).bind(&keys).fetch_all(db.pool()).await?;
    decide(db, &graphs).await
}

/// The graphs of the load with a gate: all but those of a random shape.
const WITH_GATE: &str = "graph is not null and coalesce(idempotency_key, '') not like 'shape-%'";

async fn decide(db: &Db, graphs: &[Uuid]) -> Result<(), ClientError> {
    for run_id in graphs {
        match db.graph::<u64>(*run_id).gate(GATE).complete(&1_u64).await {
            Ok(()) | Err(ClientError::GateNotOpen { .. } | ClientError::GateDecided { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
