//! Sessions that the server ends, refuses, limits or blocks.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use runledger::{ClientError, Db};
use runledger_tests::check::calls::Submission;
use runledger_tests::check::jobs::check_canary;
use runledger_tests::proxy::{Mode, Proxy};
use sqlx::{AssertSqlSafe, Connection, PgConnection};

use crate::load::History;
use crate::scenario::{Scenario, Setting};
use crate::scene::{
    LONG, OURS, PATIENT, Scene, WORKER_LOCKS, count, end_a_session, end_lock_sessions, execute, reaches,
};
use crate::site::Site;
use crate::summary::Summary;

pub const ALL: &[Scenario] = &[
    Scenario::new(
        "sessions-terminated",
        "sessions that are ended at any statement cost no run and no attempt",
        &["F16"],
        |setting| Box::pin(terminated(setting)),
    ),
    Scenario::new(
        "lock-sessions-terminated",
        "a worker that loses its lock and its ears keeps its runs, and hears of new ones",
        &["F17"],
        |setting| Box::pin(lock_terminated(setting)),
    ),
    Scenario::new(
        "notifications-lost",
        "a run whose notification nobody heard is found by the look after the worker listens again, before any poll",
        &["F44"],
        |setting| Box::pin(notifications_lost(setting)),
    ),
    Scenario::new(
        "no-more-connections",
        "where no connection is to be had, workers wait, and those that ask are told",
        &["F31"],
        |setting| Box::pin(no_more_connections(setting)),
    )
    .seconds(10),
    Scenario::new(
        "impatient-server",
        "statements that the server gives up are asked again, and are no failures of bodies",
        &["F33"],
        |setting| Box::pin(impatient(setting)),
    ),
    Scenario::new(
        "idle-sessions-ended",
        "sessions that the server ends for resting are replaced",
        &["F34"],
        |setting| Box::pin(idle_ended(setting)),
    ),
    Scenario::new(
        "tables-locked",
        "while a table is locked for longer than a lease, nobody is taken for dead, and then work goes on",
        &["F36"],
        |setting| Box::pin(tables_locked(setting)),
    )
    .seconds(16),
    Scenario::new(
        "rights-revoked",
        "a role that may not log in, or not write, stops nothing for longer than it lasts",
        &["F50"],
        |setting| Box::pin(rights_revoked(setting)),
    )
    .seconds(10),
    Scenario::new(
        "lock-key-taken",
        "a stranger who takes the lock of a dead worker delays its burial until its lease is over, and no more",
        &["F88"],
        |setting| Box::pin(lock_key_taken(setting)),
    )
    .seconds(14),
];

async fn terminated(setting: Setting) -> Result<Summary> {
    let mut scene = Scene::open(&setting, 2, PATIENT).await?;
    scene.site.may_reclaim = false;
    let mut connection = scene.site.connect().await?;
    while scene.goes_on() {
        scene.moment(50, 300).await;
        scene.site.n_faults += usize::try_from(end_a_session(&mut connection).await?)?;
    }
    scene.end().await
}

async fn lock_terminated(setting: Setting) -> Result<Summary> {
    let mut scene = Scene::open(&setting, 2, PATIENT).await?;
    scene.site.may_reclaim = false;
    let mut connection = scene.site.connect().await?;
    let db = Db::connect(scene.site.url()).await?;
    while scene.goes_on() {
        let canary = check_canary().delay(Duration::from_millis(20)).enqueue(&db).await?;
        scene.site.n_faults += usize::try_from(end_lock_sessions(&mut connection).await?)?;
        scene.site.asked.push(Submission::acknowledged(canary.id()));
        if let Err(error) = canary.result_within(LONG).await {
            scene
                .site
                .violations
                .push(format!("a canary enqueued while nobody listened did not end: {error}"));
        }
        scene.moment(0, 400).await;
    }
    let locks = format!("select count(*) from pg_locks where {WORKER_LOCKS}");
    reaches(&mut connection, &locks, i64::try_from(scene.crew.len())?).await?;
    scene.end().await
}

/// After this many polls of a sleeping worker, each pause four times the one before, the next poll
/// comes four seconds later.
const NAPS: usize = 4;

/// The heartbeats in two of those four seconds, at fast timings. A worker that scans within this
/// many heartbeats did not wait for its next poll.
const HEARTBEATS: usize = 4;

async fn notifications_lost(setting: Setting) -> Result<Summary> {
    let mut site = Site::new(&setting).await?;
    site.may_reclaim = false;
    let proxy = Proxy::start(site.url()).await?;
    let worker = site.worker_at(proxy.url(), &[]).await?;
    let mut connection = site.connect().await?;
    let db = Db::connect(site.url()).await?;
    let asleep =
        format!("select count(*) from runledger.worker where worker_id = {} and sleeping", worker.worker_id);
    let nobody_listens = format!("select (count(*) = 0)::int::int8 from pg_locks where {WORKER_LOCKS}");
    let began = Instant::now();
    while began.elapsed() < setting.load {
        // Nobody else enqueues runs, so the worker sleeps and its polls become rare.
        reaches(&mut connection, &asleep, 1).await?;
        proxy.forget();
        heard(&proxy, "-- lanes:", NAPS).await?;
        proxy.set(Mode::Refuse);
        ensure!(end_lock_sessions(&mut connection).await? == 1, "the worker did not listen");
        reaches(&mut connection, &nobody_listens, 1).await?;
        proxy.forget();
        let run = check_canary().enqueue(&db).await?;
        site.asked.push(Submission::acknowledged(run.id()));
        proxy.set(Mode::Pass);
        run.result_within(LONG).await?;
        let said = proxy.statements();
        let mut until_found = said.iter().take_while(|line| !line.starts_with("-- claim:"));
        // On a slow machine a regular poll may find the run before the worker listens again. That
        // shows nothing.
        if until_found.any(|line| line.starts_with("LISTEN")) {
            site.n_faults += 1;
            let n_heartbeats = until_found.filter(|line| line.starts_with("-- heartbeat:")).count();
            if n_heartbeats > HEARTBEATS {
                site.violations
                    .push(format!("{n_heartbeats} heartbeats passed after it listened and before it looked"));
            }
        }
    }
    site.judge_history(History::default()).await
}

/// Waits until a proxy has seen `wanted` statements with this beginning.
async fn heard(proxy: &Proxy, beginning: &str, wanted: usize) -> Result<()> {
    let began = Instant::now();
    while proxy.count(beginning) < wanted {
        ensure!(began.elapsed() < LONG, "no `{beginning}` after {LONG:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}

/// Creates a role that is not a superuser, so that limits apply to it, with the rights of a worker.
async fn with_role(site: &mut Site) -> Result<String> {
    let role = format!("chaos_{}", uuid::Uuid::now_v7().simple());
    let mut connection = site.connect().await?;
    execute(
        &mut connection,
        &format!(
            "create role {role} login password 'chaos';
            grant create on schema runledger to {role};
            grant usage on schema runledger, audit to {role};
            grant all on all tables in schema runledger, audit to {role};
            grant all on all sequences in schema runledger, audit to {role};
            grant execute on all functions in schema runledger to {role}"
        ),
    )
    .await?;
    let (scheme, rest) = site.url().split_once("://").unwrap_or(("postgres", site.url()));
    let host = rest.split_once('@').map_or(rest, |(_, host)| host);
    site.set_address(format!("{scheme}://{role}:chaos@{host}"));
    Ok(role)
}

async fn no_more_connections(setting: Setting) -> Result<Summary> {
    /// Room for two workers, a client and a few more.
    const LIMIT: usize = 36;
    let mut site = Site::new(&setting).await?;
    let role = with_role(&mut site).await?;
    let mut connection = site.connect().await?;
    execute(&mut connection, &format!("alter role {role} connection limit {LIMIT}")).await?;
    let address = site.address().to_owned();
    let mut scene = Scene::at(site, &setting, 2, PATIENT).await?;
    scene.site.may_reclaim = false;
    let (mut n_refused, mut n_told) = (0, 0);
    while scene.goes_on() {
        // Ends the sessions of the pools and takes their places. Spares the sessions that prove
        // that a worker is alive.
        let pooled = format!(
            "select count(pg_terminate_backend(pid)) from pg_stat_activity
            where {OURS} and query not like '-- heartbeat%' and not exists (select from pg_locks where pg_locks.pid = pg_stat_activity.pid and locktype = 'advisory')"
        );
        let mut idle = Vec::new();
        count(&mut connection, &pooled).await?;
        for _ in 0..LIMIT {
            match PgConnection::connect(&address).await {
                Ok(session) => idle.push(session),
                Err(error) if code(&error) == "53300" => {
                    n_refused += 1;
                    break;
                }
                Err(error) => return Err(error.into()),
            }
        }
        scene.site.n_faults += 1;
        if n_told == 0 {
            // `connect` retries for a while before it fails, and a session may end in that time.
            match Db::connect(&address).await {
                Err(ClientError::Connect { source: error, .. }) if code(&error) == "53300" => n_told += 1,
                Ok(_) | Err(ClientError::PoolExhausted { .. }) => {}
                Err(error) => scene.site.violations.push(format!("a client was told {error:?}")),
            }
        }
        scene.moment(500, 2000).await;
        for session in idle {
            session.close().await?;
        }
        scene.moment(200, 1000).await;
    }
    if n_refused == 0 || n_told == 0 {
        let sentence = format!("{n_refused} connections were refused, and {n_told} clients were told so");
        scene.site.violations.push(sentence);
    }
    let summary = scene.end().await?;
    drop_role(&mut connection, &role).await?;
    Ok(summary)
}

/// A role belongs to the server and outlives the database.
async fn drop_role(connection: &mut PgConnection, role: &str) -> Result<()> {
    execute(connection, &format!("drop owned by {role}")).await?;
    execute(connection, &format!("drop role {role}")).await
}

async fn impatient(setting: Setting) -> Result<Summary> {
    let site = Site::new(&setting).await?;
    let mut connection = site.connect().await?;
    alter_database(&mut connection, "set statement_timeout = '150ms'").await?;
    alter_database(&mut connection, "set lock_timeout = '50ms'").await?;
    let mut scene = Scene::at(site, &setting, 2, PATIENT).await?;
    scene.site.may_reclaim = false;
    let mut blocker = scene.site.connect().await?;
    execute(&mut blocker, "set lock_timeout = 0; set statement_timeout = 0").await?;
    let a_session_waits = "select (count(*) > 0)::int::int8 from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'";
    while scene.goes_on() {
        execute(
            &mut blocker,
            "begin; lock table runledger.run, runledger.lease, audit.business in share mode",
        )
        .await?;
        reaches(&mut connection, a_session_waits, 1).await?;
        // Longer than the server's timeouts.
        scene.moment(200, 600).await;
        execute(&mut blocker, "commit").await?;
        scene.site.n_faults += 1;
        scene.moment(100, 500).await;
    }
    scene.end().await
}

async fn idle_ended(setting: Setting) -> Result<Summary> {
    // Few enough calls that sessions become idle.
    let setting = Setting { rate: setting.rate.min(3), ..setting };
    let site = Site::new(&setting).await?;
    let mut connection = site.connect().await?;
    let version = count(&mut connection, "select current_setting('server_version_num')::int8").await?;
    alter_database(&mut connection, "set idle_in_transaction_session_timeout = '1s'").await?;
    if version >= 140_000 {
        alter_database(&mut connection, "set idle_session_timeout = '1s'").await?;
    }
    let mut scene = Scene::at(site, &setting, 2, PATIENT).await?;
    scene.site.may_reclaim = false;
    while scene.goes_on() {
        let mut rests = scene.site.connect().await?;
        let pid = count(&mut rests, "select pg_backend_pid()::int8").await?;
        execute(&mut rests, "begin").await?;
        let is_ended = format!("select (count(*) = 0)::int::int8 from pg_stat_activity where pid = {pid}");
        reaches(&mut connection, &is_ended, 1).await?;
        scene.site.n_faults += 1;
    }
    // PostgreSQL 13 has no limit for idle sessions outside a transaction, and does not count the
    // sessions that it ends.
    if version >= 140_000 {
        // This session started before the settings, so they do not apply to it.
        let ended = "select sessions_fatal from pg_stat_database where datname = current_database()";
        let n_ended = usize::try_from(count(&mut connection, ended).await?)?;
        let n_of_others = n_ended.saturating_sub(scene.site.n_faults);
        ensure!(n_of_others > 0, "the server has ended no session of the fleet");
        scene.site.n_faults = n_ended;
    }
    scene.end().await
}

async fn tables_locked(setting: Setting) -> Result<Summary> {
    let mut scene = Scene::open(&setting, 2, &[]).await?;
    scene.site.may_reclaim = false;
    let mut connection = scene.site.connect().await?;
    for table in ["run", "ready", "lease", "step", "outcome"] {
        scene.site.n_faults += 1;
        execute(&mut connection, &format!("begin; lock table runledger.{table} in access exclusive mode"))
            .await?;
        // The lease of the fast timings is 4 s. Heartbeats need `ready` and `lease`, and wait while
        // either is locked.
        let pause = if ["run", "ready", "lease"].contains(&table) { 5000 } else { 1500 };
        scene.moment(pause, pause).await;
        execute(&mut connection, "commit").await?;
        scene.moment(300, 800).await;
    }
    scene.end().await
}

async fn rights_revoked(setting: Setting) -> Result<Summary> {
    let mut site = Site::new(&setting).await?;
    let role = with_role(&mut site).await?;
    let mut connection = site.connect().await?;
    let mut scene = Scene::at(site, &setting, 2, PATIENT).await?;
    scene.site.may_reclaim = false;
    let faults = [
        (format!("alter role {role} nologin"), format!("alter role {role} login")),
        (format!("alter role {role} password 'rotated'"), format!("alter role {role} password 'chaos'")),
        (
            format!("revoke insert, delete on runledger.lease, runledger.step from {role}"),
            format!("grant all on runledger.lease, runledger.step to {role}"),
        ),
        (
            format!("revoke usage on schema runledger from {role}"),
            format!("grant usage on schema runledger to {role}"),
        ),
    ];
    while scene.goes_on() {
        let (fault, cure) = &faults[scene.dice.index(faults.len())];
        execute(&mut connection, fault).await?;
        let all = format!("select count(pg_terminate_backend(pid)) from pg_stat_activity where {OURS}");
        count(&mut connection, &all).await?;
        scene.site.n_faults += 1;
        scene.moment(500, 2000).await;
        execute(&mut connection, cure).await?;
        scene.moment(500, 1500).await;
    }
    let summary = scene.end().await?;
    drop_role(&mut connection, &role).await?;
    Ok(summary)
}

async fn lock_key_taken(setting: Setting) -> Result<Summary> {
    let mut scene = Scene::open(&setting, 2, &[]).await?;
    while scene.goes_on() {
        scene.moment(300, 1000).await;
        let at = scene.any();
        let worker_id = scene.crew[at].process.worker_id;
        let mut stranger = scene.site.connect().await?;
        // The query waits, and gets the lock as soon as the worker is dead.
        let taking = tokio::spawn(async move {
            let take = format!(
                "select pg_advisory_lock('runledger.worker'::regclass::oid::int4, ({worker_id}::int8 % 2147483647)::int4)"
            );
            execute(&mut stranger, &take).await?;
            anyhow::Ok(stranger)
        });
        scene.moment(100, 100).await;
        scene.replace_killed(at).await?;
        let mut stranger = tokio::time::timeout(LONG, taking).await???;
        let died =
            format!("select count(*) from runledger.worker where worker_id = {worker_id} and state = 'dead'");
        reaches(&mut stranger, &died, 1).await?;
        let why = format!("select died_why from runledger.worker where worker_id = {worker_id}");
        let why: String = sqlx::query_scalar(AssertSqlSafe(why)).fetch_one(&mut stranger).await?;
        if why != "its lease was over" {
            scene.site.violations.push(format!("a worker whose lock was not free was buried: {why}"));
        }
    }
    scene.end().await
}

/// Changes a setting of this database for new sessions.
async fn alter_database(connection: &mut PgConnection, setting: &str) -> Result<()> {
    let database: String =
        sqlx::query_scalar("select current_database()").fetch_one(&mut *connection).await?;
    execute(connection, &format!("alter database {database} {setting}")).await
}

fn code(error: &sqlx::Error) -> String {
    error.as_database_error().and_then(sqlx::error::DatabaseError::code).unwrap_or_default().into_owned()
}
