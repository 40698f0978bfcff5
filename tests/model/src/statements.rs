//! The engine's own statements with their parameters, and defects of single statements. A defect
//! shows why the removed part is needed.

mod claims;

use runledger::__private::STATEMENTS;
use runledger::model::run::settle::{Counters, Settlement, Verdict};
use runledger::model::timestamp::Timestamp;
use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, PgConnection, Postgres, Row};
use uuid::Uuid;

/// The name of every worker's session.
const SESSION: &str = "session";

type Query = sqlx::query::Query<'static, Postgres, sqlx::postgres::PgArguments>;
type Result<T> = std::result::Result<T, sqlx::Error>;

/// One replacement in the text of a statement, which matches exactly once.
#[derive(Clone, Copy, Debug)]
pub struct Edit {
    /// The statement.
    pub statement: &'static str,
    /// The original text.
    pub old: &'static str,
    /// Its replacement.
    pub new: &'static str,
}

/// The statements, with at most one deliberate defect.
#[derive(Clone, Copy, Debug, Default)]
pub struct Statements {
    edit: Option<Edit>,
}

/// The right to write for an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fence {
    /// The run.
    pub run_id: Uuid,
    /// The token of the claim.
    pub token: Uuid,
}

/// A claimed run.
#[derive(Clone, Debug)]
pub struct Claimed {
    /// The run.
    pub run_id: Uuid,
    /// Its counters, including this attempt.
    pub counters: Counters,
    /// Whether its cancellation is requested.
    pub cancel_requested: bool,
    /// The keys of its recorded steps, in order.
    pub steps: Vec<String>,
}

/// A lease whose worker is dead or does not know it.
#[derive(Clone, Debug)]
pub struct Lease {
    /// Its fence.
    pub fence: Fence,
    /// The run's counters.
    pub counters: Counters,
    /// Whether the run's cancellation is requested. False if the statement does not return it.
    pub cancel_requested: bool,
}

/// The reply to a heartbeat.
#[derive(Clone, Debug)]
pub struct Pulse {
    /// False if the worker was marked dead.
    pub alive: bool,
    /// The worker's runs to cancel.
    pub cancels: Vec<Uuid>,
    /// Whether unclaimed runs are to be cancelled.
    pub cancels_left: bool,
    /// The worker's runs to pause.
    pub pauses: Vec<Uuid>,
    /// Whether unclaimed runs are to be paused.
    pub pauses_left: bool,
}

/// The events that a waiting run waits for.
#[derive(Clone, Debug, Default)]
pub struct Waits {
    /// The end of any of these runs.
    pub any: Vec<Uuid>,
    /// The end of all of these runs.
    pub all: Vec<Uuid>,
    /// A signal of any of these names.
    pub signals: Vec<String>,
}

/// A node of a graph, or an addition to one.
#[derive(Clone, Debug)]
pub struct Node {
    /// Its run.
    pub run_id: Uuid,
    /// Its name.
    pub name: &'static str,
    /// Its job.
    pub job: String,
    /// The number of unfinished dependencies.
    pub n_waits: i32,
    /// The outcome of a dependency that did not succeed, so that the node is cancelled at once.
    pub hopeless: Option<String>,
}

/// The result of an enqueue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Submission {
    /// The run is new.
    Created,
    /// The run existed before.
    Existing,
}

impl Statements {
    /// Returns the engine's statements.
    #[must_use]
    pub const fn real() -> Self {
        Self { edit: None }
    }

    /// Returns the statements with one defect.
    ///
    /// # Panics
    /// The original text does not occur exactly once in the statement. The statement has changed
    /// then, and the defect must be stated again.
    #[must_use]
    pub fn with(edit: Edit) -> Self {
        let n_matches = text(edit.statement).matches(edit.old).count();
        assert_eq!(n_matches, 1, "`{}` in `{}`", edit.old, edit.statement);
        Self { edit: Some(edit) }
    }

    fn query(&self, name: &'static str) -> Query {
        let text = match self.edit {
            Some(edit) if edit.statement == name => text(name).replace(edit.old, edit.new),
            _ => text(name).to_owned(),
        };
        sqlx::query(AssertSqlSafe(text))
    }

    /// Returns whether an existing run is visible.
    pub async fn existing(&self, db: &mut PgConnection, run_id: Uuid) -> Result<bool> {
        Ok(self.query("existing").bind(vec![run_id]).fetch_optional(db).await?.is_some())
    }

    /// Records a step for the first time. Returns false if the fence is lost.
    pub async fn checkpoint_fresh(&self, db: &mut PgConnection, fence: Fence, key: &str) -> Result<bool> {
        held(&step(self.query("checkpoint_fresh"), fence, key).fetch_one(db).await?)
    }

    /// Records a step that may be recorded already. Returns false if the fence is lost.
    pub async fn checkpoint(&self, db: &mut PgConnection, fence: Fence, key: &str) -> Result<bool> {
        held(&step(self.query("checkpoint"), fence, key).bind(None::<String>).fetch_one(db).await?)
    }

    /// Records a step with a compensation. Returns false if the fence is lost.
    pub async fn checkpoint_to_undo(&self, db: &mut PgConnection, fence: Fence, key: &str) -> Result<bool> {
        let query = step_with(self.query("checkpoint"), fence, key, vec![Some("{}")]);
        held(&query.bind(None::<String>).fetch_one(db).await?)
    }

    /// Waits for concurrent writes of an attempt.
    pub async fn lock_lease(&self, db: &mut PgConnection, fence: Fence) -> Result<()> {
        self.query("lock_lease").bind(fence.run_id).bind(fence.token).execute(db).await.map(drop)
    }

    /// Ends an attempt. Returns false if the fence is lost.
    pub async fn settle(&self, db: &mut PgConnection, fence: Fence, settlement: &Settlement) -> Result<bool> {
        if let Verdict::Complete(output) = &settlement.verdict {
            let query = self.query("settle_completed").bind(vec![fence.run_id]).bind(vec![fence.token]);
            return held(&query.bind(vec![output.as_str().to_owned()]).fetch_one(db).await?);
        }
        let Columns { state, error, delay_us, cause } = Columns::of(&settlement.verdict);
        let query = self
            .query("settle")
            .bind(vec![fence.run_id])
            .bind(vec![fence.token])
            .bind(vec![state])
            .bind(vec![None::<String>])
            .bind(vec![error])
            .bind(vec![delay_us])
            .bind(vec![None::<String>])
            .bind(vec![cause])
            .bind(vec![settlement.counters.attempt])
            .bind(vec![settlement.counters.crashes])
            .bind(None::<String>);
        Ok(query.fetch_optional(db).await?.is_some())
    }

    /// Suspends a run until what it waits for comes. Returns `None` if the fence is lost, and false
    /// if it has come already.
    pub async fn suspend(
        &self,
        db: &mut PgConnection,
        fence: Fence,
        waits: &Waits,
        counters: Counters,
        is_locked: bool,
    ) -> Result<Option<bool>> {
        let query = self.query("suspend").bind(fence.run_id).bind(fence.token).bind(waits.any.clone());
        let query = query.bind(waits.all.clone()).bind(waits.signals.clone());
        let query = query.bind(None::<String>).bind(counters.attempt - 1).bind(counters.crashes);
        query.bind(is_locked).fetch_optional(db).await?.map(|row| row.try_get("parked")).transpose()
    }

    /// Sends a signal to a run. Returns false if the run has ended.
    pub async fn send_signal(
        &self,
        db: &mut PgConnection,
        run_id: Uuid,
        name: &str,
        key: &str,
    ) -> Result<bool> {
        let query =
            self.query("send_signal").bind(run_id).bind(name.to_owned()).bind("1").bind(key.to_owned());
        let row = query.bind(10_i32).fetch_one(db).await?;
        Ok(row.try_get::<Option<i32>, _>("number")?.is_some())
    }

    /// Takes the first signal of a name for a step. Returns whether there was one, or `None` if the
    /// fence is lost.
    pub async fn take_signal(
        &self,
        db: &mut PgConnection,
        fence: Fence,
        name: &str,
        key: &str,
    ) -> Result<Option<bool>> {
        let query = self.query("take_signal").bind(vec![fence.run_id]).bind(vec![fence.token]);
        let query = query.bind(vec![key.to_owned()]).bind(vec![0_i64]).bind(vec![0_i64]).bind(vec!["1"]);
        let query = query.bind(vec![0_i32]).bind(Vec::<String>::new()).bind(vec![name.to_owned()]);
        let row = query.bind(vec![1_i32]).bind(vec![0_i32]).fetch_one(db).await?;
        let [held, taken] = ["held", "taken"].map(|column| row.try_get::<Option<Vec<i64>>, _>(column));
        Ok(if held?.is_some() { Some(taken?.is_some()) } else { None })
    }

    /// Continues a run as new. Returns false if the fence is lost.
    pub async fn continue_run(&self, db: &mut PgConnection, fence: Fence) -> Result<bool> {
        let query = self.query("continue_run").bind(fence.run_id).bind(fence.token).bind("{}").bind(0_i64);
        Ok(query.fetch_optional(db).await?.is_some())
    }

    /// Records the step of an attempt that starts a graph. Returns false if the fence is lost or a
    /// cancellation is requested.
    pub async fn note_graph(&self, db: &mut PgConnection, fence: Fence, graph: Uuid) -> Result<bool> {
        let query = self
            .query("start_child")
            .bind(fence.run_id)
            .bind(fence.token)
            .bind("graph")
            .bind(1_i64)
            .bind(0_i64)
            .bind(0_i32)
            .bind(None::<String>)
            .bind(graph)
            .bind("runledger.graph")
            .bind("default")
            .bind(0_i16)
            .bind("{}")
            .bind("{}")
            .bind(0_i64)
            .bind(None::<String>)
            .bind(format!("\"{graph}\""))
            .bind(100_i32)
            .bind(true);
        let row = query.fetch_optional(db).await?;
        row.map_or(Ok(false), |row| Ok(!row.try_get::<bool, _>("cancelled")?))
    }

    /// Submits a graph of these nodes and edges (dependent, dependency), optionally as the child of
    /// a run. Without a name, adds the nodes to an existing graph.
    pub async fn submit_graph(
        &self,
        db: &mut PgConnection,
        graph: Uuid,
        name: Option<&'static str>,
        parent: Option<Uuid>,
        nodes: &[Node],
        edges: &[(Uuid, Uuid)],
    ) -> Result<()> {
        let n_nodes = nodes.len();
        let hopeless: Vec<Option<String>> = nodes.iter().map(|node| node.hopeless.clone()).collect();
        let causes: Vec<Option<&str>> = hopeless.iter().map(|ended| ended.as_ref().map(|_| "it")).collect();
        self.query("submit_graph")
            .bind(graph)
            .bind(name)
            .bind("")
            .bind("default")
            .bind(0_i16)
            .bind("{}")
            .bind(None::<String>)
            .bind(name.is_none().then_some("key"))
            .bind(nodes.iter().map(|node| node.run_id).collect::<Vec<_>>())
            .bind(nodes.iter().map(|node| node.name).collect::<Vec<_>>())
            .bind(nodes.iter().map(|node| node.job.clone()).collect::<Vec<_>>())
            .bind(Vec::<Option<String>>::new())
            .bind(vec!["default"; n_nodes])
            .bind(vec![0_i16; n_nodes])
            .bind(vec!["{}"; n_nodes])
            .bind(Vec::<Option<String>>::new())
            .bind(Vec::<Option<i64>>::new())
            .bind(Vec::<Option<String>>::new())
            .bind(nodes.iter().map(|node| node.n_waits).collect::<Vec<_>>())
            .bind(causes)
            .bind(hopeless)
            .bind(edges.iter().map(|edge| edge.0).collect::<Vec<_>>())
            .bind(edges.iter().map(|edge| edge.1).collect::<Vec<_>>())
            .bind(vec![false; edges.len()])
            .bind(vec!["{}"; edges.len()])
            .bind(None::<Uuid>)
            .bind(parent)
            .bind(Vec::<Option<String>>::new())
            .execute(db)
            .await
            .map(drop)
    }

    /// Locks a node and its dependencies, if they are live. Returns the locked runs.
    pub async fn append_lock(&self, db: &mut PgConnection, needed: Uuid) -> Result<Vec<Uuid>> {
        let rows = self.query("append_lock").bind(vec![needed]).fetch_all(db).await?;
        rows.iter().map(|row| row.try_get("run_id")).collect()
    }

    /// Returns how a node ended, if it did, and the live nodes that it depends on.
    pub async fn append_look(
        &self,
        db: &mut PgConnection,
        needed: Uuid,
    ) -> Result<Vec<(Uuid, Option<String>)>> {
        let query = self.query("append_look").bind(vec![needed]).bind(Vec::<Uuid>::new());
        let rows = query.fetch_all(db).await?;
        rows.iter().map(|row| Ok((row.try_get("run_id")?, row.try_get("state")?))).collect()
    }

    /// Starts and cancels nodes after the end of a node.
    pub async fn release(&self, db: &mut PgConnection, ended: Uuid) -> Result<()> {
        self.query("release").bind(vec![ended]).execute(db).await.map(drop)
    }

    /// Completes a gate through a link that is older than any revocation. Returns whether the
    /// decision was accepted.
    pub async fn gate_decide(&self, db: &mut PgConnection, gate: Uuid) -> Result<bool> {
        let query = self.query("gate_decide").bind(gate).bind("completed").bind("true");
        let query = query.bind(None::<&str>).bind(None::<&str>).bind(None::<&str>);
        query.bind(None::<Timestamp>).bind(Uuid::nil()).fetch_one(db).await?.try_get("decided")
    }

    /// Revokes the links to a gate.
    pub async fn gate_revoke(&self, db: &mut PgConnection, gate: Uuid) -> Result<()> {
        self.query("gate_revoke").bind(gate).execute(db).await.map(drop)
    }

    /// Wakes the parents that wait for an ended run.
    pub async fn wake_parents(&self, db: &mut PgConnection, ended: Uuid) -> Result<()> {
        self.query("wake_parents").bind(vec![ended]).execute(db).await.map(drop)
    }

    /// Wakes a run if something that it waits for has come.
    pub async fn wake_met(&self, db: &mut PgConnection, run_id: Uuid) -> Result<()> {
        self.query("wake_met").bind(vec![run_id]).execute(db).await.map(drop)
    }

    /// Like [`lock_runs`](Self::lock_runs), unless another transaction has locked the run. Returns
    /// whether it locked the run.
    pub async fn lock_free_run(&self, db: &mut PgConnection, run_id: Uuid) -> Result<bool> {
        Ok(self.query("lock_free_runs").bind(vec![run_id]).fetch_optional(db).await?.is_some())
    }

    /// Locks a run for this transaction.
    pub async fn lock_runs(&self, db: &mut PgConnection, run_id: Uuid) -> Result<()> {
        self.query("lock_runs").bind(vec![run_id]).execute(db).await.map(drop)
    }

    /// Returns how many descendants of a run are live without a cancellation request.
    pub async fn n_below(&self, db: &mut PgConnection, run_id: Uuid) -> Result<usize> {
        let (mut above, mut n_below) = (vec![run_id], 0);
        while !above.is_empty() {
            let (last, reasons) = (vec![Uuid::nil(); above.len()], vec![None::<String>; above.len()]);
            let page = self.query("cancel_below").bind(above).bind(last).bind(reasons).bind(1_000_i64);
            above = Vec::new();
            for child in page.fetch_all(&mut *db).await? {
                n_below += usize::from(child.try_get::<bool, _>("goes_on")?);
                if child.try_get("has_children")? {
                    above.push(child.try_get("run_id")?);
                }
            }
        }
        Ok(n_below)
    }

    /// Requests the cancellation of a run. Returns its state if it has ended.
    pub async fn cancel_ask(&self, db: &mut PgConnection, run_id: Uuid) -> Result<Option<String>> {
        let query = self.query("cancel_ask").bind(run_id).bind(None::<String>);
        query.fetch_one(db).await?.try_get("state")
    }

    /// Cancels a run that no worker holds. Returns false if there is no such run.
    pub async fn cancel_take(&self, db: &mut PgConnection, run_id: Uuid) -> Result<bool> {
        let query = self.query("cancel_take").bind(run_id).bind(ERROR).bind(false).bind(None::<String>);
        Ok(query.fetch_optional(db).await?.is_some())
    }

    /// Requests the pause of a run. Returns its state before.
    pub async fn pause_ask(&self, db: &mut PgConnection, run_id: Uuid) -> Result<String> {
        self.query("pause_ask").bind(run_id).bind("wait").fetch_one(db).await?.try_get("state")
    }

    /// Pauses a run that no worker holds. Returns false if there is no such run.
    pub async fn pause_take(&self, db: &mut PgConnection, run_id: Uuid) -> Result<bool> {
        Ok(self.query("pause_take").bind(run_id).fetch_optional(db).await?.is_some())
    }

    /// Resumes a run, or withdraws the request to pause it. Returns false if neither was possible.
    pub async fn resume(&self, db: &mut PgConnection, run_id: Uuid) -> Result<bool> {
        Ok(self.query("resume").bind(run_id).fetch_optional(db).await?.is_some())
    }

    /// Pins a run to version 2 of its code. Returns false if it cannot be moved.
    pub async fn pin(&self, db: &mut PgConnection, run_id: Uuid, job: &str) -> Result<bool> {
        Ok(self.query("pin").bind(run_id).bind(format!("{job}@2")).fetch_optional(db).await?.is_some())
    }

    /// Wakes the runs whose timeout has passed.
    pub async fn wake_due(&self, db: &mut PgConnection) -> Result<()> {
        let due = self.query("timers_due").bind(10_i64).bind(Vec::<Uuid>::new()).fetch_all(&mut *db).await?;
        let due: Vec<Uuid> = due.iter().map(|row| row.try_get("run_id")).collect::<Result<_>>()?;
        self.query("wake_due").bind(due).execute(db).await.map(drop)
    }

    /// Returns the leases that the database has for a worker.
    pub async fn held(&self, db: &mut PgConnection, worker_id: i64) -> Result<Vec<Lease>> {
        let rows = self.query("held").bind(worker_id).fetch_all(db).await?;
        rows.iter().map(|row| lease(row, false)).collect()
    }

    /// Returns the leases of dead workers.
    pub async fn orphans(&self, db: &mut PgConnection) -> Result<Vec<Lease>> {
        let orphaned =
            self.query("orphaned").bind(200_i64).bind(Vec::<Uuid>::new()).fetch_all(&mut *db).await?;
        let orphaned: Vec<Uuid> = orphaned.iter().map(|row| row.try_get("run_id")).collect::<Result<_>>()?;
        let rows = self.query("orphans").bind(orphaned).fetch_all(db).await?;
        rows.iter().map(|row| lease(row, true)).collect()
    }

    /// Returns whether a run has recorded a step under its current claim.
    pub async fn progressed(&self, db: &mut PgConnection, run_id: Uuid) -> Result<bool> {
        Ok(self.query("progressed").bind(vec![run_id]).fetch_optional(db).await?.is_some())
    }

    /// Registers a worker.
    pub async fn worker_register(&self, db: &mut PgConnection, name: &str) -> Result<i64> {
        let query = self.query("worker_register").bind(name.to_owned()).bind("0").bind(SESSION);
        query.bind(vec!["job"]).bind(vec!["default"]).fetch_one(db).await?.try_get("worker_id")
    }

    /// Takes a worker's session lock on this connection.
    pub async fn worker_lock(&self, db: &mut PgConnection, worker_id: i64) -> Result<bool> {
        self.query("worker_lock").bind(worker_id).fetch_one(db).await?.try_get("locked")
    }

    /// Stores the incarnation in which the lock was taken.
    pub async fn worker_locked(&self, db: &mut PgConnection, worker_id: i64) -> Result<()> {
        self.query("worker_locked").bind(worker_id).execute(db).await.map(drop)
    }

    /// Sends a heartbeat and returns its reply.
    pub async fn heartbeat(&self, db: &mut PgConnection, worker_id: i64) -> Result<Pulse> {
        let row = self.query("heartbeat").bind(worker_id).bind(3.0_f64).bind(true).fetch_one(db).await?;
        let (cancels, cancels_left) = (row.try_get("cancels")?, row.try_get("cancels_left")?);
        let (pauses, pauses_left) = (row.try_get("pauses")?, row.try_get("pauses_left")?);
        Ok(Pulse { alive: row.try_get("alive")?, cancels, cancels_left, pauses, pauses_left })
    }

    /// Returns whether a worker's lock is evidence, or `None` if the worker is dead already.
    pub async fn suspect(&self, db: &mut PgConnection, worker_id: i64) -> Result<Option<bool>> {
        let row = self.query("suspect").bind(worker_id).fetch_optional(db).await?;
        row.map(|row| row.try_get("lock_is_evidence")).transpose()
    }

    /// Returns other live workers of a name, and whether their locks are evidence.
    pub async fn predecessors(
        &self,
        db: &mut PgConnection,
        name: &str,
        worker_id: i64,
    ) -> Result<Vec<(i64, bool)>> {
        let rows = self.query("predecessors").bind(name.to_owned()).bind(worker_id).fetch_all(db).await?;
        rows.iter().map(|row| Ok((row.try_get("worker_id")?, row.try_get("lock_is_evidence")?))).collect()
    }

    /// Returns whether a worker's session lock is free. Holds the lock until the end of the
    /// transaction.
    pub async fn lock_is_free(&self, db: &mut PgConnection, worker_id: i64) -> Result<bool> {
        self.query("lock_is_free").bind(worker_id).fetch_one(db).await?.try_get("free")
    }

    /// Marks a worker dead if it has been silent for this many seconds.
    pub async fn worker_bury(&self, db: &mut PgConnection, worker_id: i64, seconds: f64) -> Result<bool> {
        let query = self.query("worker_bury").bind(worker_id).bind(seconds).bind("a test");
        Ok(query.fetch_optional(db).await?.is_some())
    }
}

/// A stored failure.
pub const ERROR: &str = r#"{"kind":"error","message":"no"}"#;

fn text(name: &str) -> &'static str {
    STATEMENTS
        .iter()
        .find(|(known, _)| *known == name)
        .map_or_else(|| unreachable!("no statement `{name}`"), |(_, text)| *text)
}

fn step(query: Query, fence: Fence, key: &str) -> Query {
    step_with(query, fence, key, Vec::new())
}

fn step_with(query: Query, fence: Fence, key: &str, undo: Vec<Option<&'static str>>) -> Query {
    query
        .bind(vec![fence.run_id])
        .bind(vec![fence.token])
        .bind(vec![key.to_owned()])
        .bind(vec![0_i64])
        .bind(vec![0_i64])
        .bind(vec![Some("null")])
        .bind(Vec::<Option<String>>::new())
        .bind(vec![0_i32])
        .bind(Vec::<Option<String>>::new())
        .bind(undo)
}

fn held(row: &PgRow) -> Result<bool> {
    Ok(row.try_get::<Option<Vec<i64>>, _>("held")?.is_some())
}

fn claimed(row: &PgRow) -> Result<Claimed> {
    let steps: Option<String> = row.try_get("steps")?;
    let steps: Vec<Vec<serde_json::Value>> = match steps {
        None => Vec::new(),
        Some(steps) => serde_json::from_str(&steps).map_err(|error| sqlx::Error::Decode(error.into()))?,
    };
    let mut steps: Vec<String> =
        steps.iter().filter_map(|step| step.first()?.as_str().map(str::to_owned)).collect();
    steps.sort_unstable();
    Ok(Claimed {
        run_id: row.try_get("run_id")?,
        counters: Counters { attempt: row.try_get("attempt")?, crashes: row.try_get("crashes")? },
        cancel_requested: row.try_get("cancel_requested")?,
        steps,
    })
}

fn lease(row: &PgRow, is_orphan: bool) -> Result<Lease> {
    Ok(Lease {
        fence: Fence { run_id: row.try_get("run_id")?, token: row.try_get("token")? },
        counters: Counters { attempt: row.try_get("attempt")?, crashes: row.try_get("crashes")? },
        cancel_requested: is_orphan && row.try_get("cancel_requested")?,
    })
}

/// A verdict as the columns of `settle`.
struct Columns {
    state: &'static str,
    error: Option<&'static str>,
    delay_us: Option<i64>,
    cause: Option<&'static str>,
}

impl Columns {
    fn of(verdict: &Verdict) -> Self {
        let ended = |state, error| Self { state, error, delay_us: None, cause: None };
        match verdict {
            Verdict::Complete(_) => ended("completed", None),
            Verdict::Fail(_) => ended("failed", Some(ERROR)),
            Verdict::Cancel(_) => ended("cancelled", Some(ERROR)),
            Verdict::Block(_) => ended("blocked", Some(ERROR)),
            Verdict::Pause => Self { delay_us: Some(0), cause: Some("resumed"), ..ended("paused", None) },
            // Other tests cover delays. Here every queued run is due.
            Verdict::Requeue { cause, failure, .. } => Self {
                delay_us: Some(0),
                cause: Some(cause.as_str()),
                ..ended("queued", failure.as_ref().map(|_| ERROR))
            },
        }
    }
}
