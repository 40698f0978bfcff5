//! The grants of `docs/guides/operate/roles.md` suffice for each role, and give no more rights.

use std::sync::atomic::{AtomicUsize, Ordering};

use runledger::prelude::*;
use runledger::{ClientError, RunState, TenantScope};
use runledger_tests::rows::{execute, scalar, soon, until, worker};
use runledger_tests::{Fixture, eventually};
use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection};

#[job]
async fn role_double(n: i64) -> Result<i64> {
    Ok(n * 2)
}

#[job]
async fn role_never_ends() -> Result<()> {
    std::future::pending().await
}

#[workflow]
async fn role_waits(wf: &Wf) -> Result<i64> {
    let n: i64 = wf.signal("number").await?;
    let child = wf.start(role_double(n)).await?;
    Ok(child.result().await?)
}

#[job]
async fn role_notes(#[inject] context: &Context) -> Result<()> {
    context.progress(&1_i64).await
}

#[workflow]
async fn role_steps(wf: &Wf) -> Result<i64> {
    let step = || async {
        N_STEPS.fetch_add(1, Ordering::Relaxed);
        Ok::<i64, Error>(1)
    };
    let first = wf.step("count", step).await?;
    wf.signal::<()>("go").await?;
    Ok(first + wf.step("count", step).await?)
}

#[job]
async fn role_writes(#[inject] _tx: &mut Tx) -> Result<()> {
    N_BODIES.fetch_add(1, Ordering::SeqCst);
    Ok(())
}

static N_BODIES: AtomicUsize = AtomicUsize::new(0);
static N_STEPS: AtomicUsize = AtomicUsize::new(0);

/// The SQL blocks of the page, with roles that only this database uses.
fn blocks(database: &str) -> Vec<String> {
    include_str!("../../docs/guides/operate/roles.md")
        .split("```sql\n")
        .skip(1)
        .filter_map(|rest| rest.split("```").next())
        .map(|sql| {
            sql.replace("on database app ", &format!("on database {database} "))
                .replace("app_owner", &format!("{database}_owner"))
                .replace("app_viewer", &format!("{database}_viewer"))
                .replace(" app;", &format!(" {database}_app;"))
                .replace(" app,", &format!(" {database}_app,"))
                .replace(" app login", &format!(" {database}_app login"))
                .replace(" login;", " login password 'secret';")
        })
        .collect()
}

fn url_of(url: &str, role: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap();
    let address = rest.rsplit_once('@').map_or(rest, |(_, address)| address);
    format!("{scheme}://{role}:secret@{address}")
}

#[tokio::test(flavor = "multi_thread")]
async fn documented_grants_suffice_for_each_role_and_allow_no_more() {
    let fixture = Fixture::new().await;
    let mut admin = fixture.database.connect().await.unwrap();
    admin.execute("drop schema runledger cascade").await.unwrap();
    let database: String =
        sqlx::query_scalar("select current_database()").fetch_one(&mut admin).await.unwrap();
    let [roles, grants] = blocks(&database).try_into().unwrap();
    admin.execute(AssertSqlSafe(roles)).await.unwrap();
    let url = |role: &str| url_of(fixture.database.url(), &format!("{database}_{role}"));

    let refused = Db::connect(&url("app")).await.unwrap_err();
    assert!(matches!(refused, ClientError::Migrate(_)), "{refused:?}");
    Db::connect(&url("owner")).await.unwrap();
    PgConnection::connect(&url("owner")).await.unwrap().execute(AssertSqlSafe(grants)).await.unwrap();

    let db = Db::connect(&url("app")).await.unwrap();
    let working = worker(&db, jobs![role_double, role_waits]).await;
    let handle = role_waits().idempotency_key("once").enqueue(&db).await.unwrap();
    db.run(handle.id()).signal("number", &4_i64).await.unwrap();
    assert_eq!(soon(handle.result()).await.unwrap(), 8);
    working.stop().await;
    let mut app = PgConnection::connect(&url("app")).await.unwrap();
    for beyond in
        ["truncate runledger.run cascade", "drop table runledger.log", "create table runledger.x ()"]
    {
        let error = app.execute(beyond).await.unwrap_err().into_database_error().unwrap();
        assert_eq!(error.code().as_deref(), Some("42501"), "{beyond}: {error}");
    }

    let viewer = Db::connect_read_only(&url("viewer")).await.unwrap();
    assert_eq!(viewer.runs(TenantScope::All).limit(5).await.unwrap().runs.len(), 2);
    let written = sqlx::query("delete from runledger.log").execute(viewer.pool()).await.unwrap_err();
    assert_eq!(written.into_database_error().unwrap().code().as_deref(), Some("42501"));

    for role in ["app", "viewer", "owner"] {
        let dropped = format!("drop owned by {database}_{role} cascade; drop role {database}_{role}");
        admin.execute(AssertSqlSafe(dropped)).await.unwrap();
    }
}

/// Creates a role of this database with these grants, which may connect. Returns its name and URL.
async fn role_with(fixture: &Fixture, grants: &str) -> (String, String) {
    let database: String = scalar(&fixture.db, "select current_database()").await;
    let role = format!("{database}_role");
    let make = format!("create role {role} login password 'secret'; {}", grants.replace("ROLE", &role));
    execute(&fixture.db, &make).await;
    let url = url_of(fixture.database.url(), &role);
    (role, url)
}

/// Creates a role that may read and write all tables, and connects as this role.
async fn connect_as_program(fixture: &Fixture) -> (String, Db) {
    let grants = "grant usage on schema runledger to ROLE;
                  grant select, insert, update, delete on all tables in schema runledger to ROLE";
    let (role, url) = role_with(fixture, grants).await;
    (role, Db::connect(&url).await.unwrap())
}

async fn drop_role(fixture: &Fixture, role: &str) {
    execute(&fixture.db, &format!("drop owned by {role}; drop role {role}")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn notification_from_unprivileged_role_cancels_or_pauses_no_run() {
    let fixture = Fixture::new().await;
    let db = &fixture.db;
    let worker = worker(db, jobs![role_never_ends]).await;
    let (run, other) =
        (role_never_ends().enqueue(db).await.unwrap(), role_never_ends().enqueue(db).await.unwrap());
    for run in [&run, &other] {
        until(db, run.id(), |info| info.state == RunState::Running).await;
    }
    let (role, url) = role_with(&fixture, "").await;
    let mut foreign = PgConnection::connect(&url).await.unwrap();
    for channel in ["runledger_cancel", "runledger_pause"] {
        let notify = sqlx::query("select pg_notify($1, $2)").bind(channel).bind(run.id().to_string());
        notify.execute(&mut foreign).await.unwrap();
    }
    // Notifications arrive in commit order: the worker has received those of `foreign` before this.
    other.cancel("to end the test").await.unwrap();
    until(db, other.id(), |info| info.state == RunState::Cancelled).await;
    let info = run.info().await.unwrap();
    assert_eq!((info.state, info.attempt), (RunState::Running, 1));
    assert_eq!(scalar::<i64>(db, "select sum(claims)::int8 from runledger.lease").await, 1);
    run.cancel("to end the test").await.unwrap();
    until(db, run.id(), |info| info.state == RunState::Cancelled).await;
    worker.stop().await;
    foreign.close().await.unwrap();
    drop_role(&fixture, &role).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn client_without_plpgsql_privilege_connects_and_executes_run() {
    let fixture = Fixture::new().await;
    let grants = "grant usage on schema runledger to ROLE; grant all on all tables in schema runledger to ROLE; \
                  revoke usage on language plpgsql from public";
    let (role, url) = role_with(&fixture, grants).await;
    let db = Db::connect(&url).await.unwrap();
    let worker = worker(&db, jobs![role_double]).await;
    assert_eq!(soon(role_double(4).enqueue(&db).await.unwrap().result()).await.unwrap(), 8);
    worker.stop().await;
    db.pool().close().await;
    drop_role(&fixture, &role).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn run_waits_for_denied_progress_write_while_other_runs_complete() {
    let fixture = Fixture::new().await;
    let (role, db) = connect_as_program(&fixture).await;
    let worker = worker(&db, jobs![role_notes, role_double]).await;
    execute(&fixture.db, &format!("revoke insert on runledger.progress from {role}")).await;
    let mut noting = Vec::new();
    // Enough runs that each writer of the worker has one.
    for _ in 0..12 {
        noting.push(role_notes().enqueue(&db).await.unwrap());
    }
    for run in &noting {
        until(&db, run.id(), |info| info.state == RunState::Running).await;
    }
    for n in 0..50 {
        assert_eq!(soon(role_double(n).enqueue(&db).await.unwrap().result()).await.unwrap(), 2 * n);
    }
    execute(&fixture.db, &format!("grant insert on runledger.progress to {role}")).await;
    for run in &noting {
        soon(run.result()).await.unwrap();
        assert_eq!(run.info().await.unwrap().attempt, 1);
    }
    worker.stop().await;
    drop(db);
    drop_role(&fixture, &role).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn transactional_run_completes_once_missing_engine_privilege_is_granted() {
    let fixture = Fixture::new().await;
    let (role, db) = connect_as_program(&fixture).await;
    let worker = worker(&db, jobs![role_writes]).await;
    execute(&fixture.db, &format!("revoke insert on runledger.attempt from {role}")).await;
    let run = role_writes().enqueue(&db).await.unwrap();
    eventually(async || N_BODIES.load(Ordering::SeqCst), |n| *n > 2).await;
    execute(&fixture.db, &format!("grant insert on runledger.attempt to {role}")).await;
    soon(run.result()).await.unwrap();
    worker.stop().await;
    drop(db);
    drop_role(&fixture, &role).await;
}

#[job]
async fn role_changes_its_encoding(#[inject] tx: &mut Tx) -> Result<()> {
    sqlx::query("set local client_encoding = 'LATIN1'").execute(&mut **tx).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn encoding_change_in_body_under_non_ascii_role_is_reported() {
    let fixture = Fixture::new().await;
    let database: String = scalar(&fixture.db, "select current_database()").await;
    let role = format!("{database}_müller");
    let grants = format!(
        "create role \"{role}\" login password 'secret'; grant usage on schema runledger to \"{role}\";
         grant select, insert, update, delete on all tables in schema runledger to \"{role}\""
    );
    execute(&fixture.db, &grants).await;
    let options: PgConnectOptions = fixture.database.url().parse().unwrap();
    let db = Db::connect_with(options.username(&role).password("secret"), 8).await.unwrap();
    let worker = worker(&db, jobs![role_changes_its_encoding]).await;
    let run = role_changes_its_encoding().enqueue(&db).await.unwrap();
    let error = soon(run.result()).await.unwrap_err().to_string();
    assert!(error.contains("set `client_encoding` to `LATIN1`"), "{error}");
    worker.stop().await;
    drop(db);
    drop_role(&fixture, &format!("\"{role}\"")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn run_waits_without_repeating_steps_while_row_security_hides_them() {
    let fixture = Fixture::new().await;
    let (role, db) = connect_as_program(&fixture).await;
    let first_worker = worker(&db, jobs![role_steps]).await;
    let run = role_steps().enqueue(&db).await.unwrap();
    until(&db, run.id(), |info| info.state == RunState::Waiting).await;
    first_worker.stop().await;
    execute(&fixture.db, "alter table runledger.step enable row level security").await;
    run.signal("go", &()).await.unwrap();
    let second_worker = worker(&db, jobs![role_steps]).await;
    let n_claims = "select max(claims)::bigint from (select claims from runledger.ready union all select claims from runledger.lease) as held";
    let n_claims =
        async || sqlx::query_scalar::<_, Option<i64>>(n_claims).fetch_one(fixture.db.pool()).await.unwrap();
    let is_tried_again = |n: &Option<i64>| n.is_none_or(|n| n >= 4);
    assert!(eventually(n_claims, is_tried_again).await.is_some(), "the run has ended");
    execute(&fixture.db, "alter table runledger.step disable row level security").await;
    assert_eq!(soon(run.result()).await.unwrap(), 2);
    assert_eq!(N_STEPS.load(Ordering::Relaxed), 2);
    second_worker.stop().await;
    drop(db);
    drop_role(&fixture, &role).await;
}
