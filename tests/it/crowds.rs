//! Crowds: a million queued runs, ten thousand runs that fall due at once, and many clients at
//! once.

use std::collections::HashSet;
use std::time::Duration;

use runledger::__private::SESSION_SETTINGS;
use runledger::prelude::*;
use runledger::{Graph, enqueue_all};
use runledger_tests::proxy::Proxy;
use runledger_tests::rows::scalar;
use runledger_tests::{Fixture, eventually};
use sqlx::postgres::PgListener;
use tokio::sync::Semaphore;

use crate::plans::{complaints, execute, explain, explained, pages};

static DOOR: Semaphore = Semaphore::const_new(0);

/// Occupies its slot until its worker stops.
#[job]
async fn crowd_stays() -> Result<()> {
    DOOR.acquire().await?.forget();
    Ok(())
}

#[job]
async fn crowd_passes() -> Result<()> {
    Ok(())
}

/// Written without the engine. The statistics remain those of empty tables until a test analyses.
const BACKLOG: &str = "
alter table runledger.run set (autovacuum_enabled = off);
alter table runledger.ready set (autovacuum_enabled = off);
insert into runledger.run (run_id, job, tenant, queue, priority, input, start_at)
    select lpad(to_hex(n), 32, '0')::uuid, 'crowd_stays', '', 'default', 0, '{}', now() - interval '1 day' + n * interval '1 ms'
    from generate_series(1, 1000000) n;
insert into runledger.ready (run_id, queue, job, priority, ready_at, cause, attempt, crashes, claims)
    select run_id, queue, job, priority, start_at, 'enqueued', 0, 0, 0 from runledger.run;
insert into runledger.worker (worker_id, name, version, session_name, jobs, queues) values (1, 'w', '1', 's', '{crowd_stays}', '{default}')";

/// Statements that read a queue, with arguments (of ten runs if they take many) and the number of
/// rows that each returns.
const MEETINGS: [(&str, &str, u32); 2] = [
    (
        "claim",
        "1, 'aaaaaaaa-0000-0000-0000-000000000001', 10, '{default}', '{crowd_stays}', '{0}', '{-infinity}', \
         '{00000000-0000-0000-0000-000000000000}'",
        10,
    ),
    ("lanes", "'{default}', '{crowd_stays}'", 1),
];

/// The most pages that such a statement may read: ten runs, about ten probes per run, each page
/// counted once per level of the plan. The queue has more than ten thousand pages.
const MOST_PAGES: u64 = 1_000;

/// Concurrent runs of the worker.
const SLOTS: usize = 10;

/// The most rows of the backlog that the worker may read in its life: those that it takes, a few
/// times.
const MOST_ROWS: i64 = 300;

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: `cargo exhaustive`"]
async fn claim_and_starting_worker_read_few_rows_of_million_queued() {
    let fixture = Fixture::new().await;
    let mut connection = fixture.database.connect().await.unwrap();
    execute(&mut connection, BACKLOG).await;
    execute(&mut connection, SESSION_SETTINGS).await;
    for is_analysed in [false, true] {
        if is_analysed {
            execute(&mut connection, "analyze runledger.run, runledger.ready").await;
        }
        for (name, arguments, n_rows) in MEETINGS {
            execute(&mut connection, "begin").await;
            let how = "analyze, buffers, costs off, timing off";
            let plan = explain(&mut connection, how, name, arguments).await;
            execute(&mut connection, "rollback").await;
            let first = plan.lines().next().unwrap_or_default();
            assert!(first.contains(&format!("rows={n_rows}")), "other than {n_rows} rows\n{plan}");
            assert!(complaints(name, &plan).is_empty(), "{plan}");
            assert!(pages(&plan) < MOST_PAGES, "{name}: {} pages\n{plan}", pages(&plan));
        }
    }
    drop(connection);
    let n_read = rows_read_by_a_start(&fixture).await;
    assert!(n_read < MOST_ROWS, "a worker of {SLOTS} slots has read {n_read} rows");
    // The tables take hundreds of megabytes.
    runledger_tests::rows::execute(&fixture.db, "truncate runledger.run, runledger.ready").await;
}

/// Returns how many rows of the backlog a worker reads that starts, fills its slots, and stops.
async fn rows_read_by_a_start(fixture: &Fixture) -> i64 {
    let db = &fixture.db;
    let read = "select (select sum(seq_tup_read) from pg_stat_user_tables where relname in ('run', 'ready'))::int8
                    + (select sum(idx_tup_read) from pg_stat_user_indexes where relname in ('run', 'ready'))::int8";
    alone(db).await;
    let before = scalar::<i64>(db, read).await;
    let own = Db::connect(fixture.database.url()).await.unwrap();
    let app = App::new(own.clone()).with(jobs![crowd_stays]).concurrency(SLOTS).drain(Duration::ZERO);
    let worker = app.start().await.unwrap();
    let held = "select count(*) from runledger.lease";
    eventually(async || scalar::<i64>(db, held).await, |n| usize::try_from(*n) == Ok(SLOTS)).await;
    worker.stop().await;
    own.pool().close().await;
    alone(db).await;
    // A claim reads each run at least once. The server's statistics are late until they show that.
    let least = i64::try_from(SLOTS).unwrap();
    eventually(async || scalar::<i64>(db, read).await - before, |n_read| *n_read >= least).await
}

/// Waits until only this client has sessions. A session reports its reads at its end at the latest.
pub async fn alone(db: &Db) {
    let others = "select count(*) from pg_stat_activity
                  where datname = current_database() and backend_type = 'client backend' and application_name <> current_setting('application_name')";
    eventually(async || scalar::<i64>(db, others).await, |n_others| *n_others == 0).await;
}

/// Workers, the slots of each, and the number of runs that fall due for all of them.
const FLEET: usize = 10;
const EACH: usize = 40;
const CROWD: usize = 10_000;

/// Time from the enqueue to the due time: longer than a woken worker needs to fall asleep again.
const AHEAD: Duration = Duration::from_secs(4);

/// Claims and scans of one worker until its first run ends: at the notification, after 16 ms, then
/// after four times as long each time, and at the due time.
const MOST_LOOKS: usize = 12;

/// A worker waits until an eighth of its slots is free while more runs are due than it can take.
/// Each claim therefore takes at least `EACH / 8` runs. Workers that are not full add a few claims.
const MOST_CLAIMS: usize = CROWD * 8 / EACH + 20 * FLEET;

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: `cargo exhaustive`"]
async fn runs_due_together_notify_workers_once_and_are_batch_claimed() {
    let Fixture { db, database } = Fixture::new().await;
    let proxy = Proxy::start(database.url()).await.unwrap();
    let mut fleet = Vec::new();
    for _ in 0..FLEET {
        let own = Db::connect_with(proxy.url().parse().unwrap(), 3).await.unwrap();
        fleet.push(App::new(own).with(jobs![crowd_passes]).concurrency(EACH).start().await.unwrap());
    }
    let count = async |query: &str| usize::try_from(scalar::<i64>(&db, query).await).unwrap();
    let asleep = "select count(*) from runledger.worker where sleeping";
    eventually(async || count(asleep).await, |n_asleep| *n_asleep == FLEET).await;

    let mut told = PgListener::connect(database.url()).await.unwrap();
    told.listen_all(["runledger_ready", "enough"]).await.unwrap();
    proxy.forget();
    enqueue_all((0..CROWD).map(|_| crowd_passes().delay(AHEAD)), &db).await.unwrap();
    assert_eq!(count("select count(distinct start_at) from runledger.run").await, 1);
    runledger_tests::rows::execute(&db, "notify enough").await;
    assert_eq!(workers_told(&mut told).await, FLEET, "each once, however many runs there are");

    let ended = "select count(*) from runledger.outcome where state = 'completed'";
    eventually(async || count(ended).await, |n_ended| *n_ended == CROWD).await;
    let said = proxy.statements();
    let (before, after) = said.split_at(said.iter().position(|line| line.starts_with("-- settle")).unwrap());
    let looks = |said: &[String]| {
        said.iter()
            .filter(|line| ["-- claim:", "-- lanes:"].iter().any(|look| line.starts_with(look)))
            .count()
    };
    let (n_before, n_after) = (looks(before), looks(after));
    assert!(n_before <= MOST_LOOKS * FLEET, "{n_before} claims and looks before the first run had ended");
    assert!(n_after <= MOST_CLAIMS, "{n_after} claims and looks for {CROWD} runs");
    eventually(async || count(asleep).await, |n_asleep| *n_asleep == FLEET).await;
    for worker in fleet {
        worker.stop().await;
    }
}

/// Graphs whose nodes end in one batch. Each has this many nodes between a common dependency and a
/// common dependent.
const GRAPHS: usize = 8;
const ABREAST: usize = 250;

/// The most rows per node that the plan of a release may process, in all its parts. About 20 parts
/// have a row for each node. A comparison of nodes with one another would take thousands.
const MOST_MET: f64 = 70.0;

#[tokio::test]
async fn release_of_node_batch_processes_bounded_rows_per_node() {
    let fixture = Fixture::new().await;
    for _ in 0..GRAPHS {
        let mut graph = Graph::new("crowd");
        let first = graph.node("first", crowd_passes());
        let last = graph.node("last", crowd_passes());
        for n in 0..ABREAST {
            let node = graph.node(format!("n{n}"), crowd_passes());
            graph.after(node, first).after(last, node);
        }
        graph.enqueue(&fixture.db).await.unwrap();
    }
    runledger_tests::rows::execute(&fixture.db, "analyze").await;
    let mut connection = fixture.database.connect().await.unwrap();
    execute(&mut connection, SESSION_SETTINGS).await;
    let stages = [
        // The failed node's dependents are cancelled, and the graphs must be concluded.
        ("node = 'first'", "failed", "rollback", GRAPHS),
        ("node = 'first'", "completed", "commit", GRAPHS * ABREAST),
        ("node like 'n%'", "completed", "commit", GRAPHS),
    ];
    for (nodes, state, end, n_released) in stages {
        let ended = format!("select run_id from runledger.run where {nodes}");
        let settled = format!(
            "begin; delete from runledger.ready where run_id in ({ended});
             insert into runledger.outcome (run_id, state, output, error, attempt)
                 select run_id, '{state}', case '{state}' when 'completed' then '1'::json end, case '{state}' when 'failed' then '{{}}'::json end, 1
                 from ({ended}) as ended"
        );
        execute(&mut connection, &settled).await;
        let ids = format!("select array_agg(run_id)::text from ({ended}) as ended");
        let ids: String = scalar(&fixture.db, &ids).await;
        let how = "analyze, costs off, timing off";
        let plan = explain(&mut connection, how, "release", &format!("'{ids}'")).await;
        // `explain` has deallocated the prepared statements of this connection.
        let n_queued = sqlx::query_scalar("select count(*) from runledger.ready").persistent(false);
        let n_queued: i64 = n_queued.fetch_one(&mut connection).await.unwrap();
        execute(&mut connection, end).await;
        assert_eq!(usize::try_from(n_queued), Ok(n_released), "{nodes} {state}\n{plan}");
        let met = rows_met(&plan) / ((GRAPHS * (ABREAST + 2)) as f64);
        assert!(met < MOST_MET, "{met} rows for each node where {nodes} {state}\n{plan}");
    }
}

/// The layers of a graph, and the nodes of each. A node depends on all nodes of the layer before.
const LAYERS: usize = 10;
const OF_A_LAYER: usize = 20;

/// Both roots fail. The first one cancels everything below both, so the second must not walk it
/// again.
#[tokio::test]
async fn failed_node_does_not_rewalk_dependents_cancelled_by_another() {
    let fixture = Fixture::new().await;
    let mut graph = Graph::new("layers");
    let mut before = vec![graph.node("root-1", crowd_passes()), graph.node("root-2", crowd_passes())];
    for layer in 0..LAYERS {
        let nodes: Vec<_> =
            (0..OF_A_LAYER).map(|n| graph.node(format!("n{layer}-{n}"), crowd_passes())).collect();
        for node in &nodes {
            for needed in &before {
                graph.after(*node, *needed);
            }
        }
        before = nodes;
    }
    graph.enqueue(&fixture.db).await.unwrap();
    let mut connection = fixture.database.connect().await.unwrap();
    execute(&mut connection, SESSION_SETTINGS).await;
    let mut met = Vec::new();
    for root in ["root-1", "root-2"] {
        let ended = format!("select run_id from runledger.run where node = '{root}'");
        let id: String = scalar(&fixture.db, &format!("select run_id::text from ({ended}) as ended")).await;
        let settled = format!(
            "begin; delete from runledger.ready where run_id = '{id}';
             insert into runledger.outcome (run_id, state, error, attempt) values ('{id}', 'failed', '{{}}', 1)"
        );
        execute(&mut connection, &settled).await;
        let how = "analyze, costs off, timing off";
        met.push(rows_met(&explain(&mut connection, how, "release", &format!("'{{{id}}}'")).await));
        execute(&mut connection, "commit").await;
    }
    let n_cancelled = "select count(*) from runledger.outcome where state = 'cancelled'";
    let n_cancelled: i64 = scalar(&fixture.db, n_cancelled).await;
    assert_eq!(usize::try_from(n_cancelled), Ok(LAYERS * OF_A_LAYER));
    assert!(met[0] > 10_000.0 && met[1] < 500.0, "{met:?}");
}

/// The permits of a resource. Every second one is in use.
const PERMITS: usize = 1_000;

#[tokio::test]
async fn free_permit_search_processes_bounded_rows_per_permit() {
    let fixture = Fixture::new().await;
    let mut connection = fixture.database.connect().await.unwrap();
    let held = format!(
        "insert into runledger.resource (name, permits) values ('api', {PERMITS});
         insert into runledger.permit (resource, number, run_id, token)
             select 'api', n, md5(n::text)::uuid, md5(n::text)::uuid from generate_series(2, {PERMITS}, 2) n;
         insert into runledger.lease (run_id, token, worker_id, attempt, crashes, claims, claimed_at)
             select run_id, token, 1, 1, 0, 1, now() from runledger.permit;
         prepare statement as select * from runledger.free_permits('api')"
    );
    execute(&mut connection, &held).await;
    execute(&mut connection, SESSION_SETTINGS).await;
    let plan = explained(&mut connection, "analyze, costs off, timing off", "statement").await;
    let n_free = sqlx::query_scalar("select count(*) from runledger.free_permits('api')");
    let n_free: i64 = n_free.fetch_one(&mut connection).await.unwrap();
    assert_eq!(usize::try_from(n_free), Ok(PERMITS / 2));
    let met = rows_met(&plan) / (PERMITS as f64);
    assert!(met < 20.0, "{met} rows for each permit\n{plan}");
}

/// Many accounts, each with permits that were taken before and with more waiting runs than permits.
const ACCOUNTS: usize = 40;
const OF_AN_ACCOUNT: usize = 30;

#[tokio::test]
async fn claim_compares_runs_only_with_permits_of_their_resource() {
    let fixture = Fixture::new().await;
    let mut connection = fixture.database.connect().await.unwrap();
    let rows = format!(
        "insert into runledger.worker (worker_id, name, version, session_name, jobs, queues)
             overriding system value values (1, 'w', '1', 's', '{{j}}', '{{q}}');
         insert into runledger.resource (name, permits) select 'a' || a, {OF_AN_ACCOUNT} from generate_series(1, {ACCOUNTS}) a;
         insert into runledger.permit (resource, number, run_id, token)
             select 'a' || a, n, md5(a || '/' || n)::uuid, md5(a || '/' || n)::uuid
             from generate_series(1, {ACCOUNTS}) a, generate_series(1, {OF_AN_ACCOUNT}) n;
         insert into runledger.run (run_id, job, tenant, queue, priority, input, options, start_at)
             select md5('run' || a || '/' || n)::uuid, 'j', '', 'q', 0, '{{}}', json_build_object('resource', 'a' || a), now()
             from generate_series(1, {ACCOUNTS}) a, generate_series(1, 2 * {OF_AN_ACCOUNT}) n;
         insert into runledger.ready (run_id, queue, job, priority, ready_at, resource, cause, attempt, crashes, claims)
             select run_id, 'q', 'j', 0, now() - interval '1 hour', options ->> 'resource', 'enqueued', 0, 0, 0 from runledger.run"
    );
    let names: Vec<String> = (1..=ACCOUNTS).map(|account| format!("a{account}")).collect();
    let arguments = format!(
        "1, 'aaaaaaaa-0000-0000-0000-000000000001', 100, '{{{}}}', array_fill('q'::text, '{{{ACCOUNTS}}}'), \
         array_fill('j'::text, '{{{ACCOUNTS}}}'), array_fill(0::int2, '{{{ACCOUNTS}}}'), \
         array_fill(now() - interval '1 day', '{{{ACCOUNTS}}}'), \
         array_fill('00000000-0000-0000-0000-000000000000'::uuid, '{{{ACCOUNTS}}}')",
        names.join(",")
    );
    // A worker plans the statement once, perhaps while there are no permits.
    execute(&mut connection, SESSION_SETTINGS).await;
    explain(&mut connection, "costs off", "claim_with_permit", &arguments).await;
    runledger_tests::rows::execute(&fixture.db, &rows).await;
    let plan =
        explained(&mut connection, "analyze, costs off, timing off", &format!("statement({arguments})"))
            .await;
    let n_leased: i64 =
        sqlx::query_scalar("select count(*) from runledger.lease").fetch_one(&mut connection).await.unwrap();
    assert_eq!(n_leased, 100);
    let met = rows_met(&plan) / ((ACCOUNTS * OF_AN_ACCOUNT) as f64);
    assert!(met < 100.0, "{met} rows for each permit\n{plan}");
}

/// Live nodes of other graphs.
const OTHER_NODES: usize = 5_000;

#[tokio::test]
async fn release_under_plan_for_empty_tables_reads_only_its_nodes() {
    let fixture = Fixture::new().await;
    let mut connection = fixture.database.connect().await.unwrap();
    execute(&mut connection, SESSION_SETTINGS).await;
    let nodes: Vec<String> = (1..=20).map(|n| format!("00000000-0000-0000-0000-{n:012}")).collect();
    let arguments = format!("'{{{}}}'", nodes.join(","));
    // A worker plans the statement once, perhaps while there are no graphs.
    explain(&mut connection, "costs off", "release", &arguments).await;
    let rows = format!(
        "insert into runledger.graph_counter (run_id, remaining, weight)
             select md5(n::text)::uuid, 1, 1 from generate_series(1, {OTHER_NODES}) n;
         insert into runledger.graph_counter (run_id, remaining, weight) values (md5('graph')::uuid, 100, 1);
         insert into runledger.run (run_id, job, tenant, queue, priority, input, start_at, parent_id, node)
             select lpad(n::text, 32, '0')::uuid, 'j', '', 'q', 0, '{{}}', now(), md5('graph')::uuid, 'n' || n from generate_series(1, 20) n;
         insert into runledger.outcome (run_id, state, output, attempt) select run_id, 'completed', '1', 1 from runledger.run;
         insert into runledger.graph_counter (run_id, remaining, weight) select run_id, 0, 1 from runledger.run;
         insert into runledger.edge (run_id, dependant_id, on_terminal, parameters)
             select run_id, md5((right(run_id::text, 2)::int)::text)::uuid, false, '{{}}' from runledger.run"
    );
    runledger_tests::rows::execute(&fixture.db, &rows).await;
    let plan =
        explained(&mut connection, "analyze, costs off, timing off", &format!("statement({arguments})"))
            .await;
    let n_counted = "select count(*) from runledger.graph_counter where remaining = 0";
    let n_counted: i64 = sqlx::query_scalar(n_counted).fetch_one(&mut connection).await.unwrap();
    assert_eq!(n_counted, 20, "the dependents\n{plan}");
    let met = rows_met(&plan);
    assert!(met < OTHER_NODES as f64, "{met} rows\n{plan}");
}

/// Returns the rows that an executed plan returned and discarded, in all nodes and loops.
fn rows_met(plan: &str) -> f64 {
    let number = |line: &str, name: &str| -> Option<f64> {
        let digits = line.split(name).nth(1)?.trim_start();
        digits.split(|c: char| !c.is_ascii_digit() && c != '.').next()?.parse().ok()
    };
    let (mut met, mut loops) = (0.0, 1.0);
    for line in plan.lines() {
        if let (Some(rows), Some(its_loops)) = (number(line, "rows="), number(line, "loops=")) {
            loops = its_loops;
            met += rows * loops;
        } else if line.contains("Rows Removed by") {
            met += number(line, ":").unwrap_or_default() * loops;
        }
    }
    met
}

/// Concurrent clients, and how many runs each enqueues one after another.
const CLIENTS: usize = 16;
const EACH_CLIENT: usize = 10;

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_enqueues_notify_only_while_some_worker_sleeps() {
    let Fixture { db, database } = Fixture::new().await;
    let worker = "insert into runledger.worker (name, version, session_name, jobs, queues, sleeping)
                  values ('w', '1', 's', '{crowd_passes}', '{default}', ";
    runledger_tests::rows::execute(&db, &format!("{worker} false)")).await;
    let mut told = PgListener::connect(database.url()).await.unwrap();
    told.listen_all(["runledger_ready", "enough"]).await.unwrap();
    for n_asleep in [0, 1] {
        let clients = (0..CLIENTS).map(async |n| {
            for _ in 0..EACH_CLIENT {
                // Three statements: without a transaction, in the caller's transaction, and with a
                // key.
                crowd_passes().enqueue(&db).await.unwrap();
                let mut tx = db.begin().await.unwrap();
                crowd_passes().enqueue(&mut tx).await.unwrap();
                tx.commit().await.unwrap();
                crowd_passes().idempotency_key(format!("{n_asleep}/{n}")).enqueue(&db).await.unwrap();
            }
        });
        futures::future::join_all(clients).await;
        runledger_tests::rows::execute(&db, "notify enough").await;
        let mut n_told = 0;
        while told.recv().await.unwrap().channel() != "enough" {
            n_told += 1;
        }
        assert_eq!(n_told > 0, n_asleep > 0, "{n_told} notifications where {n_asleep} workers sleep");
        runledger_tests::rows::execute(&db, &format!("{worker} true)")).await;
    }
}

/// Counts the notified workers until a message on the channel `enough`.
async fn workers_told(listener: &mut PgListener) -> usize {
    let mut told = HashSet::new();
    loop {
        let notification = listener.recv().await.unwrap();
        if notification.channel() == "enough" {
            return told.len();
        }
        assert!(told.insert(notification.payload().to_owned()), "{notification:?} twice");
    }
}
