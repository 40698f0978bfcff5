//! The plans of the statements. A plan with a scan ruins a queue, and the planner changes plans if
//! a hot table is empty, or was empty at its last analysis. The tests therefore plan every
//! statement over full tables, and over bloated tables that were empty.

use runledger::__private::{CLIENT_SETTINGS, CLIENT_TRANSACTION, SESSION_SETTINGS, STATEMENTS};
use runledger_tests::Fixture;
use sqlx::{AssertSqlSafe, PgConnection, Row};

/// Tables as large as the queue or the history. Statements may only probe their indexes.
const HOT: [&str; 7] = ["run", "ready", "lease", "step", "outcome", "waiting", "attempt"];

/// Statements with a good reason to walk a whole table.
const WALKS: [(&str, &str); 13] = [
    // Skips from one (queue, job) to the next. The first step of the walk has no start value.
    ("unserved", "ready"),
    // As above, from one tenant to the next.
    ("runs", "run"),
    // Counts live runs, up to a limit.
    ("metrics", "run"),
    ("metrics", "ready"),
    ("metrics", "lease"),
    ("metrics", "waiting"),
    // Reads every lease from time to time, and probes the worker of each.
    ("orphaned", "lease"),
    ("orphans", "lease"),
    // Reads one row of each table, and only in a copy of a database.
    ("adopt", "ready"),
    ("adopt", "lease"),
    ("adopt", "waiting"),
    // Runs only after a failure, and there are few leases.
    ("keep_one_place", "lease"),
    // The safety sweep for lost wake-ups.
    ("stranded", "waiting"),
];

/// Statements of clients, in sessions of the application. The planner may hash small tables there,
/// and a hash join of a hot table needs a scan.
const OF_CLIENTS: [&str; 21] = [
    "enqueue",
    "existing",
    "end_of_run",
    "run",
    "watch",
    "steps",
    "attempts",
    "cancel_ask",
    "cancel_below",
    "cancel_take",
    "lock_runs",
    "resume",
    "runs",
    "resources",
    "set_permits",
    "log",
    "logged",
    "metrics",
    "happened",
    "pin",
    "parent",
];

#[tokio::test]
#[ignore = "slow: `cargo exhaustive`"]
async fn every_statement_probes_indexes_over_full_tables() {
    let fixture = Fixture::new().await;
    let mut connection = fixture.database.connect().await.unwrap();
    execute(&mut connection, FULL).await;
    let mut bad = plans(&mut connection, SESSION_SETTINGS, |_| true).await;
    let of_client = format!("reset all; {CLIENT_SETTINGS}");
    bad.extend(plans(&mut connection, &of_client, |name| OF_CLIENTS.contains(&name)).await);
    assert!(bad.is_empty(), "{}", bad.join("\n\n"));
}

#[tokio::test]
#[ignore = "slow: `cargo exhaustive`"]
async fn statements_probe_few_pages_over_bloated_tables_analysed_when_empty() {
    let fixture = Fixture::new().await;
    let mut connection = fixture.database.connect().await.unwrap();
    let mut pin = fixture.database.connect().await.unwrap();
    bloat(&mut connection, &mut pin, 0).await;
    let bad = plans(&mut connection, SESSION_SETTINGS, |_| true).await;
    assert!(bad.is_empty(), "{}", bad.join("\n\n"));

    execute(&mut connection, LIVE).await;
    for (name, arguments, n_rows) in HOT_CALLS {
        let arguments = &arguments
            .replace("{new}", &ids("new"))
            .replace("{fresh}", &ids("fresh"))
            .replace("{held}", &ids("held"));
        let plan = explain(&mut connection, "analyze, buffers, costs off, timing off", name, arguments).await;
        let n_pages = pages(&plan);
        assert!(n_pages < MOST_PAGES, "{name}: {n_pages} pages\n{plan}");
        let first = plan.lines().next().unwrap_or_default();
        assert!(first.contains(&format!("rows={n_rows}")), "{name}: other than {n_rows} rows\n{plan}");
    }
}

/// A statement that takes the first entries of an index must walk the index. To sort all due runs
/// in order to claim ten costs as much as the queue is long. The planner prefers the sort if it
/// expects one row, as for a table that was nearly empty among many dead rows at its analysis.
#[tokio::test]
#[ignore = "slow: `cargo exhaustive`"]
async fn claims_do_not_sort_over_bloated_tables_analysed_nearly_empty() {
    let fixture = Fixture::new().await;
    let mut connection = fixture.database.connect().await.unwrap();
    let mut pin = fixture.database.connect().await.unwrap();
    bloat(&mut connection, &mut pin, 5).await;
    let bad = plans(&mut connection, SESSION_SETTINGS, |_| true).await;
    assert!(bad.is_empty(), "{}", bad.join("\n\n"));
    for (name, n_parameters) in [("claim", 8), ("claim_with_permit", 9), ("lanes", 2), ("resource_lanes", 7)]
    {
        let plan = explain(&mut connection, "costs off", name, &vec!["null"; n_parameters].join(", ")).await;
        let sorts = plan.lines().filter(|line| line.trim().starts_with("Sort Key: ready"));
        assert_eq!(sorts.count(), 0, "{plan}");
    }
}

/// Maintenance may have set tens of thousands of runs aside. A comparison of each row with each of
/// them would take longer than its turn.
#[tokio::test]
async fn maintenance_searches_hash_excluded_runs() {
    let fixture = Fixture::new().await;
    let mut connection = fixture.database.connect().await.unwrap();
    execute(&mut connection, SESSION_SETTINGS).await;
    for name in ["timers_due", "stranded", "deadline_due", "cancel_left", "pause_left", "orphaned"] {
        let plan = explain(&mut connection, "costs off", name, "null, null").await;
        assert!(plan.contains("(NOT (hashed SubPlan"), "{name}\n{plan}");
    }
}

/// Runs with one parent. A planner that knows only such parents expects that a scan of all runs
/// meets a child of any run at once.
const MANY_CHILDREN: &str = "
    insert into runledger.run (run_id, job, tenant, queue, priority, input, parent_id, start_at)
        select md5(n::text)::uuid, 'j', '', 'q', 0, '{}', md5('parent')::uuid, now() from generate_series(1, 20000) n;
    analyze runledger.run";

#[tokio::test]
async fn client_cancel_reads_no_whole_table_beside_wide_parents() {
    let fixture = Fixture::new().await;
    let mut connection = fixture.database.connect().await.unwrap();
    execute(&mut connection, MANY_CHILDREN).await;
    let of_client =
        format!("{CLIENT_SETTINGS}; {CLIENT_TRANSACTION}; set local plan_cache_mode = force_generic_plan");
    execute(&mut connection, &of_client).await;
    for (name, arguments) in [("cancel_nodes", "null, null"), ("cancel_take", "null, null, null, null")] {
        let plan = explain(&mut connection, "costs off", name, arguments).await;
        assert!(plan.contains("Index") && !plan.contains("Seq Scan on run"), "{name}\n{plan}");
    }
}

/// A heartbeat without a search, and a claim, read no dead requests, whatever keeps them.
#[tokio::test]
async fn heartbeat_and_claim_read_no_dead_requests_under_old_snapshot() {
    let fixture = Fixture::new().await;
    let mut connection = fixture.database.connect().await.unwrap();
    let mut pin = fixture.database.connect().await.unwrap();
    execute(&mut pin, "begin isolation level repeatable read; select 1").await;
    for table in ["cancel", "pause"] {
        let dead = format!(
            "insert into runledger.{table} (run_id, reason) select md5(n::text)::uuid, '' from generate_series(1, 100000) n;
             delete from runledger.{table}; analyze runledger.{table}"
        );
        execute(&mut connection, &dead).await;
    }
    let queued = "
        insert into runledger.worker (worker_id, name, version, session_name, jobs, queues)
            overriding system value values (1, 'w', '1', 's', '{j}', '{q}');
        insert into runledger.run (run_id, job, tenant, queue, priority, input, start_at)
            select md5('r' || n)::uuid, 'j', '', 'q', 0, '{}', now() from generate_series(1, 10) n;
        insert into runledger.ready (run_id, queue, job, priority, ready_at, cause, attempt, crashes, claims)
            select run_id, 'q', 'j', 0, now() - interval '1 hour', 'enqueued', 0, 0, 0 from runledger.run";
    execute(&mut connection, queued).await;
    execute(&mut connection, SESSION_SETTINGS).await;
    for (name, arguments) in [
        (
            "claim",
            "1, 'aaaaaaaa-0000-0000-0000-000000000001', 10, '{q}', '{j}', '{0}', array[now() - interval '1 day'], \
                   '{00000000-0000-0000-0000-000000000000}'",
        ),
        ("heartbeat", "1, 3, false"),
    ] {
        let plan = explain(&mut connection, "analyze, buffers, costs off, timing off", name, arguments).await;
        let n_pages = all_pages(&plan);
        assert!(n_pages < 400, "{name}: {n_pages} pages\n{plan}");
    }
    let n_leases: i64 =
        sqlx::query_scalar("select count(*) from runledger.lease").fetch_one(&mut connection).await.unwrap();
    assert_eq!(n_leases, 10);
    let plan =
        explain(&mut connection, "analyze, buffers, costs off, timing off", "heartbeat", "1, 3, true").await;
    assert!(all_pages(&plan) > 400, "the dead rows must be there\n{plan}");
}

/// Tables that are nearly empty at times, and large at others.
const OFTEN_EMPTY: [&str; 7] =
    ["graph_counter", "cancel", "pause", "completion_watch", "signal", "permit", "deadline"];

/// Searches for requests that no worker executes.
const SEARCHES: [(&str, &str); 6] = [
    ("cancel_left", "cancel"),
    ("pause_left", "pause"),
    ("heartbeat", "cancel"),
    ("heartbeat", "pause"),
    // Runs only after a failure.
    ("keep_one_place", "cancel"),
    ("keep_one_place", "pause"),
];

/// Over a nearly empty table, a join may read the table first. The plan remains when it is large.
#[tokio::test]
async fn statements_probe_tables_that_were_nearly_empty_when_planned() {
    let fixture = Fixture::new().await;
    let mut connection = fixture.database.connect().await.unwrap();
    execute(&mut connection, NEARLY_EMPTY).await;
    execute(&mut connection, SESSION_SETTINGS).await;
    let mut bad = Vec::new();
    for (name, sql) in STATEMENTS {
        let n_parameters = (1..).take_while(|n| sql.contains(&format!("${n}"))).count();
        let plan = explain(&mut connection, "costs off", name, &vec!["null"; n_parameters].join(", ")).await;
        let complaints = complaints_about(&OFTEN_EMPTY, &SEARCHES, name, &plan);
        if !complaints.is_empty() {
            bad.push(format!("{name}: {complaints:?}\n{plan}"));
        }
    }
    assert!(bad.is_empty(), "{}", bad.join("\n\n"));
}

const NEARLY_EMPTY: &str = "
    insert into runledger.graph_counter (run_id, remaining, weight) select md5(n::text)::uuid, 1, 1 from generate_series(1, 2) n;
    insert into runledger.cancel (run_id, reason) select md5(n::text)::uuid, '' from generate_series(1, 2) n;
    insert into runledger.pause (run_id, reason) select md5(n::text)::uuid, '' from generate_series(1, 2) n;
    insert into runledger.completion_watch (run_id) select md5(n::text)::uuid from generate_series(1, 2) n;
    insert into runledger.signal (run_id, name, number, payload, idempotency_key)
        select md5(n::text)::uuid, 'n', 1, '1', '' from generate_series(1, 2) n;
    insert into runledger.permit (resource, number, run_id, token)
        select 'r' || n, 1, md5(n::text)::uuid, md5(n::text)::uuid from generate_series(1, 2) n;
    insert into runledger.deadline (run_id, deadline_at) select md5(n::text)::uuid, now() from generate_series(1, 2) n;
    analyze runledger.graph_counter, runledger.cancel, runledger.pause, runledger.completion_watch, runledger.signal,
        runledger.permit, runledger.deadline";

/// Each scan passes the dead entries before the first live run of a lane, for as long as an old
/// snapshot keeps them.
#[tokio::test]
#[ignore = "slow: `cargo exhaustive`"]
async fn lane_scan_reads_each_dead_entry_once() {
    let fixture = Fixture::new().await;
    let mut connection = fixture.database.connect().await.unwrap();
    let mut pin = fixture.database.connect().await.unwrap();
    bloat(&mut connection, &mut pin, 0).await;
    execute(&mut connection, LIVE).await;
    execute(&mut connection, SESSION_SETTINGS).await;
    let how = "analyze, buffers, costs off, timing off";
    let look = explain(&mut connection, how, "lanes", "'{q}', '{j}'").await;
    execute(&mut connection, "set enable_bitmapscan = off; prepare once as select run_id from runledger.ready where queue = 'q' and job = 'j'").await;
    let once = explained(&mut connection, how, "once").await;
    assert!(once.contains("using ready_lane"), "{once}");
    let [look_pages, once_pages] = [&look, &once].map(|plan| all_pages(plan));
    assert!(once_pages > 10_000, "{once}");
    assert!(look_pages < once_pages * 11 / 10, "{look_pages} pages for {once_pages} of entries\n{look}");
}

/// Rounds of claims under one snapshot. In each, `CHURN` runs come and go before the ten that are
/// claimed.
const CHURNS: u64 = 5;
const CHURN: u64 = 2_000;

#[tokio::test]
async fn claim_skips_churned_rows_under_long_snapshot() {
    let fixture = Fixture::new().await;
    let mut connection = fixture.database.connect().await.unwrap();
    let mut pin = fixture.database.connect().await.unwrap();
    execute(&mut connection, SESSION_SETTINGS).await;
    execute(&mut pin, "begin isolation level repeatable read; select 1").await;
    execute(&mut connection, "insert into runledger.worker (worker_id, name, version, session_name, jobs, queues) values (1, 'w', '1', 's', '{j}', '{q}')").await;
    let how = "analyze, buffers, costs off, timing off";
    let from = |instant: &str| {
        format!(
            "1, 'aaaaaaaa-0000-0000-0000-000000000001', 10, '{{q}}', '{{j}}', '{{0}}', array[{instant}], \
             '{{00000000-0000-0000-0000-000000000000}}'"
        )
    };
    let mut n_pages = Vec::new();
    for round in 1..=CHURNS {
        // The claimer's cursor is at the last run of the previous churn.
        let (stands, due) = (format!("'2026-01-01'::timestamptz + {round} * interval '1 hour'"), CHURN + 10);
        let come = format!(
            "insert into runledger.run (run_id, job, tenant, queue, priority, input, start_at)
                 select md5('{round}/' || n)::uuid, 'j', 't', 'q', 0, '{{}}', {stands} + (n - {CHURN}) * interval '1 ms' from generate_series(1, {due}) n;
             insert into runledger.ready (run_id, queue, job, priority, ready_at, cause, attempt, crashes, claims)
                 select run_id, queue, job, priority, start_at, 'enqueued', 0, 0, 0 from runledger.run where start_at > {stands} - interval '30 minutes';
             delete from runledger.ready where ready_at <= {stands}"
        );
        execute(&mut connection, &come).await;
        let plan = explain(&mut connection, how, "claim", &from(&stands)).await;
        assert!(plan.lines().next().unwrap_or_default().contains("rows=10"), "{plan}");
        n_pages.push(pages(&plan));
        execute(&mut connection, "delete from runledger.lease").await;
    }
    let (first, last) = (n_pages[0], n_pages[n_pages.len() - 1]);
    assert!(last < first + CHURN / 10, "{n_pages:?} pages, more with each churn");
    // The rows that the last claims did not read still exist.
    let whole = pages(&explain(&mut connection, how, "claim", &from("'2026-01-01'::timestamptz")).await);
    assert!(whole > 2 * last, "{whole} pages from the start of the lane, {last} behind the churn");
    execute(&mut pin, "rollback").await;
}

/// Ten rows per statement and about ten probes per row, each counted once per level of the plan. A
/// single scan of the dead rows exceeds 20,000.
const MOST_PAGES: u64 = 5_000;

/// Calls (of ten rows if they take many) on the live rows beside the dead ones, with the number of
/// rows that each returns.
const HOT_CALLS: [(&str, &str, u32); 13] = [
    (
        "claim",
        "1, 'aaaaaaaa-0000-0000-0000-000000000001', 10, '{q}', '{j}', '{0}', array[now() - interval '1 hour'], \
         '{00000000-0000-0000-0000-000000000000}'",
        10,
    ),
    ("lanes", "'{empty}', '{j}'", 1),
    (
        "claim_with_permit",
        "1, 'aaaaaaaa-0000-0000-0000-000000000002', 20, '{r}', '{q}', '{j}', '{0}', array[now() - interval '1 hour'], \
         '{00000000-0000-0000-0000-000000000000}'",
        10,
    ),
    ("resource_lanes", r"'{q}', '{j}', E'\x01', '', '', 0, 256", 1),
    (
        "enqueue",
        "{new}, array_fill('j'::text, '{10}'), '{}', array_fill('q'::text, '{10}'), array_fill(0::int2, '{10}'), array_fill('{}'::text, '{10}'), '{}', \
         '{}', '{}', '{}'",
        1,
    ),
    (
        "enqueue_fresh",
        "{fresh}, array_fill('j'::text, '{10}'), array_fill('t'::text, '{10}'), array_fill('q'::text, '{10}'), array_fill(0::int2, '{10}'), \
         array_fill('{}'::text, '{10}'), array_fill(null::text, '{10}'), array_fill(0::int8, '{10}'), array_fill(null::timestamptz, '{10}')",
        1,
    ),
    (
        "checkpoint",
        "{held}, \
         array_fill('bbbbbbbb-0000-0000-0000-000000000001'::uuid, '{10}'), array_fill('k'::text, '{10}'), array_fill(1::int8, '{10}'), \
         array_fill(1::int8, '{10}'), array_fill('1'::text, '{10}'), '{}', array_fill(0, '{10}'), '{}', '{}', null",
        1,
    ),
    (
        "checkpoint_fresh",
        "{held}, \
         array_fill('bbbbbbbb-0000-0000-0000-000000000001'::uuid, '{10}'), array_fill('fresh'::text, '{10}'), array_fill(1::int8, '{10}'), \
         array_fill(1::int8, '{10}'), array_fill('1'::text, '{10}'), '{}', array_fill(0, '{10}'), '{}', '{}'",
        1,
    ),
    (
        "settle",
        "{held}, \
         array_fill('bbbbbbbb-0000-0000-0000-000000000001'::uuid, '{10}'), array_fill('queued'::text, '{10}'), array_fill(null::text, '{10}'), \
         array_fill('{}'::text, '{10}'), array_fill(0::int8, '{10}'), array_fill(null::timestamptz, '{10}'), \
         array_fill('retried'::text, '{10}'), array_fill(1, '{10}'), array_fill(0, '{10}'), null",
        10,
    ),
    (
        "settle_completed",
        "{held}, array_fill('bbbbbbbb-0000-0000-0000-000000000001'::uuid, '{10}'), array_fill('1'::text, '{10}')",
        1,
    ),
    ("held", "2", 10),
    ("end_of_run", "md5('held1')::uuid", 1),
    (
        "suspend",
        "md5('held11')::uuid, 'bbbbbbbb-0000-0000-0000-000000000001', array[md5('held12')::uuid], '{}', '{}', null, 0, 0, true",
        1,
    ),
];

/// Returns the ids of ten rows: of a kind that [`LIVE`] creates, or of one that does not exist yet.
fn ids(kind: &str) -> String {
    let ids: Vec<String> = (1..=10).map(|n| format!("md5('{kind}{n}')::uuid")).collect();
    format!("array[{}]", ids.join(", "))
}

/// Full tables, as in a system that has been working for a while.
const FULL: &str = "
insert into runledger.run (run_id, job, tenant, queue, priority, input, parent_id, start_at)
    select md5('run' || n)::uuid, 'j' || n % 5, 't', 'q', n % 3, '{}', case when n % 50 = 0 then md5('run' || n / 2)::uuid end, now()
    from generate_series(1, 300000) n;
insert into runledger.ready (run_id, queue, job, priority, ready_at, cause, attempt, crashes, claims)
    select md5('run' || n)::uuid, 'q', 'j' || n % 5, n % 3, now(), 'enqueued', 0, 0, 0 from generate_series(1, 100000) n;
insert into runledger.lease (run_id, token, worker_id, attempt, crashes, claims, claimed_at)
    select md5('run' || n)::uuid, gen_random_uuid(), n % 10, 1, 0, 1, now() from generate_series(100001, 105000) n;
insert into runledger.waiting (run_id, state, wait_any, wait_all, wait_signals, attempt, crashes, claims, since)
    select md5('run' || n)::uuid, 'waiting', '{}', '{}', '{}', 0, 0, 1, now() from generate_series(105001, 110000) n;
insert into runledger.outcome (run_id, state, output, attempt)
    select md5('run' || n)::uuid, 'completed', '1', 1 from generate_series(110001, 300000) n;
insert into runledger.step (run_id, key, ordinal, fingerprint, output, seen_len, claims)
    select md5('run' || n)::uuid, 'k', 1, 1, '1', 0, 1 from generate_series(100001, 300000) n;
insert into runledger.attempt (run_id, claims, attempt, worker_id, error)
    select md5('run' || n)::uuid, 1, 1, 1, '{}' from generate_series(100001, 200000) n;
insert into runledger.cancel (run_id) select md5('run' || n)::uuid from generate_series(100001, 100020) n;
insert into runledger.completion_watch (run_id) select md5('run' || n)::uuid from generate_series(100001, 100020) n;
insert into runledger.worker (worker_id, name, version, session_name, jobs, queues) select n, 'w' || n, '1', 's' || n, '{j1}', '{q}' from generate_series(1, 20) n;
analyze";

/// The live rows beside the dead ones.
const LIVE: &str = "
insert into runledger.worker (worker_id, name, version, session_name, jobs, queues) select n, 'w' || n, '1', 's' || n, '{j}', '{q}' from generate_series(1, 2) n;
insert into runledger.run (run_id, job, tenant, queue, priority, input, start_at)
    select md5(kind || n)::uuid, 'j', 't', 'q', 0, '{}', now() from unnest('{due,held}'::text[]) kind, generate_series(1, 20) n;
insert into runledger.ready (run_id, queue, job, priority, ready_at, cause, attempt, crashes, claims)
    select md5('due' || n)::uuid, 'q', 'j', 0, now() - interval '1 minute', 'enqueued', 0, 0, 0 from generate_series(1, 20) n;
insert into runledger.run (run_id, job, tenant, queue, priority, input, options, start_at)
    select md5('limited' || n)::uuid, 'j', 't', 'q', 0, '{}', '{\"resource\":\"r\"}', now() from generate_series(1, 1000) n;
insert into runledger.ready (run_id, resource, queue, job, priority, ready_at, cause, attempt, crashes, claims)
    select run_id, 'r', queue, job, priority, now() - interval '1 minute', 'enqueued', 0, 0, 0 from runledger.run where options ->> 'resource' = 'r';
insert into runledger.resource (name, permits) values ('r', 10);
insert into runledger.lease (run_id, token, worker_id, attempt, crashes, claims, claimed_at)
    select md5('held' || n)::uuid, 'bbbbbbbb-0000-0000-0000-000000000001', 2, 1, 0, 1, now() from generate_series(1, 20) n";

/// Makes every hot table bloated and empty except for `n_living` rows, and analyses it in that
/// state. A snapshot keeps the dead rows. Those of `ready` are in their own lanes and were due long
/// ago, like runs before a cursor.
async fn bloat(connection: &mut PgConnection, pin: &mut PgConnection, n_living: i64) {
    for table in HOT.iter().chain(&["cancel", "completion_watch"]) {
        execute(connection, &format!("alter table runledger.{table} set (autovacuum_enabled = off)")).await;
    }
    execute(
        connection,
        &FULL
            .replace("analyze", "")
            .replace("'j' || n % 5", "'j'")
            .replace("now()", "now() - interval '1 day'"),
    )
    .await;
    execute(pin, "begin isolation level repeatable read; select 1").await;
    for table in HOT.iter().chain(&["cancel", "completion_watch"]) {
        let living = format!("select ctid from runledger.{table} limit {n_living}");
        let emptied =
            format!("delete from runledger.{table} where ctid not in ({living}); analyze runledger.{table}");
        execute(connection, &emptied).await;
    }
    execute(connection, "delete from runledger.worker; analyze runledger.worker").await;
    let dead = "select reltuples::int8 as live, relpages::int8 as pages from pg_class where oid = 'runledger.lease'::regclass";
    let row = sqlx::query(dead).fetch_one(connection).await.unwrap();
    assert_eq!(row.get::<i64, _>("live"), n_living);
    assert!(row.get::<i64, _>("pages") > 40, "the dead rows must be there");
}

/// Returns the plans under these settings that do more than probe.
async fn plans(connection: &mut PgConnection, settings: &str, of: impl Fn(&str) -> bool) -> Vec<String> {
    execute(connection, &format!("{settings}; set plan_cache_mode = force_generic_plan")).await;
    let mut bad = Vec::new();
    for (name, sql) in STATEMENTS.iter().filter(|(name, _)| of(name)) {
        let n_parameters = (1..).take_while(|n| sql.contains(&format!("${n}"))).count();
        let plan = explain(connection, "costs on", name, &vec!["null"; n_parameters].join(", ")).await;
        let complaints = complaints(name, &plan);
        if !complaints.is_empty() {
            bad.push(format!("{name}: {complaints:?}\n{plan}"));
        }
    }
    bad
}

/// Returns the plan of a statement as the engine runs it: prepared and planned once for all
/// arguments.
pub async fn explain(connection: &mut PgConnection, how: &str, name: &str, arguments: &str) -> String {
    let sql = STATEMENTS.iter().find(|(known, _)| *known == name).unwrap().1;
    execute(connection, &format!("deallocate all; prepare statement as {sql}")).await;
    let call = if arguments.is_empty() { String::new() } else { format!("({arguments})") };
    explained(connection, how, &format!("statement{call}")).await
}

pub async fn explained(connection: &mut PgConnection, how: &str, call: &str) -> String {
    let query = format!("explain ({how}) execute {call}");
    let rows = sqlx::raw_sql(AssertSqlSafe(query)).fetch_all(connection).await;
    let rows = rows.unwrap_or_else(|error| panic!("{call}: {error}"));
    rows.iter().map(|row| row.get::<String, _>(0) + "\n").collect()
}

/// Returns everything that a plan does to hot tables besides probes.
pub fn complaints(statement: &str, plan: &str) -> Vec<String> {
    complaints_about(&HOT, &WALKS, statement, plan)
}

fn complaints_about(tables: &[&str], walks: &[(&str, &str)], statement: &str, plan: &str) -> Vec<String> {
    let lines: Vec<&str> = plan.lines().collect();
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        // Plans show JIT only together with costs, on which it depends. A statement that is
        // compiled on each call takes a hundred times as long.
        if line.trim() == "JIT:" {
            found.push("it is compiled".to_owned());
        }
        if line.contains(" Join")
            && (line.contains("Hash ") || line.contains("Merge "))
            && !OF_CLIENTS.contains(&statement)
        {
            found.push(line.trim().to_owned());
        }
        let Some(table) = tables.iter().find(|table| scans(line, table)) else { continue };
        let details = lines[at + 1..].iter().take_while(|line| !line.contains("->"));
        let probes = line.contains("Tid Scan") || details.into_iter().any(|line| line.contains("Index Cond"));
        let below = lines.get(at + 1..).unwrap_or_default();
        let by_bitmap =
            line.contains("Bitmap Heap Scan") && below.iter().any(|line| line.contains("Bitmap Index Scan"));
        let may_walk = walks.contains(&(statement, table));
        if !probes && !by_bitmap && !may_walk {
            found.push(format!("{} without a condition", line.trim()));
        }
    }
    found
}

fn scans(line: &str, table: &str) -> bool {
    let on = line.split(" on ").nth(1).and_then(|rest| rest.split_whitespace().next());
    line.contains("Scan") && !line.contains("Subquery Scan") && on == Some(table)
}

/// Returns the pages that the nodes of an executed plan read, each counted once per level.
pub fn pages(plan: &str) -> u64 {
    pages_by_node(plan).sum()
}

/// Returns the pages that an executed plan read: those of its first node, which include all others.
fn all_pages(plan: &str) -> u64 {
    pages_by_node(plan).next().unwrap_or_default()
}

fn pages_by_node(plan: &str) -> impl Iterator<Item = u64> {
    let executed = plan.split("Planning:").next().unwrap_or_default();
    let buffers = executed.lines().filter(|line| line.trim().starts_with("Buffers: shared"));
    buffers.map(|line| {
        let numbers = line.split_whitespace();
        let of = |word: &str| {
            word.strip_prefix("hit=").or_else(|| word.strip_prefix("read="))?.parse::<u64>().ok()
        };
        numbers.filter_map(of).sum()
    })
}

pub async fn execute(connection: &mut PgConnection, sql: &str) {
    let sql = AssertSqlSafe(sql.to_owned());
    if let Err(error) = sqlx::raw_sql(sql).execute(connection).await {
        panic!("{error}");
    }
}

#[test]
fn plan_checker_reports_scans_and_hash_joins_but_no_probes() {
    let probe = "Index Scan using run_pkey on run\n  Index Cond: (run_id = $1)";
    assert!(complaints("x", probe).is_empty());
    for bad in [
        "  ->  Seq Scan on lease\n",
        "Index Only Scan using lease_pkey on lease\n  ->  Result",
        "Hash Semi Join\n",
    ] {
        assert_eq!(complaints("x", bad).len(), 1, "{bad}");
    }
    assert_eq!(
        pages(
            "  Buffers: shared hit=3 read=4\n ->  Buffers: shared hit=3\nPlanning:\n  Buffers: shared hit=100"
        ),
        7
    );
}
