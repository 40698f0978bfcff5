//! Behaviour 19: the user's writes and the record are in one commit.

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};

use runledger::prelude::*;
use runledger::{RunState, Timings, Worker};
use runledger_tests::proxy::{Fault, Proxy};
use runledger_tests::rows::{execute, scalar, soon};
use runledger_tests::{Fixture, eventually};
use sqlx::Connection as _;
use tokio::sync::Barrier;

const TABLES: &str = "create table ledger (n bigint); create sequence kills; create sequence bodies";

/// Ends the session of the body at its first execution.
const KILL: &str = "select case when nextval('kills') = 1 then pg_terminate_backend(pg_backend_pid()) end";

/// No worker serves it, so its run and its signals stay.
#[workflow]
async fn follow_up(wf: &Wf) -> Result<i64> {
    Ok(wf.signal("n").await?)
}

/// Writes, enqueues a run, and signals that run in the same transaction. The session ends at
/// `point`, if that point is in the body.
#[job(max_attempts = 5, backoff = "10ms..20ms")]
async fn books(n: i64, point: u8, #[inject] tx: &mut Tx) -> Result<i64> {
    sqlx::query("select nextval('bodies')").execute(&mut **tx).await?;
    for (place, statement) in [(0, "select 1"), (1, "insert into ledger values ($1)")] {
        if statement.contains('$') {
            sqlx::query(statement).bind(n).execute(&mut **tx).await?;
        } else {
            sqlx::query(statement).execute(&mut **tx).await?;
        }
        if place == point {
            sqlx::query(KILL).execute(&mut **tx).await?;
        }
    }
    let follow_up = follow_up().enqueue(&mut *tx).await?;
    follow_up.signal("n", &n).send(&mut *tx).await?;
    if point == 2 {
        sqlx::query(KILL).execute(&mut **tx).await?;
    }
    Ok(n)
}

#[workflow]
async fn books_as_a_step(wf: &Wf, n: i64, point: u8) -> Result<i64> {
    wf.run(books(n, point)).await.map_err(Into::into)
}

async fn accountant(db: &Db) -> Worker {
    runledger_tests::rows::worker(db, jobs![books, books_as_a_step]).await
}

/// Counts entries, runs that the body enqueued, signals that it sent, steps, and executions of the
/// body.
async fn books_of(db: &Db) -> (i64, i64, i64, i64, i64) {
    let query =
        "select (select count(*) from ledger), (select count(*) from runledger.run where job = 'follow_up'),
                        (select count(*) from runledger.signal),
                        (select count(*) from runledger.step), (select last_value from bodies)";
    sqlx::query_as(query).fetch_one(db.pool()).await.unwrap()
}

/// A trigger that ends the session when it first fires.
fn killer(table: &str, when: &str) -> String {
    format!(
        "create function kill() returns trigger language plpgsql as $$ begin
             if nextval('kills') = 1 then perform pg_terminate_backend(pg_backend_pid()); end if; return null; end $$;
         create constraint trigger killer after insert on {table} {when} for each row execute function kill()"
    )
}

/// Ends the session at a point: after a statement of the body, during the record, or in the commit.
async fn kill_at(point: u8, as_a_step: bool) {
    let Fixture { db, database: _database } = Fixture::new().await;
    execute(&db, TABLES).await;
    match point {
        3 => execute(&db, &killer(if as_a_step { "runledger.step" } else { "runledger.outcome" }, "")).await,
        4 => execute(&db, &killer("ledger", "deferrable initially deferred")).await,
        _ => {}
    }
    let worker = accountant(&db).await;
    let output = if as_a_step {
        soon(books_as_a_step(7, point).enqueue(&db).await.unwrap().result()).await
    } else {
        soon(books(7, point).enqueue(&db).await.unwrap().result()).await
    };
    assert_eq!(output.unwrap(), 7);
    let n_steps = i64::from(as_a_step);
    assert_eq!(books_of(&db).await, (1, 1, 1, n_steps, 2), "killed at point {point}");
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn step_commits_exactly_once_when_session_dies_at_any_statement() {
    for point in 0..=4 {
        kill_at(point, true).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn job_commits_exactly_once_when_session_dies_at_any_statement() {
    for point in 0..=4 {
        kill_at(point, false).await;
    }
}

/// Writes through a proxy that fails the first commit.
#[job(max_attempts = 5, backoff = "10ms..20ms")]
async fn books_through_faults(
    n: i64,
    #[inject] proxy: &Arc<Proxy>,
    #[inject] fault: &Fault,
    #[inject] tx: &mut Tx,
) -> Result<i64> {
    let body: i64 = sqlx::query_scalar("select nextval('bodies')").fetch_one(&mut **tx).await?;
    sqlx::query("insert into ledger values ($1)").bind(n).execute(&mut **tx).await?;
    if body == 1 {
        proxy.arm("COMMIT", *fault);
    }
    Ok(n)
}

#[workflow]
async fn faulty_workflow(wf: &Wf, n: i64) -> Result<i64> {
    wf.run(books_through_faults(n)).await.map_err(Into::into)
}

async fn lose_acknowledgement(fault: Fault, as_a_step: bool) {
    let Fixture { db, database } = Fixture::new().await;
    execute(&db, TABLES).await;
    let proxy = Arc::new(Proxy::start(database.url()).await.unwrap());
    let through = Db::connect(proxy.url()).await.unwrap();
    let app = App::new(through).with(jobs![books_through_faults, faulty_workflow]).timings(Timings::FAST);
    let worker = app.provide(Arc::clone(&proxy)).provide(fault).start().await.unwrap();
    let (run_id, handle) = if as_a_step {
        let handle = faulty_workflow(7).enqueue(&db).await.unwrap();
        (handle.id(), tokio::spawn(async move { soon(handle.result()).await }))
    } else {
        let handle = books_through_faults(7).enqueue(&db).await.unwrap();
        (handle.id(), tokio::spawn(async move { soon(handle.result()).await }))
    };
    if fault == Fault::Hold {
        // The worker has lost its connection and queries the outcome of the commit, which is still
        // in flight.
        let waits = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'";
        eventually(async || scalar::<i64>(&db, waits).await, |n_waits| *n_waits > 0).await;
        proxy.release();
    }
    assert_eq!(handle.await.unwrap().unwrap(), 7);
    // The end of a run may be visible before the proxy has seen the reply to its commit.
    eventually(async || proxy.n_faults(), |n| *n == 1).await;
    let (n_entries, _, _, n_steps, n_bodies) = books_of(&db).await;
    let wanted_bodies = if fault == Fault::Strand { 2 } else { 1 };
    assert_eq!((n_entries, n_steps, n_bodies), (1, i64::from(as_a_step), wanted_bodies), "{fault:?}");
    assert_eq!(db.run(run_id).info().await.unwrap().state, RunState::Completed);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn commit_with_lost_acknowledgement_is_not_repeated() {
    lose_acknowledgement(Fault::LoseReply, true).await;
    lose_acknowledgement(Fault::LoseReply, false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn commit_in_flight_when_connection_is_lost_is_not_repeated() {
    lose_acknowledgement(Fault::Hold, true).await;
    lose_acknowledgement(Fault::Hold, false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn body_is_repeated_when_commit_never_arrives_on_open_connection() {
    tokio::join!(lose_acknowledgement(Fault::Strand, true), lose_acknowledgement(Fault::Strand, false));
}

#[job(max_attempts = 3, backoff = "10ms..10ms")]
async fn fails_after_writing(#[inject] tx: &mut Tx) -> Result<()> {
    sqlx::query("insert into ledger values (1)").execute(&mut **tx).await?;
    let body: i64 = sqlx::query_scalar("select nextval('bodies')").fetch_one(&mut **tx).await?;
    match body {
        1 => Err("after the write")?,
        2 => panic!("after the write"),
        _ => Ok(()),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_or_panicked_body_leaves_no_write() {
    let Fixture { db, database: _database } = Fixture::new().await;
    execute(&db, TABLES).await;
    let worker = runledger_tests::rows::worker(&db, jobs![fails_after_writing]).await;
    let handle = fails_after_writing().enqueue(&db).await.unwrap();
    soon(handle.result()).await.unwrap();
    let n_entries: i64 = scalar(&db, "select count(*) from ledger").await;
    assert_eq!(n_entries, 1);
    assert_eq!(handle.info().await.unwrap().attempt, 3);
    worker.stop().await;
}

static SERIALIZABLE: LazyLock<Barrier> = LazyLock::new(|| Barrier::new(2));
static SERIALIZABLE_BODIES: AtomicUsize = AtomicUsize::new(0);

#[job(max_attempts = 1)]
async fn counts_serializably(#[inject] tx: &mut Tx) -> Result<i64> {
    sqlx::query("set transaction isolation level serializable").execute(&mut **tx).await?;
    let n: i64 = sqlx::query_scalar("select sum(n)::bigint from ledger").fetch_one(&mut **tx).await?;
    if SERIALIZABLE_BODIES.fetch_add(1, Ordering::Relaxed) < 2 {
        SERIALIZABLE.wait().await;
    }
    sqlx::query("insert into ledger values ($1)").bind(n).execute(&mut **tx).await?;
    Ok(n)
}

#[workflow]
async fn doubles(wf: &Wf) -> Result<i64> {
    wf.run(counts_serializably()).await.map_err(Into::into)
}

#[tokio::test(flavor = "multi_thread")]
async fn serialization_failure_repeats_body_in_fresh_transaction() {
    let Fixture { db, database: _database } = Fixture::new().await;
    execute(&db, TABLES).await;
    execute(&db, "insert into ledger values (1)").await;
    let worker = runledger_tests::rows::worker(&db, jobs![doubles, counts_serializably]).await;
    let (one, two) = (doubles().enqueue(&db).await.unwrap(), doubles().enqueue(&db).await.unwrap());
    let mut sums = [soon(one.result()).await.unwrap(), soon(two.result()).await.unwrap()];
    sums.sort_unstable();
    assert_eq!(sums, [1, 2], "one after the other, as if they had never met");
    assert!(SERIALIZABLE_BODIES.load(Ordering::Relaxed) >= 3, "they met");
    worker.stop().await;
}

static CROSSWISE: LazyLock<Barrier> = LazyLock::new(|| Barrier::new(2));
static CROSSWISE_BODIES: AtomicUsize = AtomicUsize::new(0);

#[job(max_attempts = 1)]
async fn locks_crosswise(first: i64, second: i64, #[inject] tx: &mut Tx) -> Result<()> {
    let update = "update ledger set n = n + 10 where n % 10 = $1";
    sqlx::query(update).bind(first).execute(&mut **tx).await?;
    if CROSSWISE_BODIES.fetch_add(1, Ordering::Relaxed) < 2 {
        CROSSWISE.wait().await;
    }
    sqlx::query(update).bind(second).execute(&mut **tx).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn deadlock_repeats_body_in_fresh_transaction() {
    let Fixture { db, database: _database } = Fixture::new().await;
    execute(&db, TABLES).await;
    execute(&db, "insert into ledger values (1), (2)").await;
    let worker = runledger_tests::rows::worker(&db, jobs![locks_crosswise]).await;
    let (one, two) = (
        locks_crosswise(1, 2).enqueue(&db).await.unwrap(),
        locks_crosswise(2, 1).enqueue(&db).await.unwrap(),
    );
    soon(one.result()).await.unwrap();
    soon(two.result()).await.unwrap();
    let entries: Vec<i64> = scalar(&db, "select array_agg(n order by n) from ledger").await;
    assert_eq!(entries, [21, 22]);
    assert_eq!(CROSSWISE_BODIES.load(Ordering::Relaxed), 3);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn process_death_before_or_after_commit_leaves_one_write() {
    for when in ["before", "after"] {
        let site = crate::processes::Site::new().await;
        execute(site.db(), "create table entry (n bigint)").await;
        let mut first = site.worker("first", crate::processes::FAST).await;
        let handle = runledger_tests::chain::fragile(when.to_owned()).enqueue(site.db()).await.unwrap();
        assert!(!soon(first.wait()).await.unwrap().success(), "it aborts");
        let n_recorded: i64 = scalar(site.db(), "select count(*) from runledger.step").await;
        let n_entries: i64 = scalar(site.db(), "select count(*) from entry").await;
        assert_eq!((n_entries, n_recorded), if when == "after" { (1, 1) } else { (0, 0) });
        let _second = site.worker("second", crate::processes::FAST).await;
        soon(handle.result()).await.unwrap();
        let n_entries: i64 = scalar(site.db(), "select count(*) from entry").await;
        assert_eq!(n_entries, 1, "died {when} the commit");
    }
}

async fn execute_in(tx: &mut Tx, statements: &'static str) -> std::result::Result<(), sqlx::Error> {
    sqlx::raw_sql(statements).execute(&mut **tx).await.map(|_| ())
}

/// Ends its own transaction, or only seems to, between two writes.
#[job]
async fn ends_its_transaction(how: String, #[inject] db: &Db, #[inject] tx: &mut Tx) -> Result<()> {
    sqlx::query("insert into ledger values (1)").execute(&mut **tx).await?;
    match how.as_str() {
        "commit" => execute_in(tx, "commit").await?,
        "rollback and begin" => execute_in(tx, "rollback; begin").await?,
        "reset all" => execute_in(tx, "reset all").await?,
        "dropped begin" => assert!(futures::poll!(Box::pin(tx.begin())).is_pending()),
        _ => *tx = db.begin().await?,
    }
    sqlx::query("insert into ledger values (2)").execute(&mut **tx).await?;
    Ok(())
}

#[workflow]
async fn ends_the_transaction_of_a_step(wf: &Wf, how: String) -> Result<()> {
    wf.run(ends_its_transaction(how)).await.map_err(Into::into)
}

#[tokio::test(flavor = "multi_thread")]
async fn body_that_ends_its_own_transaction_fails_without_recorded_output() {
    let Fixture { db, database: _database } = Fixture::new().await;
    execute(&db, TABLES).await;
    let jobs = jobs![ends_its_transaction, ends_the_transaction_of_a_step];
    let worker = App::new(db.clone()).with(jobs).provide(db.clone()).start().await.unwrap();
    for how in ["commit", "rollback and begin", "reset all", "dropped begin", "another"] {
        let job = ends_its_transaction(how.to_owned()).enqueue(&db).await.unwrap();
        let step = ends_the_transaction_of_a_step(how.to_owned()).enqueue(&db).await.unwrap();
        for result in [soon(job.result()).await, soon(step.result()).await] {
            let Err(runledger::ClientError::RunFailed { failure, .. }) = result else {
                panic!("{how}: {result:?}")
            };
            let text = failure.to_string();
            let words = "the engine no longer finds the transaction of the body, so the body is not recorded: it ran `COMMIT`, `ROLLBACK` or `RESET ALL`";
            assert!(text.contains(words), "{how}: {text}");
        }
    }
    let n_done: i64 = scalar(&db, "select count(*) from runledger.step where output is not null").await;
    assert_eq!(n_done, 0);
    worker.stop().await;
}

#[job]
async fn forgets_a_savepoint(#[inject] tx: &mut Tx) -> Result<()> {
    std::mem::forget(tx.begin().await?);
    sqlx::query("insert into ledger values (1)").execute(&mut **tx).await?;
    Ok(())
}

#[workflow]
async fn forgets_a_savepoint_in_a_step(wf: &Wf) -> Result<()> {
    wf.run(forgets_a_savepoint()).await.map_err(Into::into)
}

#[tokio::test(flavor = "multi_thread")]
async fn body_with_forgotten_savepoint_commits_its_writes() {
    let Fixture { db, database: _database } = Fixture::new().await;
    execute(&db, TABLES).await;
    let jobs = jobs![forgets_a_savepoint, forgets_a_savepoint_in_a_step];
    let worker = runledger_tests::rows::worker(&db, jobs).await;
    for n in [1, 3, 5] {
        soon(forgets_a_savepoint().enqueue(&db).await.unwrap().result()).await.unwrap();
        assert_eq!(scalar::<i64>(&db, "select count(*) from ledger").await, n);
        soon(forgets_a_savepoint_in_a_step().enqueue(&db).await.unwrap().result()).await.unwrap();
        assert_eq!(scalar::<i64>(&db, "select count(*) from ledger").await, n + 1);
    }
    worker.stop().await;
}

#[job(max_attempts = 2, backoff = "1ms..1ms")]
async fn changes_its_encoding(#[inject] tx: &mut Tx) -> Result<String> {
    execute_in(tx, "insert into ledger values (1); set local client_encoding = 'LATIN1'").await?;
    Ok("grün".to_owned())
}

#[workflow]
async fn changes_the_encoding_of_a_step(wf: &Wf) -> Result<String> {
    wf.run(changes_its_encoding()).await.map_err(Into::into)
}

#[job]
async fn names_its_encoding_otherwise(#[inject] tx: &mut Tx) -> Result<String> {
    execute_in(tx, "set local client_encoding = 'UNICODE'").await?;
    Ok("grün".to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn body_may_set_alias_of_its_client_encoding() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = runledger_tests::rows::worker(&db, jobs![names_its_encoding_otherwise]).await;
    let run = names_its_encoding_otherwise().enqueue(&db).await.unwrap();
    assert_eq!(soon(run.result()).await.unwrap(), "grün");
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn body_that_changes_client_encoding_fails_without_writes() {
    let Fixture { db, database: _database } = Fixture::new().await;
    execute(&db, TABLES).await;
    let worker =
        runledger_tests::rows::worker(&db, jobs![changes_its_encoding, changes_the_encoding_of_a_step]).await;
    let job = changes_its_encoding().enqueue(&db).await.unwrap();
    let step = changes_the_encoding_of_a_step().enqueue(&db).await.unwrap();
    for result in [soon(job.result()).await, soon(step.result()).await] {
        let text = result.unwrap_err().to_string();
        assert!(text.contains("set `client_encoding` to `LATIN1`"), "{text}");
    }
    assert_eq!(scalar::<i64>(&db, "select count(*) from ledger").await, 0);
    worker.stop().await;
}

#[job(max_attempts = 2, backoff = "10ms..10ms")]
async fn swallows_an_error(#[inject] context: &Context, #[inject] tx: &mut Tx) -> Result<()> {
    if context.attempt() == 1 {
        let swallowed = sqlx::query("select 1 / 0").execute(&mut **tx).await;
        assert!(swallowed.is_err());
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn body_that_ignores_failed_statement_gets_error_and_is_retried() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = runledger_tests::rows::worker(&db, jobs![swallows_an_error]).await;
    let handle = swallows_an_error().enqueue(&db).await.unwrap();
    soon(handle.result()).await.unwrap();
    let attempts = handle.attempts().await.unwrap();
    let failure = attempts[0].error.as_ref().unwrap().to_string();
    assert!(
        failure.contains("a statement of the body's transaction failed and the body went on"),
        "{failure}"
    );
    worker.stop().await;
}

/// Its session ends in its first transaction, at a statement of its own.
#[job(max_attempts = 1)]
async fn interrupted_writer(#[inject] tx: &mut Tx) -> Result<()> {
    sqlx::query("insert into ledger values (1)").execute(&mut **tx).await?;
    sqlx::query(KILL).execute(&mut **tx).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn body_with_lost_connection_is_repeated_in_fresh_transaction() {
    let Fixture { db, database: _database } = Fixture::new().await;
    execute(&db, TABLES).await;
    let worker = runledger_tests::rows::worker(&db, jobs![interrupted_writer]).await;
    let run = interrupted_writer().enqueue(&db).await.unwrap();
    soon(run.result()).await.expect("a lost connection is no failure of the body");
    assert_eq!(run.info().await.unwrap().attempt, 1);
    assert_eq!(scalar::<i64>(&db, "select count(*) from ledger").await, 1);
    assert_eq!(scalar::<i64>(&db, "select last_value from kills").await, 2, "two bodies");
    worker.stop().await;
}

/// Fails like a pool of another database, or with its own decision after an error of its
/// connection.
#[job(max_attempts = 1)]
async fn its_own_affair(decided: bool, #[inject] tx: &mut Tx) -> Result<()> {
    sqlx::query("select nextval('bodies')").execute(&mut **tx).await?;
    if !decided {
        return Err(sqlx::Error::PoolTimedOut.into());
    }
    let killed = sqlx::query("select pg_terminate_backend(pg_backend_pid())").execute(&mut **tx).await;
    killed.map(drop).map_err(Error::terminal)
}

#[tokio::test(flavor = "multi_thread")]
async fn body_with_foreign_or_terminal_error_is_not_repeated() {
    for decided in [false, true] {
        let Fixture { db, database: _database } = Fixture::new().await;
        execute(&db, TABLES).await;
        let worker = runledger_tests::rows::worker(&db, jobs![its_own_affair]).await;
        let run = its_own_affair(decided).enqueue(&db).await.unwrap();
        soon(run.result()).await.expect_err("nothing of the engine's was in the way");
        assert_eq!(scalar::<i64>(&db, "select last_value from bodies").await, 1, "decided: {decided}");
        worker.stop().await;
    }
}

/// More attempts than a conflict gets.
const REFUSALS: i64 = 6;

#[job(max_attempts = 1)]
async fn refused_writer(code: String, #[inject] tx: &mut Tx) -> Result<()> {
    let body: i64 = sqlx::query_scalar("select nextval('bodies')").fetch_one(&mut **tx).await?;
    if body <= REFUSALS {
        let refuse = format!("do $$ begin raise exception 'no' using errcode = '{code}'; end $$");
        sqlx::raw_sql(sqlx::AssertSqlSafe(refuse)).execute(&mut **tx).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn body_waits_while_server_disk_is_full() {
    let Fixture { db, database: _database } = Fixture::new().await;
    execute(&db, TABLES).await;
    let worker = runledger_tests::rows::worker(&db, jobs![refused_writer]).await;
    let run = refused_writer("53100".to_owned()).enqueue(&db).await.unwrap();
    soon(run.result()).await.expect("what the server lacks is no failure of the body");
    assert_eq!(scalar::<i64>(&db, "select last_value from bodies").await, REFUSALS + 1);
    assert_eq!(run.info().await.unwrap().attempt, 1);
    worker.stop().await;
}

static READ_ONLY_BODIES: AtomicUsize = AtomicUsize::new(0);
static READ_ONLY_PID: AtomicI32 = AtomicI32::new(0);
static IS_STANDBY: AtomicBool = AtomicBool::new(true);

#[job(max_attempts = 1)]
async fn read_only_writer(#[inject] tx: &mut Tx) -> Result<()> {
    let session = "select pg_backend_pid(), current_setting('default_transaction_read_only')::bool";
    let (pid, is_read_only) = sqlx::query_as(session).fetch_one(&mut **tx).await?;
    if is_read_only {
        READ_ONLY_PID.store(pid, Ordering::SeqCst);
        READ_ONLY_BODIES.fetch_add(1, Ordering::SeqCst);
    } else if IS_STANDBY.load(Ordering::SeqCst) {
        // This session is older than the failover. The next one is read-only.
        sqlx::query("select pg_terminate_backend($1)").bind(pid).execute(&mut **tx).await?;
    }
    sqlx::query("insert into ledger values (1)").execute(&mut **tx).await?;
    Ok(())
}

/// Simulates a promoted standby that replaced the server.
#[tokio::test(flavor = "multi_thread")]
async fn body_waits_while_its_session_is_read_only() {
    let Fixture { db, database } = Fixture::new().await;
    execute(&db, TABLES).await;
    let own = Db::connect_with(database.url().parse().unwrap(), 3).await.unwrap();
    let worker = runledger_tests::rows::worker(&own, jobs![innocent_writer, read_only_writer]).await;
    // By now the claimer and the commit queue have their sessions.
    soon(innocent_writer().enqueue(&db).await.unwrap().result()).await.unwrap();
    let name: String = scalar(&db, "select current_database()::text").await;
    execute(&db, &format!("alter database {name} set default_transaction_read_only = on")).await;
    let run = read_only_writer().enqueue(&db).await.unwrap();
    eventually(async || READ_ONLY_BODIES.load(Ordering::SeqCst), |n| *n >= 4).await;
    execute(&db, &format!("alter database {name} reset default_transaction_read_only")).await;
    IS_STANDBY.store(false, Ordering::SeqCst);
    let end = format!("select pg_terminate_backend({})", READ_ONLY_PID.load(Ordering::SeqCst));
    execute(&db, &end).await;
    soon(run.result()).await.expect("what the server refuses is no failure of the body");
    assert_eq!(scalar::<i64>(&db, "select count(*) from ledger").await, 1);
    assert_eq!(run.info().await.unwrap().attempt, 1);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn always_conflicting_body_fails_with_own_error_after_five_transactions() {
    for code in ["40001", "40P01"] {
        let Fixture { db, database: _database } = Fixture::new().await;
        execute(&db, TABLES).await;
        let worker = runledger_tests::rows::worker(&db, jobs![refused_writer]).await;
        let result = soon(refused_writer(code.to_owned()).enqueue(&db).await.unwrap().result()).await;
        let Err(runledger::ClientError::RunFailed { failure, .. }) = result else { panic!("{result:?}") };
        assert!(failure.message.contains("error returned from database: no"), "{failure}");
        assert_eq!(scalar::<i64>(&db, "select last_value from bodies").await, 5);
        worker.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn record_waits_while_server_disk_is_full() {
    let Fixture { db, database: _database } = Fixture::new().await;
    execute(&db, TABLES).await;
    execute(
        &db,
        "create function refuse() returns trigger language plpgsql as $$ begin
             if nextval('kills') <= 6 then raise exception 'no' using errcode = '53100'; end if; return null; end $$;
         create trigger refusal after insert on runledger.outcome for each row execute function refuse()",
    )
    .await;
    let worker = runledger_tests::rows::worker(&db, jobs![innocent_writer]).await;
    let run = innocent_writer().enqueue(&db).await.unwrap();
    soon(run.result()).await.expect("what the server lacks is no failure of the body");
    assert_eq!(run.info().await.unwrap().attempt, 1);
    worker.stop().await;
}

#[job(max_attempts = 1)]
async fn innocent_writer(#[inject] tx: &mut Tx) -> Result<()> {
    sqlx::query("select nextval('bodies')").execute(&mut **tx).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn transaction_losing_every_connection_reports_loss_instead_of_conflict() {
    let Fixture { db, database: _database } = Fixture::new().await;
    execute(&db, TABLES).await;
    execute(
        &db,
        "create function kill() returns trigger language plpgsql as $$ begin
             if new.state = 'completed' then perform pg_terminate_backend(pg_backend_pid()); end if; return null; end $$;
         create trigger killer after insert on runledger.outcome for each row execute function kill()",
    )
    .await;
    let worker = runledger_tests::rows::worker(&db, jobs![innocent_writer]).await;
    let result = soon(innocent_writer().enqueue(&db).await.unwrap().result()).await;
    let Err(runledger::ClientError::RunFailed { failure, .. }) = result else { panic!("{result:?}") };
    let text = failure.to_string();
    assert!(text.contains("its connection was lost"), "{text}");
    assert!(!text.contains("serialization"), "{text}");
    let n_bodies: i64 = scalar(&db, "select last_value from bodies").await;
    assert_eq!(n_bodies, 10);
    worker.stop().await;
}
