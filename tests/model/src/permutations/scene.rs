//! The database before and after an order.

use runledger::model::run::settle::SUSPECT;
use sqlx::{PgConnection, Row};
use uuid::Uuid;

use super::steps::Said;
use crate::statements::{Fence, Node, Statements, Waits};

/// The crashes of a held run: those that made it a suspect, and one in its own trial.
pub const CRASHES: i32 = SUSPECT + 1;

/// The database before an order.
#[derive(Clone, Copy, Debug)]
pub enum Start {
    /// No run.
    Nothing,
    /// This many due runs.
    Queued(usize),
    /// Three due runs that need a permit of one resource, which no run had before.
    Wanting {
        /// Whether run 0 has the permit, with worker 0 and token 0.
        is_taken: bool,
    },
    /// Worker 0 holds run 0 with token 0. The run has [`CRASHES`] crashes.
    Held,
    /// Like `Held`, and the worker is marked dead.
    Orphaned,
    /// Worker 0 holds run 0 with token 0. Worker 1 holds this many children of it with token 1.
    Family(usize),
    /// Like `Family`, and run 0 already waits for all of its children.
    Waiting(usize),
    /// Like `Waiting` with one child, and the timeout of the wait has passed.
    Overdue,
    /// Like `Held`, and a pause of run 0 is requested.
    Pausing,
    /// Run 0 is a graph with three nodes. Worker 0 holds run 1 with token 0, run 2 needs the
    /// success of run 1, and run 3 is a gate.
    Graph,
    /// Run 0 is a graph. Worker 0 holds its node 1 with token 0, and worker 1 holds its node 2 with
    /// token 1.
    Siblings {
        /// Whether run 3 needs both.
        joined: bool,
    },
}

/// The runs, workers and tokens of one order.
#[derive(Clone, Debug)]
pub struct Scene {
    pub(super) job: String,
    pub(super) runs: [Uuid; 5],
    pub(super) tokens: [Uuid; 3],
    pub(super) workers: [i64; 3],
    pub(super) crashes: i32,
}

impl Scene {
    /// Clears the data of the last order and prepares the next.
    pub(super) async fn set(db: &mut PgConnection, start: Start) -> Result<Self, sqlx::Error> {
        let statements = Statements::real();
        sqlx::raw_sql(CLEAR).execute(&mut *db).await?;
        let mut workers = [0; 3];
        for (at, worker_id) in workers.iter_mut().enumerate() {
            *worker_id = statements.worker_register(db, &format!("worker-{at}")).await?;
        }
        let job = Uuid::now_v7().simple().to_string();
        let (runs, tokens) = ([(); 5].map(|()| Uuid::now_v7()), [(); 3].map(|()| Uuid::now_v7()));
        let scene = Self { job, runs, tokens, workers, crashes: 0 };
        match start {
            Start::Nothing => {}
            Start::Queued(n_runs) => {
                for run_id in &scene.runs[..n_runs] {
                    statements.enqueue(db, *run_id, &scene.job).await?;
                }
            }
            Start::Wanting { is_taken } => {
                for (at, run_id) in scene.runs[..3].iter().enumerate() {
                    statements.enqueue_wanting(db, *run_id, &scene.job).await?;
                    if at == 0 && is_taken {
                        let (worker, token) = (scene.workers[0], scene.tokens[0]);
                        statements.claim_with_permit(db, worker, token, &scene.job).await?;
                    }
                }
            }
            Start::Held | Start::Orphaned | Start::Pausing => {
                scene.hold(db, 0, 0).await?;
                sqlx::query("update runledger.lease set crashes = $1")
                    .bind(CRASHES)
                    .execute(&mut *db)
                    .await?;
                if matches!(start, Start::Pausing) {
                    statements.pause_ask(db, scene.runs[0]).await?;
                }
                if matches!(start, Start::Orphaned) {
                    statements.worker_bury(db, scene.workers[0], 0.0).await?;
                }
                return Ok(Self { crashes: CRASHES, ..scene });
            }
            Start::Overdue => {
                scene.family(db, 1, true).await?;
                sqlx::raw_sql("update runledger.waiting set wake_at = now()").execute(&mut *db).await?;
            }
            Start::Graph => {
                let [graph, held, waits, gate, _] = scene.runs;
                let nodes = [
                    node(held, "held", &scene.job, 0),
                    node(waits, "waits", &scene.job, 1),
                    node(gate, "gate", "runledger.gate", 0),
                ];
                statements.submit_graph(db, graph, Some("graph"), None, &nodes, &[(waits, held)]).await?;
                statements.claim(db, scene.workers[0], scene.tokens[0], 1, &scene.job).await?;
            }
            Start::Siblings { joined } => {
                let [graph, first, second, both, _] = scene.runs;
                let mut nodes =
                    vec![node(first, "first", &scene.job, 0), node(second, "second", &scene.job, 0)];
                let mut edges = Vec::new();
                if joined {
                    nodes.push(node(both, "both", &scene.job, 2));
                    edges.extend([(both, first), (both, second)]);
                }
                statements.submit_graph(db, graph, Some("graph"), None, &nodes, &edges).await?;
                for (worker, token) in scene.workers.into_iter().zip(scene.tokens).take(2) {
                    statements.claim(db, worker, token, 1, &scene.job).await?;
                }
            }
            Start::Family(n_children) => scene.family(db, n_children, false).await?,
            Start::Waiting(n_children) => scene.family(db, n_children, true).await?,
        }
        Ok(scene)
    }

    /// Creates run 0 and its children. Optionally run 0 waits for all of them.
    async fn family(&self, db: &mut PgConnection, n_children: usize, waits: bool) -> Result<(), sqlx::Error> {
        self.hold(db, 0, 0).await?;
        for child in 1..=n_children {
            self.hold(db, child, 1).await?;
            let adopt = "update runledger.run set parent_id = $1 where run_id = $2";
            sqlx::query(adopt).bind(self.runs[0]).bind(self.runs[child]).execute(&mut *db).await?;
        }
        if waits {
            let counters = runledger::model::run::settle::Counters { attempt: 1, crashes: 0 };
            let fence = Fence { run_id: self.runs[0], token: self.tokens[0] };
            let waits = Waits { any: vec![self.runs[1]], ..Waits::default() };
            Statements::real().suspend(db, fence, &waits, counters, true).await?;
            sqlx::query("update runledger.waiting set wait_any = '{}', wait_all = $1")
                .bind(&self.runs[1..=n_children])
                .execute(db)
                .await?;
        }
        Ok(())
    }

    async fn hold(&self, db: &mut PgConnection, run: usize, worker: usize) -> Result<(), sqlx::Error> {
        let statements = Statements::real();
        statements.enqueue(db, self.runs[run], &self.job).await?;
        statements.claim(db, self.workers[worker], self.tokens[worker], 1, &self.job).await.map(drop)
    }
}

pub(super) fn node(run_id: Uuid, name: &'static str, job: &str, n_waits: i32) -> Node {
    Node { run_id, name, job: job.to_owned(), n_waits, hopeless: None }
}

/// Other rows are found by run or by job.
const CLEAR: &str = "delete from runledger.lease; delete from runledger.worker; delete from runledger.pause";

/// The state of a run after an order.
#[derive(Debug)]
pub struct RunEnd {
    /// The tables with a row of the run. One, if all is well.
    pub places: Vec<String>,
    /// Its terminal state.
    pub outcome: Option<String>,
    /// The number of the token that holds it.
    pub token: Option<usize>,
    /// Its attempts.
    pub attempt: Option<i32>,
    /// Its crashes in a row.
    pub crashes: Option<i32>,
    /// Whether the next heartbeat reports its cancellation to a worker.
    pub is_told: bool,
    /// Whether the next heartbeat reports its pause to a worker.
    pub is_told_to_pause: bool,
    /// The version of its code, and the version in its lane if it is queued.
    pub versions: (String, Option<String>),
    /// How many steps it has recorded.
    pub n_steps: i64,
    /// How many signals no step has taken.
    pub n_signals: i64,
    /// How many signals a step has taken.
    pub n_taken: i64,
}

/// The database after an order, and the answers to the transactions.
#[derive(Debug)]
pub struct End {
    /// The existing runs, in the order of the scene.
    pub runs: Vec<RunEnd>,
    /// The answers, one value per transaction.
    pub said: Vec<Said>,
}

impl End {
    pub(super) async fn read(
        db: &mut PgConnection,
        scene: &Scene,
        said: Vec<Said>,
    ) -> Result<Self, sqlx::Error> {
        let (mut told, mut cancels_left) = (Vec::new(), false);
        let (mut told_to_pause, mut pauses_left) = (Vec::new(), false);
        for worker_id in scene.workers {
            let pulse = Statements::real().heartbeat(db, worker_id).await?;
            told.extend(pulse.cancels);
            cancels_left |= pulse.cancels_left;
            told_to_pause.extend(pulse.pauses);
            pauses_left |= pulse.pauses_left;
        }
        let mut runs = Vec::new();
        for run_id in scene.runs {
            let Some(row) = sqlx::query(WHERE_IT_STANDS).bind(run_id).fetch_optional(&mut *db).await? else {
                continue;
            };
            let token: Option<Uuid> = row.try_get("token")?;
            runs.push(RunEnd {
                places: row.try_get("places")?,
                outcome: row.try_get("outcome")?,
                token: token.and_then(|token| scene.tokens.iter().position(|known| *known == token)),
                attempt: row.try_get("attempt")?,
                crashes: row.try_get("crashes")?,
                is_told: cancels_left || told.contains(&run_id),
                is_told_to_pause: pauses_left || told_to_pause.contains(&run_id),
                versions: (row.try_get("version")?, row.try_get("queued_version")?),
                n_steps: row.try_get("n_steps")?,
                n_signals: row.try_get("n_signals")?,
                n_taken: row.try_get("n_taken")?,
            });
        }
        Ok(Self { runs, said })
    }

    /// Checks what holds after every order: no statement fails and every run is in exactly one
    /// table. Then checks `holds`.
    pub(super) fn check(&self, holds: fn(&Self) -> Result<(), String>) -> Result<(), String> {
        if let Some(error) = self.said.iter().find_map(|said| said.error.as_ref()) {
            return Err(error.clone());
        }
        if let Some(run) = self.runs.iter().find(|run| run.places.len() != 1) {
            return Err(format!("a run stands in {:?}", run.places));
        }
        holds(self)
    }

    /// Returns the table with the run.
    #[must_use]
    pub fn place(&self, run: usize) -> &str {
        self.runs.get(run).and_then(|run| run.places.first()).map_or("nowhere", String::as_str)
    }
}

const WHERE_IT_STANDS: &str = "
    select
        array_remove(array[
            case when ready.run_id is not null then 'ready' end,
            case when lease.run_id is not null then 'lease' end,
            case when waiting.run_id is not null then waiting.state end,
            case when outcome.run_id is not null then 'outcome' end
        ], null) as places,
        outcome.state as outcome,
        split_part(run.job, '@', 2) as version,
        split_part(ready.job, '@', 2) as queued_version,
        lease.token,
        coalesce(ready.attempt, lease.attempt, waiting.attempt) as attempt,
        coalesce(ready.crashes, lease.crashes, waiting.crashes) as crashes,
        (select count(*) from runledger.step where step.run_id = run.run_id) as n_steps,
        (select count(*) from runledger.signal where signal.run_id = run.run_id and taken_by is null) as n_signals,
        (select count(*) from runledger.signal where signal.run_id = run.run_id and taken_by is not null) as n_taken
    from runledger.run
    left join runledger.ready using (run_id)
    left join runledger.lease using (run_id)
    left join runledger.waiting using (run_id)
    left join runledger.outcome using (run_id)
    where run.run_id = $1";
