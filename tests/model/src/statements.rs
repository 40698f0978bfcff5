//! The engine's own statements with their parameters, and edits of single ones: what a statement is for shows when a part of it is missing.

mod claims;

use runledger::__private::STATEMENTS;
use runledger::model::settle::{Counters, Settlement, Verdict};
use runledger::model::timestamp::Timestamp;
use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, PgConnection, Postgres, Row};
use uuid::Uuid;

/// The name of the sessions of every worker.
const SESSION: &str = "session";

type Query = sqlx::query::Query<'static, Postgres, sqlx::postgres::PgArguments>;
type Result<T> = std::result::Result<T, sqlx::Error>;

/// One replacement in the text of a statement, which matches exactly once.
#[derive(Clone, Copy, Debug)]
pub struct Edit {
    /// The statement.
    pub statement: &'static str,
    /// What stands there.
    pub old: &'static str,
    /// What stands there instead.
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

/// A run that a claim has given.
#[derive(Clone, Debug)]
pub struct Claimed {
    /// The run.
    pub run_id: Uuid,
    /// Its counters, this attempt included.
    pub counters: Counters,
    /// Whether it is to be cancelled.
    pub cancel_requested: bool,
    /// The keys of its recorded steps, in their order.
    pub steps: Vec<String>,
}

/// A lease of a worker that is dead, or does not know it.
#[derive(Clone, Debug)]
pub struct Lease {
    /// The right that it gives.
    pub fence: Fence,
    /// The run's counters.
    pub counters: Counters,
    /// Whether the run is to be cancelled; false where the statement does not say.
    pub cancel_requested: bool,
}

/// What a heartbeat brings back.
#[derive(Clone, Debug)]
pub struct Pulse {
    /// False where the worker was declared dead.
    pub alive: bool,
    /// The runs that it holds and that are to be cancelled.
    pub cancels: Vec<Uuid>,
    /// Whether runs that nobody holds are to be cancelled.
    pub cancels_left: bool,
    /// The runs that it holds and that are to be paused.
    pub pauses: Vec<Uuid>,
    /// Whether runs that nobody holds are to be paused.
    pub pauses_left: bool,
}

/// What a run waits for.
#[derive(Clone, Debug, Default)]
pub struct Waits {
    /// The end of one of these runs.
    pub any: Vec<Uuid>,
    /// The end of the last of these.
    pub all: Vec<Uuid>,
    /// A signal of one of these names.
    pub signals: Vec<String>,
}

/// A node of a graph, or one that is added to it.
#[derive(Clone, Debug)]
pub struct Node {
    /// Its run.
    pub run_id: Uuid,
    /// Its name.
    pub name: &'static str,
    /// Its job.
    pub job: String,
    /// For how many others it waits.
    pub n_waits: i32,
    /// How a node ended without success that it needs, so that it is cancelled at once.
    pub hopeless: Option<String>,
}

/// What became of a submission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Submission {
    /// The run is new.
    Created,
    /// It was there before.
    Existing,
}

impl Statements {
    /// The statements as the engine has them.
    #[must_use]
    pub const fn real() -> Self {
        Self { edit: None }
    }

    /// The statements with one defect.
    ///
    /// # Panics
    /// Where the old text does not stand in the statement exactly once: then the statement has changed, and the defect must be stated anew.
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

    /// Whether a run is there for whoever met it.
    pub async fn existing(&self, db: &mut PgConnection, run_id: Uuid) -> Result<bool> {
        Ok(self.query("existing").bind(vec![run_id]).fetch_optional(db).await?.is_some())
    }

    /// Records a step for the first time. False where the fence is lost.
    pub async fn checkpoint_fresh(&self, db: &mut PgConnection, fence: Fence, key: &str) -> Result<bool> {
        held(&step(self.query("checkpoint_fresh"), fence, key).fetch_one(db).await?)
    }

    /// Records a step that may be recorded already. False where the fence is lost.
    pub async fn checkpoint(&self, db: &mut PgConnection, fence: Fence, key: &str) -> Result<bool> {
        held(&step(self.query("checkpoint"), fence, key).bind(None::<String>).fetch_one(db).await?)
    }

    /// Records a step that can be taken back. False where the fence is lost.
    pub async fn checkpoint_to_undo(&self, db: &mut PgConnection, fence: Fence, key: &str) -> Result<bool> {
        let query = step_with(self.query("checkpoint"), fence, key, vec![Some("{}")]);
        held(&query.bind(None::<String>).fetch_one(db).await?)
    }

    /// Waits for what an attempt is writing.
    pub async fn lock_lease(&self, db: &mut PgConnection, fence: Fence) -> Result<()> {
        self.query("lock_lease").bind(fence.run_id).bind(fence.token).execute(db).await.map(drop)
    }

    /// Ends an attempt. False where the fence is lost.
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

    /// Parks a run until what it waits for comes. None where the fence is lost, false where it has come already.
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

    /// Sends a signal to a run. False where it has ended.
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

    /// Takes the first signal of a name for a step. Whether it got it; none where the fence is lost.
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

    /// Lets a run begin anew. False where the fence is lost.
    pub async fn continue_run(&self, db: &mut PgConnection, fence: Fence) -> Result<bool> {
        let query = self.query("continue_run").bind(fence.run_id).bind(fence.token).bind("{}").bind(0_i64);
        Ok(query.fetch_optional(db).await?.is_some())
    }

    /// Records the step of an attempt that starts a graph. Whether the fence held, and nobody has asked for the end of the run.
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

    /// Submits a graph of these nodes and edges (who needs the success of whom), by itself or below a run, or without a name adds them to one.
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

    /// Holds a node, and what it needs, where they are; those that it got.
    pub async fn append_lock(&self, db: &mut PgConnection, needed: Uuid) -> Result<Vec<Uuid>> {
        let rows = self.query("append_lock").bind(vec![needed]).fetch_all(db).await?;
        rows.iter().map(|row| row.try_get("run_id")).collect()
    }

    /// How a node ended, if it did, and the others that it needs and that go on.
    pub async fn append_look(
        &self,
        db: &mut PgConnection,
        needed: Uuid,
    ) -> Result<Vec<(Uuid, Option<String>)>> {
        let query = self.query("append_look").bind(vec![needed]).bind(Vec::<Uuid>::new());
        let rows = query.fetch_all(db).await?;
        rows.iter().map(|row| Ok((row.try_get("run_id")?, row.try_get("state")?))).collect()
    }

    /// Starts and cancels what the end of a node decides.
    pub async fn release(&self, db: &mut PgConnection, ended: Uuid) -> Result<()> {
        self.query("release").bind(vec![ended]).execute(db).await.map(drop)
    }

    /// Completes a gate by a link from before any revocation. Returns whether the decision was accepted.
    pub async fn gate_decide(&self, db: &mut PgConnection, gate: Uuid) -> Result<bool> {
        let query = self.query("gate_decide").bind(gate).bind("completed").bind("true");
        let query = query.bind(None::<&str>).bind(None::<&str>).bind(None::<&str>);
        query.bind(None::<Timestamp>).bind(Uuid::nil()).fetch_one(db).await?.try_get("decided")
    }

    /// Revokes the links to a gate.
    pub async fn gate_revoke(&self, db: &mut PgConnection, gate: Uuid) -> Result<()> {
        self.query("gate_revoke").bind(gate).execute(db).await.map(drop)
    }

    /// Wakes the parents that wait for a run that has ended.
    pub async fn wake_parents(&self, db: &mut PgConnection, ended: Uuid) -> Result<()> {
        self.query("wake_parents").bind(vec![ended]).execute(db).await.map(drop)
    }

    /// Wakes a run where something that it waits for has come.
    pub async fn wake_met(&self, db: &mut PgConnection, run_id: Uuid) -> Result<()> {
        self.query("wake_met").bind(vec![run_id]).execute(db).await.map(drop)
    }

    /// As [`lock_runs`](Self::lock_runs), unless another transaction has locked the run. Whether it did.
    pub async fn lock_free_run(&self, db: &mut PgConnection, run_id: Uuid) -> Result<bool> {
        Ok(self.query("lock_free_runs").bind(vec![run_id]).fetch_optional(db).await?.is_some())
    }

    /// Makes what follows in this transaction serial for a run.
    pub async fn lock_runs(&self, db: &mut PgConnection, run_id: Uuid) -> Result<()> {
        self.query("lock_runs").bind(vec![run_id]).execute(db).await.map(drop)
    }

    /// How many runs below another go on, of which nobody has asked for the end.
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

    /// Asks for the cancellation of a run. Its state, where it has ended.
    pub async fn cancel_ask(&self, db: &mut PgConnection, run_id: Uuid) -> Result<Option<String>> {
        let query = self.query("cancel_ask").bind(run_id).bind(None::<String>);
        query.fetch_one(db).await?.try_get("state")
    }

    /// Ends a run that no worker holds as cancelled. False where it is not there to be taken.
    pub async fn cancel_take(&self, db: &mut PgConnection, run_id: Uuid) -> Result<bool> {
        let query = self.query("cancel_take").bind(run_id).bind(ERROR).bind(false).bind(None::<String>);
        Ok(query.fetch_optional(db).await?.is_some())
    }

    /// Asks for the pause of a run. Its state before.
    pub async fn pause_ask(&self, db: &mut PgConnection, run_id: Uuid) -> Result<String> {
        self.query("pause_ask").bind(run_id).bind("wait").fetch_one(db).await?.try_get("state")
    }

    /// Pauses a run that no worker holds. False where it is not there to be taken.
    pub async fn pause_take(&self, db: &mut PgConnection, run_id: Uuid) -> Result<bool> {
        Ok(self.query("pause_take").bind(run_id).fetch_optional(db).await?.is_some())
    }

    /// Lets a run go on, or takes back the request to pause it. False where there is nothing of both.
    pub async fn resume(&self, db: &mut PgConnection, run_id: Uuid) -> Result<bool> {
        Ok(self.query("resume").bind(run_id).fetch_optional(db).await?.is_some())
    }

    /// Moves a run to the second version of its code. False where it is not there to be moved.
    pub async fn pin(&self, db: &mut PgConnection, run_id: Uuid, job: &str) -> Result<bool> {
        Ok(self.query("pin").bind(run_id).bind(format!("{job}@2")).fetch_optional(db).await?.is_some())
    }

    /// Wakes the runs whose wait is over.
    pub async fn wake_due(&self, db: &mut PgConnection) -> Result<()> {
        let due = self.query("timers_due").bind(10_i64).bind(Vec::<Uuid>::new()).fetch_all(&mut *db).await?;
        let due: Vec<Uuid> = due.iter().map(|row| row.try_get("run_id")).collect::<Result<_>>()?;
        self.query("wake_due").bind(due).execute(db).await.map(drop)
    }

    /// The leases that the database has for a worker.
    pub async fn held(&self, db: &mut PgConnection, worker_id: i64) -> Result<Vec<Lease>> {
        let rows = self.query("held").bind(worker_id).fetch_all(db).await?;
        rows.iter().map(|row| lease(row, false)).collect()
    }

    /// The leases of dead workers.
    pub async fn orphans(&self, db: &mut PgConnection) -> Result<Vec<Lease>> {
        let orphaned =
            self.query("orphaned").bind(200_i64).bind(Vec::<Uuid>::new()).fetch_all(&mut *db).await?;
        let orphaned: Vec<Uuid> = orphaned.iter().map(|row| row.try_get("run_id")).collect::<Result<_>>()?;
        let rows = self.query("orphans").bind(orphaned).fetch_all(db).await?;
        rows.iter().map(|row| lease(row, true)).collect()
    }

    /// Whether a run has recorded a step under its present claim.
    pub async fn progressed(&self, db: &mut PgConnection, run_id: Uuid) -> Result<bool> {
        Ok(self.query("progressed").bind(vec![run_id]).fetch_optional(db).await?.is_some())
    }

    /// Makes a worker known.
    pub async fn worker_register(&self, db: &mut PgConnection, name: &str) -> Result<i64> {
        let query = self.query("worker_register").bind(name.to_owned()).bind("0").bind(SESSION);
        query.bind(vec!["job"]).bind(vec!["default"]).fetch_one(db).await?.try_get("worker_id")
    }

    /// Takes a worker's session lock on this connection.
    pub async fn worker_lock(&self, db: &mut PgConnection, worker_id: i64) -> Result<bool> {
        self.query("worker_lock").bind(worker_id).fetch_one(db).await?.try_get("locked")
    }

    /// Notes the incarnation in which the lock was taken.
    pub async fn worker_locked(&self, db: &mut PgConnection, worker_id: i64) -> Result<()> {
        self.query("worker_locked").bind(worker_id).execute(db).await.map(drop)
    }

    /// Says that a worker lives, and asks what concerns it.
    pub async fn heartbeat(&self, db: &mut PgConnection, worker_id: i64) -> Result<Pulse> {
        let row = self.query("heartbeat").bind(worker_id).bind(3.0_f64).fetch_one(db).await?;
        let (cancels, cancels_left) = (row.try_get("cancels")?, row.try_get("cancels_left")?);
        let (pauses, pauses_left) = (row.try_get("pauses")?, row.try_get("pauses_left")?);
        Ok(Pulse { alive: row.try_get("alive")?, cancels, cancels_left, pauses, pauses_left })
    }

    /// Whether a worker's lock is evidence; none where it is dead already.
    pub async fn suspect(&self, db: &mut PgConnection, worker_id: i64) -> Result<Option<bool>> {
        let row = self.query("suspect").bind(worker_id).fetch_optional(db).await?;
        row.map(|row| row.try_get("lock_is_evidence")).transpose()
    }

    /// Living workers of a name besides this one, and whether their locks are evidence.
    pub async fn predecessors(
        &self,
        db: &mut PgConnection,
        name: &str,
        worker_id: i64,
    ) -> Result<Vec<(i64, bool)>> {
        let rows = self.query("predecessors").bind(name.to_owned()).bind(worker_id).fetch_all(db).await?;
        rows.iter().map(|row| Ok((row.try_get("worker_id")?, row.try_get("lock_is_evidence")?))).collect()
    }

    /// Whether a worker's session lock is free; holds it until the end of the transaction.
    pub async fn lock_is_free(&self, db: &mut PgConnection, worker_id: i64) -> Result<bool> {
        self.query("lock_is_free").bind(worker_id).fetch_one(db).await?.try_get("free")
    }

    /// Declares a worker dead if it is still silent for so many seconds.
    pub async fn worker_bury(&self, db: &mut PgConnection, worker_id: i64, seconds: f64) -> Result<bool> {
        let query = self.query("worker_bury").bind(worker_id).bind(seconds).bind("a test");
        Ok(query.fetch_optional(db).await?.is_some())
    }
}

/// A failure as it is stored.
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
            // Delays are the business of other tests: here every run in its queue is due.
            Verdict::Requeue { cause, failure, .. } => Self {
                delay_us: Some(0),
                cause: Some(cause.as_str()),
                ..ended("queued", failure.as_ref().map(|_| ERROR))
            },
        }
    }
}
