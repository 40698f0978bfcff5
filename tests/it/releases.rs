//! Programs of two releases on one database: the newer one migrates it, and the older one continues
//! to work.
//!
//! The old program is the SQL of an earlier commit in `tests/golden/released/before_0_1.sql`, with
//! the parameters and options in the form of that commit. Only the names of tables, columns and
//! step keys are those of 0.1.0, because nothing was released before. The tests show that the old
//! statements work on the current schema beside the current program, and that both programs read
//! each other's rows. They do not run the old program's Rust code. `unreadable.rs` tests how an
//! older program treats an unknown option, with a field that no release has. Every later release
//! must keep that rule.

use std::collections::HashMap;

use runledger::prelude::*;
use runledger::{RunState, WorkerInfo};
use runledger_tests::rows::{execute, scalar, soon, until};
use runledger_tests::{Fixture, eventually};
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, PgConnection, Postgres, Row};
use uuid::Uuid;

/// The statements of the old program.
const RELEASED: &str = include_str!("../golden/released/before_0_1.sql");

fn released() -> HashMap<&'static str, String> {
    let mut statements: HashMap<&str, String> = HashMap::new();
    let mut present = "";
    for line in RELEASED.lines() {
        let name = line.strip_prefix("-- ").and_then(|line| line.split_once(": ")).map(|(name, _)| name);
        let begins = |name: &&str| name.chars().all(|c| c.is_ascii_lowercase() || c == '_');
        if let Some(name) = name.filter(begins).filter(|name| !["in", "out", "locks", "index"].contains(name))
        {
            present = name;
        }
        *statements.entry(present).or_default() += &format!("{line}\n");
    }
    statements
}

struct OldProgram {
    statements: HashMap<&'static str, String>,
    connection: PgConnection,
}

impl OldProgram {
    async fn on(fixture: &Fixture) -> Self {
        Self { statements: released(), connection: fixture.database.connect().await.unwrap() }
    }

    async fn rows(
        &mut self,
        name: &str,
        bind: impl FnOnce(Query<'_, Postgres, PgArguments>) -> Query<'_, Postgres, PgArguments>,
    ) -> Vec<PgRow> {
        let text = self.statements[name].clone();
        bind(sqlx::query(AssertSqlSafe(text))).fetch_all(&mut self.connection).await.unwrap()
    }

    /// Enqueues as `db.enqueue` without a key did in the old release.
    async fn enqueue(&mut self, job: &str, queue: &str, input: &str, options: Option<&str>) -> Uuid {
        let run_id = Uuid::now_v7();
        let (none, no_delays, no_instants) =
            (Vec::<Option<String>>::new(), Vec::<Option<i64>>::new(), Vec::<Option<String>>::new());
        self.rows("enqueue_fresh", |query| {
            query
                .bind(vec![run_id])
                .bind(vec![job.to_owned()])
                .bind(none)
                .bind(vec![queue.to_owned()])
                .bind(vec![0_i16])
                .bind(vec![input.to_owned()])
                .bind(vec![options.map(str::to_owned)])
                .bind(no_delays)
                .bind(no_instants)
        })
        .await;
        run_id
    }

    async fn register(&mut self, job: &str) -> i64 {
        let rows = self
            .rows("worker_register", |query| {
                let (jobs, queues) = (vec![job.to_owned()], vec!["old".to_owned()]);
                query.bind("old").bind("0.1.0").bind("runledger/old").bind(jobs).bind(queues)
            })
            .await;
        rows[0].get("worker_id")
    }

    /// Claims a run. Returns its row and its token, if there is one.
    async fn claim(&mut self, worker_id: i64, job: &str) -> Option<(PgRow, Uuid)> {
        let token = Uuid::now_v7();
        let rows = self
            .rows("claim", |query| {
                query
                    .bind(worker_id)
                    .bind(token)
                    .bind(1_i64)
                    .bind(vec!["old".to_owned()])
                    .bind(vec![job.to_owned()])
                    .bind(vec![0_i16])
                    .bind(vec!["-infinity".to_owned()])
                    .bind(vec![Uuid::nil()])
            })
            .await;
        rows.into_iter().next().map(|row| (row, token))
    }

    async fn heartbeat(&mut self, worker_id: i64) -> PgRow {
        let rows = self.rows("heartbeat", |query| query.bind(worker_id).bind(3.0_f64)).await;
        rows.into_iter().next().unwrap()
    }

    /// Copies the recorded step of another run to this run.
    async fn checkpoint(&mut self, run_id: Uuid, token: Uuid, step: &Step) -> bool {
        let rows = self
            .rows("checkpoint_fresh", |query| {
                query
                    .bind(vec![run_id])
                    .bind(vec![token])
                    .bind(vec![step.key.clone()])
                    .bind(vec![step.ordinal])
                    .bind(vec![step.fingerprint])
                    .bind(vec![Some(step.output.clone())])
                    .bind(Vec::<Option<String>>::new())
                    .bind(vec![step.seen_len])
                    .bind(Vec::<Option<String>>::new())
                    .bind(Vec::<Option<String>>::new())
            })
            .await;
        rows[0].get::<Option<Vec<i64>>, _>("held") == Some(vec![1])
    }

    async fn complete(&mut self, run_id: Uuid, token: Uuid, output: &str) -> bool {
        let output = vec![output.to_owned()];
        let rows = self
            .rows("settle_completed", |query| query.bind(vec![run_id]).bind(vec![token]).bind(output))
            .await;
        rows[0].get::<Option<Vec<i64>>, _>("held") == Some(vec![1])
    }
}

struct Step {
    key: String,
    ordinal: i64,
    fingerprint: i64,
    output: String,
    seen_len: i32,
}

async fn step_of(db: &Db, run_id: Uuid) -> Step {
    let query = "select key, ordinal, fingerprint, output::text as output, seen_len from runledger.step where run_id = $1 and seen is null";
    let row = sqlx::query(query).bind(run_id).fetch_one(db.pool()).await.unwrap();
    Step {
        key: row.get("key"),
        ordinal: row.get("ordinal"),
        fingerprint: row.get("fingerprint"),
        output: row.get("output"),
        seen_len: row.get("seen_len"),
    }
}

#[job(name = "releases.first", queue = "old")]
async fn first(n: u32) -> Result<u32> {
    Ok(n + 1)
}

#[workflow(name = "releases.handed_over", queue = "old")]
async fn handed_over(wf: &Wf, n: u32) -> Result<u32> {
    let first = wf.run(first(n)).await?;
    Ok(first * 10)
}

#[workflow(name = "releases.waits", queue = "old")]
async fn waits(wf: &Wf) -> Result<String> {
    Ok(wf.signal("word").await?)
}

/// Options as the old release wrote them.
const OPTIONS: [&str; 5] = [
    r#"{"max_attempts":7,"timeout_ms":60000,"backoff_ms":[1,2]}"#,
    r#"{"queue":"old","priority":0,"metadata":{"order":7}}"#,
    r#"{"delay_us":0,"start_at_us":0}"#,
    r#"{"deadline_ms":3600000,"is_own_deadline":true}"#,
    r#"{"active_key":{"job":"releases.first","key":"k"}}"#,
];

#[tokio::test(flavor = "multi_thread")]
async fn new_worker_completes_runs_enqueued_and_signalled_by_old_client() {
    let fixture = Fixture::new().await;
    let db = &fixture.db;
    let mut old = OldProgram::on(&fixture).await;
    let worker = App::new(db.clone()).with(jobs![first, handed_over, waits]).queues(["old"]);
    let worker = worker.timings(runledger::Timings::FAST).start().await.unwrap();
    let mut runs = vec![old.enqueue("releases.handed_over", "old", r#"{"n":4}"#, None).await];
    for options in OPTIONS {
        runs.push(old.enqueue("releases.first", "old", r#"{"n":49}"#, Some(options)).await);
    }
    for run_id in &runs {
        until(db, *run_id, |info| info.state == RunState::Completed).await;
        let output = format!("select output::text from runledger.outcome where run_id = '{run_id}'");
        assert_eq!(scalar::<String>(db, &output).await, "50");
    }
    assert_eq!(db.run(runs[2]).info().await.unwrap().metadata["order"], 7);
    let waiting = old.enqueue("releases.waits", "old", "{}", None).await;
    until(db, waiting, |info| info.state == RunState::Waiting).await;
    old.rows("send_signal", |query| {
        query.bind(waiting).bind("word").bind("\"old\"").bind("1").bind(1000_i64)
    })
    .await;
    until(db, waiting, |info| info.state == RunState::Completed).await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn old_worker_serves_new_client_and_new_worker_recovers_orphan() {
    let fixture = Fixture::new().await;
    let db = &fixture.db;
    // The new worker executes a twin run, which provides the step to record.
    let executes = async || {
        let app = App::new(db.clone()).with(jobs![first, handed_over]).queues(["old"]);
        app.timings(runledger::Timings::FAST).start().await.unwrap()
    };
    let newer = executes().await;
    let twin = handed_over(4).enqueue(db).await.unwrap();
    assert_eq!(soon(twin.result()).await.unwrap(), 50);
    newer.stop().await;
    let step = step_of(db, twin.id()).await;

    let mut old = OldProgram::on(&fixture).await;
    let old_id = old.register("releases.handed_over").await;
    let by_name = async || db.workers().await.unwrap();
    let is_shown = |workers: &Vec<WorkerInfo>| workers.iter().any(|worker| worker.worker_id == old_id);
    eventually(by_name, is_shown).await;
    let completed = handed_over(4).max_attempts(3).metadata("from", "new").enqueue(db).await.unwrap();
    let taken_over = handed_over(4).enqueue(db).await.unwrap();

    let (row, token) = old.claim(old_id, "releases.handed_over").await.unwrap();
    assert_eq!(row.get::<Uuid, _>("run_id"), completed.id());
    let options: serde_json::Value = serde_json::from_str(row.get("options")).unwrap();
    assert_eq!(options, serde_json::json!({ "max_attempts": 3, "metadata": { "from": "new" } }));
    assert!(old.heartbeat(old_id).await.get::<bool, _>("alive"));
    assert!(old.checkpoint(completed.id(), token, &step).await);
    assert!(old.complete(completed.id(), token, "50").await);
    assert_eq!(soon(completed.result()).await.unwrap(), 50);

    let (row, token) = old.claim(old_id, "releases.handed_over").await.unwrap();
    assert_eq!(row.get::<Uuid, _>("run_id"), taken_over.id());
    assert!(old.checkpoint(taken_over.id(), token, &step).await);
    // Simulate the death of the old process: its lock is free, and its heartbeat is old.
    let silent = format!(
        "update runledger.worker set heartbeat_at = now() - interval '1 hour', lock_incarnation = runledger.server_incarnation()
         where worker_id = {old_id}"
    );
    execute(db, &silent).await;
    let newer = executes().await;
    assert_eq!(soon(taken_over.result()).await.unwrap(), 50);
    let claims = "select claims from runledger.step join runledger.run using (run_id) where run_id = ";
    let claims: i32 = scalar(db, &format!("{claims}'{}'", taken_over.id())).await;
    assert_eq!(claims, 1, "the step that the old worker recorded was not executed again");
    assert!(!old.complete(taken_over.id(), token, "0").await, "the old worker's fence is lost");
    newer.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn old_worker_requeues_orphan_of_new_worker() {
    let fixture = Fixture::new().await;
    let db = &fixture.db;
    let mut old = OldProgram::on(&fixture).await;
    let run = first(1).enqueue(db).await.unwrap();
    // Insert a dead new worker with a suspect on trial.
    let gone = "insert into runledger.worker (worker_id, name, version, session_name, jobs, queues, state, died_at, trial)
                select 7, 'new', '9', 'new', '{}', '{}', 'dead', now(), run_id from runledger.run;
                with taken as (delete from runledger.ready returning run_id)
                insert into runledger.lease (run_id, token, worker_id, attempt, crashes, claims, claimed_at)
                select run_id, gen_random_uuid(), 7, 1, 2, 1, now() from taken";
    execute(db, gone).await;
    let orphans = old.rows("orphans", |query| query.bind(200_i64)).await;
    assert_eq!(orphans.len(), 1);
    let (run_id, token): (Uuid, Uuid) = (orphans[0].get("run_id"), orphans[0].get("token"));
    let settled = old
        .rows("settle", |query| {
            query
                .bind(vec![run_id])
                .bind(vec![token])
                .bind(vec!["queued".to_owned()])
                .bind(vec![None::<String>])
                .bind(vec![Some(r#"{"kind":"crash","message":"gone"}"#.to_owned())])
                .bind(vec![Some(0_i64)])
                .bind(vec![None::<String>])
                .bind(vec![Some("crashed".to_owned())])
                .bind(vec![0_i32])
                .bind(vec![3_i32])
                .bind(None::<String>)
        })
        .await;
    assert_eq!(settled.len(), 1);
    let worker = App::new(db.clone()).with(jobs![first]).queues(["old"]).start().await.unwrap();
    assert_eq!(soon(run.result()).await.unwrap(), 2);
    worker.stop().await;
}
