//! Rows that this version cannot read block their own run, with the path in the reason. Every other
//! run continues.

use std::sync::atomic::{AtomicUsize, Ordering};

use runledger::prelude::*;
use runledger::{AnyCall, Graph, RunState, TenantScope};
use runledger_tests::rows::{execute, scalar, soon, until, worker};
use runledger_tests::{Fixture, eventually};
use serde_json::json;
use sqlx::AssertSqlSafe;
use uuid::Uuid;

#[job]
async fn bystander() -> Result<u32> {
    Ok(7)
}

/// Makes rows of a run unreadable. The statement has `$run` in place of the run's id.
async fn break_rows(db: &Db, run_id: Uuid, statement: &str) {
    execute(db, &statement.replace("$run", &format!("'{run_id}'"))).await;
}

async fn why_blocked(db: &Db, run_id: Uuid) -> String {
    let info = until(db, run_id, |info| info.state == RunState::Blocked).await;
    info.error.unwrap().to_string()
}

/// A resource name longer than the index of the queue could store.
const LONG_RESOURCE: &str = "update runledger.run
    set options = json_build_object('resource', (select string_agg(md5(n::text), '') from generate_series(1, 200) n)) where run_id = $run";

/// Statements that change rows of a queued run, and a part of the reason for the block.
const QUEUED: [(&str, &str); 13] = [
    (r#"update runledger.run set options = '{"x":1}' where run_id = $run"#, "`options.x`"),
    (r#"update runledger.run set options = '{"priority":"high"}' where run_id = $run"#, "`options.priority`"),
    (r#"update runledger.run set options = '{"metadata":[1]}' where run_id = $run"#, "`options.metadata`"),
    (r#"update runledger.run set options = '{"queue":"\ud800"}' where run_id = $run"#, "`options`"),
    (LONG_RESOURCE, "`options.resource` of this run cannot be read: it is longer than 256 bytes"),
    ("update runledger.run set options = '[1]' where run_id = $run", "`options`"),
    ("update runledger.run set options = '5' where run_id = $run", "`options`"),
    ("update runledger.ready set attempt = 2147483647 where run_id = $run", "`attempt`"),
    ("update runledger.ready set crashes = 2147483647 where run_id = $run", "`crashes`"),
    ("update runledger.ready set claims = 2147483647 where run_id = $run", "`claims`"),
    (
        "insert into runledger.attempt (run_id, step_key, claims, attempt, worker_id, started_at, error)
         values ($run, 's', 9, 1, 1, 'infinity', '{}'), ($run, 't', 9, 1, 1, null, '{}');
         update runledger.ready set claims = 1 where run_id = $run",
        "",
    ),
    (
        "insert into runledger.attempt (run_id, step_key, claims, attempt, worker_id, started_at, ended_at, error)
         values ($run, 's', 9, 1, 1, '294276-12-31', '294276-12-31', '{}'), ($run, '', 9, 1, 1, '4713-01-01 BC', '294276-12-31', '{}');
         update runledger.ready set claims = 1, crashes = 2 where run_id = $run",
        "",
    ),
    ("update runledger.ready set job = 'bystander' where run_id = $run", "`ready.job`"),
];

mod elsewhere {
    use runledger::prelude::*;

    /// A job that no worker of these tests serves.
    #[job]
    pub async fn unserved() -> Result<()> {
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn unreadable_queued_run_is_blocked_with_path_and_others_complete() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let mut broken = Vec::new();
    for (statement, path) in QUEUED {
        let run_id = if path == "`ready.job`" {
            elsewhere::unserved().enqueue(&db).await.unwrap().id()
        } else {
            bystander().enqueue(&db).await.unwrap().id()
        };
        break_rows(&db, run_id, statement).await;
        broken.push((run_id, path));
    }
    let others = [bystander().enqueue(&db).await.unwrap(), bystander().enqueue(&db).await.unwrap()];
    let worker = worker(&db, jobs![bystander]).await;
    for other in &others {
        assert_eq!(soon(other.result()).await.unwrap(), 7);
    }
    for (run_id, path) in broken {
        if path.is_empty() {
            until(&db, run_id, |info| info.state == RunState::Completed).await;
            continue;
        }
        let why = why_blocked(&db, run_id).await;
        assert!(why.contains(path) && why.contains("nothing was executed"), "{path}: {why}");
    }
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unreadable_run_completes_after_row_repair_and_resume() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let run = bystander().enqueue(&db).await.unwrap();
    break_rows(&db, run.id(), r#"update runledger.run set options = '{"x":1}' where run_id = $run"#).await;
    let worker = worker(&db, jobs![bystander]).await;
    why_blocked(&db, run.id()).await;
    run.resume().await.unwrap();
    let n_attempts = async || scalar::<i64>(&db, "select count(*) from runledger.attempt").await;
    runledger_tests::eventually(n_attempts, |n| *n == 2).await;
    until(&db, run.id(), |info| info.state == RunState::Blocked).await;
    break_rows(&db, run.id(), "update runledger.run set options = null where run_id = $run").await;
    run.resume().await.unwrap();
    assert_eq!(soon(run.result()).await.unwrap(), 7);
    assert_eq!(run.info().await.unwrap().attempt, 1, "what was not executed is not counted");
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn worker_with_null_job_is_listed() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![bystander]).await;
    execute(&db, "update runledger.worker set jobs = jobs || null, queues = queues || null").await;
    assert_eq!(db.workers().await.unwrap()[0].jobs, ["bystander"]);
    worker.stop().await;
}

#[job]
async fn first() -> Result<u32> {
    Ok(1)
}

#[workflow]
async fn two_steps(wf: &Wf) -> Result<u32> {
    let one = wf.run(first()).await?;
    wf.signal::<()>("go").await?;
    Ok(one + wf.run(first()).await?)
}

/// Statements that change recorded steps of a live run, and a part of the reason for the block.
const RECORDED: [(&str, &str); 4] = [
    ("update runledger.step set seen = '{1,null}' where run_id = $run", "`step[first].seen`"),
    ("update runledger.step set ordinal = -1 where run_id = $run", "`step[first].ordinal`"),
    ("update runledger.step set seen_len = -1 where run_id = $run", "`step[first].seen_len`"),
    (r#"update runledger.run set options = '{"a":"\u0000"}' where run_id = $run"#, "`options.a`"),
];

#[tokio::test(flavor = "multi_thread")]
async fn unreadable_step_blocks_its_run_and_is_reported_by_verify() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let serves = jobs![two_steps, first];
    let first_worker = worker(&db, serves).await;
    let mut broken = Vec::new();
    for (statement, path) in RECORDED {
        let run = two_steps().enqueue(&db).await.unwrap();
        until(&db, run.id(), |info| info.state == RunState::Waiting).await;
        broken.push((run, statement, path));
    }
    let other = two_steps().enqueue(&db).await.unwrap();
    until(&db, other.id(), |info| info.state == RunState::Waiting).await;
    first_worker.stop().await;
    for (run, statement, _) in &broken {
        break_rows(&db, run.id(), statement).await;
    }
    let verification = App::new(db.clone()).with(serves).verify().await.unwrap();
    let report = verification.to_string();
    let (n_unreadable, path) = ("3 runs of `two_steps`", "`step[first].");
    assert!(report.contains(n_unreadable) && report.contains(path), "{report}");
    for (run, ..) in &broken {
        run.signal("go", &()).await.unwrap();
    }
    other.signal("go", &()).await.unwrap();
    let second_worker = worker(&db, serves).await;
    assert_eq!(soon(other.result()).await.unwrap(), 2);
    for (run, _, path) in &broken {
        let why = why_blocked(&db, run.id()).await;
        assert!(why.contains(path), "{path}: {why}");
    }
    second_worker.stop().await;
}

#[job(max_attempts = 2, backoff = "1ms..1ms")]
async fn fails_once(#[inject] context: &Context) -> Result<u32> {
    if context.attempt() == 1 { Err("again".into()) } else { Ok(context.attempt()) }
}

/// A client can write metadata that SQL cannot parse. Only the list of runs parses metadata in SQL.
#[tokio::test(flavor = "multi_thread")]
async fn options_unreadable_only_to_sql_delay_neither_retry_nor_list() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let run = fails_once().enqueue(&db).await.unwrap();
    let nul = r#"update runledger.run set options = '{"metadata":{"a":"\u0000 \"resource\""}}' where run_id = $run"#;
    break_rows(&db, run.id(), nul).await;
    let other = fails_once().enqueue(&db).await.unwrap();
    let worker = worker(&db, jobs![fails_once]).await;
    assert_eq!(soon(other.result()).await.unwrap(), 2);
    assert_eq!(soon(run.result()).await.unwrap(), 2);
    assert_eq!(db.runs(TenantScope::All).await.unwrap().runs.len(), 2);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn orphan_with_maximal_counters_is_requeued_then_blocked_beside_others() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let (full, other) = (bystander().enqueue(&db).await.unwrap(), bystander().enqueue(&db).await.unwrap());
    // A dead worker owns both runs.
    let dead = "with taken as (delete from runledger.ready returning run_id)
                insert into runledger.lease (run_id, token, worker_id, attempt, crashes, claims, claimed_at)
                select run_id, gen_random_uuid(), 1, 1, 0, 1, now() from taken";
    execute(&db, dead).await;
    let fill = "update runledger.lease set attempt = 2147483647, crashes = 2147483647, claims = 2147483647 where run_id = $run;
                insert into runledger.attempt (run_id, claims, attempt, worker_id, error) values ($run, 2147483647, 2147483647, 1, '{}')";
    break_rows(&db, full.id(), fill).await;
    let worker = worker(&db, jobs![bystander]).await;
    assert_eq!(soon(other.result()).await.unwrap(), 7);
    until(&db, full.id(), |info| info.state == RunState::Queued).await;
    // Skip the backoff after so many crashes.
    break_rows(&db, full.id(), "update runledger.ready set ready_at = now() where run_id = $run").await;
    assert!(why_blocked(&db, full.id()).await.contains("`attempt`"));
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_worker_with_infinite_heartbeat_is_declared_dead() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let silent = "insert into runledger.worker (name, version, session_name, jobs, queues, heartbeat_at, lock_incarnation)
                  values ('silent', '0', 'silent', '{}', '{}', '-infinity', runledger.server_incarnation())";
    execute(&db, silent).await;
    let living = worker(&db, jobs![bystander]).await;
    let is_dead = "select count(*) from runledger.worker where name = 'silent' and state = 'dead'";
    runledger_tests::eventually(async || scalar::<i64>(&db, is_dead).await, |n| *n == 1).await;
    living.stop().await;
}

/// The index of `ready` could not store the run.
#[tokio::test]
async fn overlong_queue_and_job_names_violate_table_constraint() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let run_id = bystander().enqueue(&db).await.unwrap().id();
    for column in ["queue", "job"] {
        let change =
            format!("update runledger.run set {column} = repeat('x', 257) where run_id = '{run_id}'");
        let error = sqlx::query(AssertSqlSafe(change)).execute(db.pool()).await.unwrap_err();
        assert!(error.to_string().contains("run_names_are_short"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn node_with_unreadable_delay_is_released_and_blocked_alone() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let mut graph = Graph::new("unreadable");
    let root = graph.node("root", first());
    for node in [graph.node("bad", first()), graph.node("good", bystander())] {
        graph.after(node, root);
    }
    graph.enqueue(&db).await.unwrap();
    let node = async |name: &str| -> Uuid {
        sqlx::query_scalar(AssertSqlSafe(format!("select run_id from runledger.run where node = '{name}'")))
            .fetch_one(db.pool())
            .await
            .unwrap()
    };
    let (bad, good) = (node("bad").await, node("good").await);
    let text =
        r#"update runledger.run set options = '{"delay_us":"soon","deadline_ms":1.5}' where run_id = $run"#;
    break_rows(&db, bad, text).await;
    let worker = worker(&db, jobs![first, bystander]).await;
    until(&db, good, |info| info.state == RunState::Completed).await;
    assert!(why_blocked(&db, bad).await.contains("`options.deadline_ms`"));
    worker.stop().await;
}

#[job]
async fn told_to_end() -> Result<u32> {
    MAY_END.acquire().await?.forget();
    Ok(7)
}

static MAY_END: tokio::sync::Semaphore = tokio::sync::Semaphore::const_new(0);

#[workflow]
async fn waits_for_told(wf: &Wf) -> Result<u32> {
    Ok(wf.start(told_to_end()).await?.result().await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn first_attempt_completes_despite_overlong_resource_of_parent_or_dependent() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![waits_for_told, told_to_end]).await;
    let mut graph = Graph::new("overlong");
    let root = graph.node("root", told_to_end());
    let bad = graph.node("bad", told_to_end());
    graph.after(bad, root);
    graph.enqueue(&db).await.unwrap();
    let parent = waits_for_told().enqueue(&db).await.unwrap().id();
    until(&db, parent, |info| info.state == RunState::Waiting).await;
    let bad: Uuid = scalar(&db, "select run_id from runledger.run where node = 'bad'").await;
    for spoiled in [parent, bad] {
        break_rows(&db, spoiled, LONG_RESOURCE).await;
    }
    MAY_END.add_permits(2);
    for spoiled in [parent, bad] {
        assert!(why_blocked(&db, spoiled).await.contains("`options.resource`"));
    }
    let ended = "select count(*) from runledger.outcome where state = 'completed' and attempt = 1";
    assert_eq!(scalar::<i64>(&db, ended).await, 2);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn duration_option_is_clamped_and_unreadable_one_counts_as_absent() {
    let Fixture { db, database: _database } = Fixture::new().await;
    for (options, expected) in [
        (r#"{"delay_us": 1500000}"#, "00:00:01.5"),
        (r#"{"delay_us": -1}"#, "00:00:00"),
        (r#"{"delay_us": 9223372036854775807}"#, "876000:00:00"),
        (r#"{"delay_us": 9223372036854775808}"#, "absent"),
        (r#"{"delay_us": null}"#, "absent"),
        (r#"{"delay_us": "soon"}"#, "absent"),
        (r#"{"delay_ms": 1}"#, "absent"),
    ] {
        let read = format!("select coalesce(runledger.duration_of('{options}', 'delay_us')::text, 'absent')");
        assert_eq!(scalar::<String>(&db, &read).await, expected, "{options}");
    }
}

static N_SAID: AtomicUsize = AtomicUsize::new(0);

#[job(max_attempts = 1)]
async fn says(word: String) -> Result<String> {
    N_SAID.fetch_add(1, Ordering::Relaxed);
    Ok(word)
}

#[tokio::test(flavor = "multi_thread")]
async fn output_refused_by_database_fails_only_its_run_in_batch() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let refuses = r#"
        create function refuse() returns trigger language plpgsql as $$ begin raise data_exception using message = 'no poison'; end $$;
        create trigger refuses before insert on runledger.outcome for each row when (new.output::text = '"poison"') execute function refuse()"#;
    execute(&db, refuses).await;
    let worker = worker(&db, jobs![says]).await;
    // The first settlement waits. All others queue after it, and the poisoned one is the last.
    let mut lock = db.pool().begin().await.unwrap();
    sqlx::query("lock table runledger.outcome in share mode").execute(&mut *lock).await.unwrap();
    let mut good = Vec::new();
    for n in 0..5 {
        good.push(says(n.to_string()).enqueue(&db).await.unwrap());
    }
    eventually(async || N_SAID.load(Ordering::Relaxed), |n| *n == 5).await;
    let poison = says("poison".to_owned()).enqueue(&db).await.unwrap();
    eventually(async || N_SAID.load(Ordering::Relaxed), |n| *n == 6).await;
    lock.rollback().await.unwrap();
    for (n, run) in good.iter().enumerate() {
        assert_eq!(soon(run.result()).await.unwrap(), n.to_string());
    }
    let info = until(&db, poison.id(), |info| info.state.is_terminal()).await;
    assert_eq!(info.state, RunState::Failed);
    let why = info.error.unwrap().to_string();
    assert!(why.contains("the database refuses to store this record") && why.contains("no poison"), "{why}");
    worker.stop().await;
}

#[job]
async fn repeats(word: String) -> Result<String> {
    Ok(word)
}

/// Makes the server execute this statement when it reads the content of a node that is not the
/// root.
async fn spoil_content(db: &Db, statement: &str) {
    let given = "alter function runledger.dependency_outcomes rename to really_given;
                 create function runledger.dependency_outcomes(uuid) returns json language plpgsql as $$ begin
                     if (select node from runledger.run where run_id = $1) <> 'root' then $statement; end if;
                     return null;
                 end $$";
    execute(db, &given.replace("$statement", statement)).await;
}

async fn mend_content(db: &Db) {
    let mend = "drop function runledger.dependency_outcomes; alter function runledger.really_given rename to dependency_outcomes";
    execute(db, mend).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: `cargo exhaustive`"]
async fn run_with_content_read_timeout_is_blocked_and_others_continue() {
    let Fixture { db, database: _database } = Fixture::new().await;
    spoil_content(&db, "perform pg_sleep(120)").await;
    let mut graph = Graph::new("slow");
    let root = graph.node("root", repeats("a".to_owned()));
    let slow = graph.node("slow", AnyCall::by_name("repeats", &json!({})));
    graph.feed(slow, "word", root);
    let graph = graph.enqueue(&db).await.unwrap();
    let worker = worker(&db, jobs![repeats, bystander]).await;
    let slow = scalar::<Uuid>(&db, "select run_id from runledger.run where node = 'slow'").await;
    until(&db, slow, |info| info.state == RunState::Queued).await;
    let other = bystander().enqueue(&db).await.unwrap();
    let why = why_blocked(&db, slow).await;
    assert!(why.contains("`content` of this run cannot be read: canceling statement due to"), "{why}");
    assert_eq!(soon(other.result()).await.unwrap(), 7);
    mend_content(&db).await;
    db.run(slow).resume().await.unwrap();
    soon(graph.result()).await.unwrap();
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn run_with_content_read_error_is_blocked_and_others_continue() {
    let Fixture { db, database: _database } = Fixture::new().await;
    // PostgreSQL raises this error if a text would exceed 1 GB.
    spoil_content(&db, "raise program_limit_exceeded using message = 'out of memory'").await;
    let mut graph = Graph::new("unreadable");
    let root = graph.node("root", repeats("a".to_owned()));
    let [plain, with_permit] =
        ["plain", "with_permit"].map(|name| graph.node(name, AnyCall::by_name("repeats", &json!({}))));
    for node in [plain, with_permit] {
        graph.feed(node, "word", root);
    }
    graph.configure(with_permit).resource("printer");
    let graph = graph.enqueue(&db).await.unwrap();
    let worker = worker(&db, jobs![repeats, bystander, two_steps, first]).await;
    let node = async |name: &str| {
        scalar::<Uuid>(&db, &format!("select run_id from runledger.run where node = '{name}'")).await
    };
    let bad = [node("plain").await, node("with_permit").await];
    for run_id in bad {
        let why = why_blocked(&db, run_id).await;
        assert!(
            why.contains("`content` of this run cannot be read") && why.contains("out of memory"),
            "{why}"
        );
    }
    let waits = two_steps().enqueue(&db).await.unwrap();
    until(&db, waits.id(), |info| info.state == RunState::Waiting).await;
    let report = App::new(db.clone()).with(jobs![repeats]).verify().await.unwrap().to_string();
    assert!(report.contains("2 runs of `repeats`") && report.contains("`content` of this run"), "{report}");
    assert!(report.contains("1 run of `two_steps`"), "{report}");
    for resource in [None, Some("printer")] {
        let call = bystander();
        let call = if let Some(name) = resource { call.resource(name) } else { call };
        assert_eq!(soon(call.enqueue(&db).await.unwrap().result()).await.unwrap(), 7);
    }
    mend_content(&db).await;
    for run_id in bad {
        db.run(run_id).resume().await.unwrap();
    }
    soon(graph.result()).await.unwrap();
    worker.stop().await;
}
