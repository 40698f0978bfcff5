//! Limits that an operator sets on the database, and bodies that change their own transaction.

use std::fmt::Write;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use runledger::prelude::*;
use runledger::{ClientError, Failure, FailureKind};
use runledger_tests::proxy::Proxy;
use runledger_tests::rows::{execute, scalar, soon, worker};
use runledger_tests::{Fixture, eventually};
use sqlx::AssertSqlSafe;
use tracing::field::{Field, Visit};
use tracing_subscriber::layer::{Context as LayerContext, Layer, SubscriberExt};

/// Sets limits for new sessions of this database.
async fn limited<const N: usize>(fixture: &Fixture, limits: [(&str, &str); N]) -> Db {
    let name: String = scalar(&fixture.db, "select current_database()::text").await;
    for (setting, value) in limits {
        execute(&fixture.db, &format!("alter database {name} set {setting} = '{value}'")).await;
    }
    Db::connect(fixture.database.url()).await.unwrap()
}

/// Expects a failed run and returns its failure.
fn failure<T: std::fmt::Debug>(result: std::result::Result<T, ClientError>) -> Failure {
    match result {
        Err(ClientError::RunFailed { failure, .. }) => failure,
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn says(failure: &Failure, words: &[&str]) {
    let text = failure.to_string();
    for words in words {
        assert!(text.contains(words), "`{words}` is missing: {text}");
    }
}

/// Collects the events of the current thread, one per line.
#[derive(Clone, Default)]
pub(crate) struct Heard(Arc<Mutex<String>>);

impl Heard {
    /// Listens until the guard is dropped.
    pub(crate) fn listen(&self) -> impl Sized {
        // With only one subscriber, tracing asks the thread that first meets an event whether
        // anyone wants it, and remembers the answer.
        let second = tracing::Dispatch::new(tracing_subscriber::registry());
        let hearing = tracing::subscriber::set_default(tracing_subscriber::registry().with(self.clone()));
        (hearing, second)
    }

    pub(crate) fn lines_with(&self, text: &str) -> Vec<String> {
        let heard = self.0.lock().unwrap();
        heard.lines().filter(|line| line.contains(text)).map(str::to_owned).collect()
    }
}

impl<S: tracing::Subscriber> Layer<S> for Heard {
    fn on_event(&self, event: &tracing::Event<'_>, _: LayerContext<'_, S>) {
        let mut line = Line(String::new());
        event.record(&mut line);
        self.0.lock().unwrap().push_str(&(line.0 + "\n"));
    }
}

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        let _ = write!(self.0, "{}={value:?} ", field.name());
    }
}

static SLOW: AtomicU32 = AtomicU32::new(0);

/// Leaves its transaction idle for longer than the limit.
#[job(max_attempts = 2, backoff = "1ms..1ms")]
async fn limits_slow(asks: bool, #[inject] tx: &mut Tx) -> Result<()> {
    SLOW.fetch_add(1, Ordering::SeqCst);
    sqlx::query("select 1").execute(&mut **tx).await?;
    tokio::time::sleep(Duration::from_millis(900)).await;
    if asks {
        sqlx::query("select 1").execute(&mut **tx).await?;
    }
    Ok(())
}

#[workflow]
async fn limits_slow_step(wf: &Wf) -> Result<()> {
    Ok(wf.run(limits_slow(true)).await?)
}

/// Runs on one thread, because the subscriber is bound to the thread.
#[tokio::test]
async fn idle_transaction_names_setting_and_repeats_body_at_most_once() {
    let heard = Heard::default();
    let _hearing = heard.listen();
    let fixture = Fixture::new().await;
    let own = limited(&fixture, [("idle_in_transaction_session_timeout", "200ms")]).await;
    let worker = worker(&own, jobs![limits_slow, limits_slow_step]).await;
    let named = ["`idle_in_transaction_session_timeout` (`200ms`)", "nothing was written", "alter role"];
    for asks in [true, false] {
        SLOW.store(0, Ordering::SeqCst);
        heard.0.lock().unwrap().clear();
        says(&failure(soon(limits_slow(asks).enqueue(&fixture.db).await.unwrap().result()).await), &named);
        let n = SLOW.load(Ordering::SeqCst);
        assert!((2..=4).contains(&n), "{n} bodies in two attempts");
        let told = heard.lines_with("idle_in_transaction_session_timeout");
        assert_eq!(told.len(), n as usize, "a body without a word: {told:#?}");
    }
    says(&failure(soon(limits_slow_step().enqueue(&fixture.db).await.unwrap().result()).await), &named);
    worker.stop().await;
}

#[job(max_attempts = 1)]
async fn limits_statement(statement: String, #[inject] tx: &mut Tx) -> Result<()> {
    sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut **tx).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn statement_exceeding_limit_names_setting() {
    let fixture = Fixture::new().await;
    execute(&fixture.db, "create table held (n integer); insert into held values (1)").await;
    let own = limited(&fixture, [("statement_timeout", "2s"), ("lock_timeout", "300ms")]).await;
    let worker = worker(&own, jobs![limits_statement]).await;
    let slow = limits_statement("select pg_sleep(60)".to_owned()).enqueue(&fixture.db).await.unwrap();
    says(
        &failure(soon(slow.result()).await),
        &["`statement_timeout` (`2s`)", "alter role", "canceling statement"],
    );
    let mut holder = fixture.db.pool().begin().await.unwrap();
    sqlx::query("update held set n = 2").execute(&mut *holder).await.unwrap();
    let waits = limits_statement("update held set n = 3".to_owned()).enqueue(&fixture.db).await.unwrap();
    says(&failure(soon(waits.result()).await), &["`lock_timeout` (`300ms`)", "alter role", "lock timeout"]);
    holder.rollback().await.unwrap();
    worker.stop().await;
}

#[job]
async fn limits_plain(n: u32) -> Result<u32> {
    Ok(n)
}

#[workflow]
async fn limits_workflow(wf: &Wf) -> Result<u32> {
    let mut sum = 0;
    for n in 0..3 {
        sum += wf.start(limits_plain(n)).await?.result().await?;
        // Longer than the idle limit of a session.
        wf.sleep(Duration::from_millis(1300)).await?;
        sum += wf.run(limits_plain(n)).await?;
    }
    Ok(sum)
}

#[tokio::test(flavor = "multi_thread")]
async fn worker_works_under_short_database_timeouts() {
    let fixture = Fixture::new().await;
    let mut limits = vec![
        ("statement_timeout", "1s"),
        ("lock_timeout", "1s"),
        ("idle_in_transaction_session_timeout", "1s"),
    ];
    let version: i32 = scalar(&fixture.db, "select current_setting('server_version_num')::integer").await;
    if version >= 140_000 {
        limits.push(("idle_session_timeout", "1s"));
    }
    let name: String = scalar(&fixture.db, "select current_database()::text").await;
    for (setting, value) in limits {
        execute(&fixture.db, &format!("alter database {name} set {setting} = '{value}'")).await;
    }
    let own = Db::connect(fixture.database.url()).await.unwrap();
    let worker = worker(&own, jobs![limits_plain, limits_workflow]).await;
    assert_eq!(soon(limits_workflow().enqueue(&own).await.unwrap().result()).await.unwrap(), 6);
    assert_eq!(soon(limits_plain(4).enqueue(&own).await.unwrap().result()).await.unwrap(), 4);
    worker.stop().await;
}

static MEDDLED: AtomicU32 = AtomicU32::new(0);

/// Changes its transaction, then writes itself or leaves the write to the engine.
#[job(max_attempts = 3, backoff = "1ms..1ms")]
async fn limits_meddles(first: String, then: String, #[inject] tx: &mut Tx) -> Result<()> {
    MEDDLED.fetch_add(1, Ordering::SeqCst);
    for statement in [first, then] {
        sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut **tx).await?;
    }
    Ok(())
}

#[workflow]
async fn limits_meddles_in_a_step(wf: &Wf, first: String) -> Result<()> {
    Ok(wf.run(limits_meddles(first, "select 1".to_owned())).await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn body_blocking_engine_write_fails_terminally_and_names_cause() {
    let fixture = Fixture::new().await;
    let name: String = scalar(&fixture.db, "select current_database()::text").await;
    let role = format!("{name}_reader");
    execute(&fixture.db, &format!("create role {role}; create table books (n integer)")).await;
    let worker = worker(&fixture.db, jobs![limits_meddles, limits_meddles_in_a_step]).await;
    let set_role = format!("set role {role}");
    let read_only = "set transaction read only";
    for (first, then, said) in [
        (read_only, "select 1", "the body made its transaction read-only"),
        (read_only, "insert into books values (1)", "the body made its transaction read-only"),
        (set_role.as_str(), "select 1", "the body changed the role of its transaction"),
    ] {
        MEDDLED.store(0, Ordering::SeqCst);
        let run = limits_meddles(first.to_owned(), then.to_owned()).enqueue(&fixture.db).await.unwrap();
        let failed = failure(soon(run.result()).await);
        says(&failed, &[said, "nothing was written"]);
        assert!(!format!("{failed:?}").contains(" tries"), "it was tried twice: {failed:?}");
        assert_eq!(failed.kind, FailureKind::Setup);
        assert_eq!(MEDDLED.load(Ordering::SeqCst), 2, "{first}; {then}");
        assert_eq!(run.info().await.unwrap().attempt, 1);
    }
    let step = limits_meddles_in_a_step(set_role).enqueue(&fixture.db).await.unwrap();
    says(&failure(soon(step.result()).await), &["the body changed the role of its transaction"]);
    worker.stop().await;
    execute(&fixture.db, &format!("drop role {role}")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lock_timeout_reached_at_commit_is_named() {
    let fixture = Fixture::new().await;
    let tables = "create table parent (id integer primary key); insert into parent values (1);
        create table child (id integer references parent deferrable initially deferred)";
    execute(&fixture.db, tables).await;
    let own = limited(&fixture, [("lock_timeout", "1s")]).await;
    let worker = worker(&own, jobs![limits_statement]).await;
    let mut holder = fixture.db.begin().await.unwrap();
    sqlx::query("delete from parent").execute(&mut *holder).await.unwrap();
    let run = limits_statement("insert into child values (1)".into()).enqueue(&fixture.db).await.unwrap();
    let failed = failure(soon(run.result()).await);
    says(&failed, &["because it waited for a lock for longer than `lock_timeout` (`1s`)"]);
    drop(holder);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn transaction_timeout_reached_at_commit_is_named() {
    let fixture = Fixture::new().await;
    let version: i32 = scalar(&fixture.db, "select current_setting('server_version_num')::integer").await;
    let slow = "create table slow (n integer);
        create function wait() returns trigger language plpgsql as $$ begin perform pg_sleep(3); return null; end $$;
        create constraint trigger waits after insert on slow deferrable initially deferred
        for each row execute function wait()";
    execute(&fixture.db, slow).await;
    // Servers before 17 have no such limit, and the body completes.
    let limit = if version >= 170_000 { "transaction_timeout" } else { "statement_timeout" };
    let own = limited(&fixture, [(limit, "1s")]).await;
    let worker = worker(&own, jobs![limits_statement]).await;
    let run = limits_statement("insert into slow values (1)".into()).enqueue(&fixture.db).await.unwrap();
    match soon(run.result()).await {
        Ok(()) => assert!(version < 170_000),
        failed => says(&failure(failed), &["lasted for longer than `transaction_timeout` (`1s`)"]),
    }
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn statement_cancelled_by_person_names_no_limit() {
    let fixture = Fixture::new().await;
    let own = limited(&fixture, [("statement_timeout", "2s")]).await;
    let worker = worker(&own, jobs![limits_statement]).await;
    let slow = "set local statement_timeout = 0; select pg_sleep(2.1); select pg_sleep(3600)";
    let run = limits_statement(slow.into()).enqueue(&fixture.db).await.unwrap();
    let cancel = "select count(*) filter (where pg_cancel_backend(pid)) from pg_stat_activity
        where datname = current_database() and state = 'active' and query like 'set local statement%'
            and clock_timestamp() > query_start + interval '2.5 s'";
    eventually(async || scalar::<i64>(&fixture.db, cancel).await, |n_cancelled| *n_cancelled == 1).await;
    let failed = failure(soon(run.result()).await).to_string();
    assert!(failed.contains("due to user request") && !failed.contains("timeout"), "{failed}");
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn limit_not_reached_by_this_server_is_not_named() {
    let fixture = Fixture::new().await;
    execute(&fixture.db, "create table held (n integer); insert into held values (1)").await;
    let own = limited(&fixture, [("lock_timeout", "300ms"), ("statement_timeout", "300ms")]).await;
    let worker = worker(&own, jobs![limits_statement]).await;
    let mut holder = fixture.db.begin().await.unwrap();
    sqlx::query("select n from held for update").execute(&mut *holder).await.unwrap();
    let raise = |code| {
        format!(
            "set local statement_timeout = 0; select pg_sleep(0.5); do $$ begin raise exception 'elsewhere' using errcode = '{code}'; end $$"
        )
    };
    let nowait =
        "set local statement_timeout = 0; select pg_sleep(0.5); select n from held for update nowait";
    for statement in ["25P03", "25P04", "55P03", "57014"].map(raise).into_iter().chain([nowait.to_owned()]) {
        let run = limits_statement(statement.clone()).enqueue(&fixture.db).await.unwrap();
        let failed = failure(soon(run.result()).await).to_string();
        assert!(!failed.contains("timeout") && !failed.contains("alter role"), "{statement}: {failed}");
    }
    drop(holder);
    worker.stop().await;
}

static REFUSED: AtomicU32 = AtomicU32::new(0);

/// Fails twice, like a statement whose foreign table is on a read-only server.
#[job(max_attempts = 1)]
async fn limits_meets_a_foreign_standby(#[inject] tx: &mut Tx) -> Result<()> {
    if REFUSED.fetch_add(1, Ordering::SeqCst) < 2 {
        let refuse = "do $$ begin raise read_only_sql_transaction using message = 'cannot execute INSERT in a read-only transaction'; end $$";
        sqlx::raw_sql(refuse).execute(&mut **tx).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn body_is_not_blamed_for_read_only_foreign_server() {
    let Fixture { db, .. } = Fixture::new().await;
    let worker = worker(&db, jobs![limits_meets_a_foreign_standby]).await;
    let run = limits_meets_a_foreign_standby().enqueue(&db).await.unwrap();
    soon(run.result()).await.unwrap();
    assert_eq!(REFUSED.load(Ordering::SeqCst), 3);
    worker.stop().await;
}

#[job(max_attempts = 1)]
async fn limits_writes(#[inject] tx: &mut Tx) -> Result<()> {
    sqlx::query("select 1").execute(&mut **tx).await?;
    Ok(())
}

#[job]
async fn limits_blocks() -> Result<()> {
    std::thread::sleep(Duration::from_secs(13));
    Ok(())
}

/// Opens a TCP path to the server, with its own threads. A client of a socket does not learn why
/// the server ended its session.
fn by_tcp(url: &str) -> String {
    let (url, (tell, told)) = (url.to_owned(), std::sync::mpsc::channel());
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(async move {
            let proxy = Proxy::start(&url).await.unwrap();
            tell.send(proxy.url().to_owned()).unwrap();
            std::future::pending::<()>().await;
        });
    });
    told.recv().unwrap()
}

/// The engine's own limit ends a transaction that is idle for 10 s between the record and the
/// commit. The body is not at fault.
#[tokio::test]
#[ignore = "slow: `cargo exhaustive`"]
async fn body_runs_again_after_process_stalls_before_commit() {
    let Fixture { db, database } = Fixture::new().await;
    let own = Db::connect_with(by_tcp(database.url()).parse().unwrap(), 16).await.unwrap();
    let worker = App::new(own).with(jobs![limits_writes, limits_blocks]).start().await.unwrap();
    for pause in [40, 70] {
        runledger::enqueue_all((0..450).map(|_| limits_writes()), &db).await.unwrap();
        tokio::time::sleep(Duration::from_millis(pause)).await;
        limits_blocks().enqueue(&db).await.unwrap();
        tokio::time::sleep(Duration::from_millis(2500)).await;
    }
    let ended = "select count(*), count(*) filter (where state <> 'completed') from runledger.outcome";
    let ended = async || sqlx::query_as::<_, (i64, i64)>(ended).fetch_one(db.pool()).await.unwrap();
    assert_eq!(eventually(ended, |(n_ended, _)| *n_ended == 902).await, (902, 0));
    worker.stop().await;
}

#[job]
async fn limits_ends() -> Result<()> {
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn operator_limits_do_not_apply_to_engine_writes() {
    let fixture = Fixture::new().await;
    let version: i32 = scalar(&fixture.db, "select current_setting('server_version_num')::integer").await;
    let slow = "create function wait() returns trigger language plpgsql as $$ begin perform pg_sleep(2); return null; end $$;
        create trigger waits after insert on runledger.outcome for each row execute function wait()";
    execute(&fixture.db, slow).await;
    // Servers before 17 have no limit for whole transactions.
    let limit = if version >= 170_000 { "transaction_timeout" } else { "statement_timeout" };
    let own = limited(&fixture, [(limit, "500ms")]).await;
    let worker = worker(&own, jobs![limits_ends]).await;
    soon(limits_ends().enqueue(&fixture.db).await.unwrap().result()).await.unwrap();
    worker.stop().await;
}
