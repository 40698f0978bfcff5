//! What a worker does for other runs when nothing is more urgent: many at a time, and one that fails stops no other.

use std::time::Duration;

use runledger::prelude::*;
use runledger::{Cancelled, Handle, RunState, Timings};
use runledger_tests::proxy::Proxy;
use runledger_tests::rows::{execute, scalar, until, worker};
use runledger_tests::{Fixture, eventually};
use sqlx::Connection;
use uuid::Uuid;

use crate::crowds::alone;
use crate::plans;

const LONG: Duration = Duration::from_secs(3600);

#[job]
async fn chore_of_an_hour() -> Result<()> {
    Ok(())
}

/// Inserts runs that wait for a signal until an instant which has passed.
fn waits_that_are_over(n_runs: usize) -> String {
    format!(
        "with runs as (
             insert into runledger.run (run_id, job, tenant, queue, priority, input, start_at)
             select gen_random_uuid(), 'chore_of_an_hour', '', 'default', 0, '[]', now() from generate_series(1, {n_runs})
             returning run_id
         )
         insert into runledger.waiting (run_id, state, wait_any, wait_all, wait_signals, wake_at, attempt, crashes, claims, since)
         select run_id, 'waiting', '{{}}', '{{}}', '{{ping}}', now() - interval '1 hour', 0, 0, 1, now() from runs"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn waits_and_deadlines_that_are_over_do_not_wait_for_further_heartbeats() {
    let Fixture { db, database } = Fixture::new().await;
    execute(&db, &waits_that_are_over(1_000)).await;
    let calls = (0..200).map(|_| chore_of_an_hour().delay(LONG).deadline(LONG));
    runledger::enqueue_all(calls, &db).await.unwrap();
    execute(&db, "update runledger.deadline set deadline_at = now() - interval '1 hour'").await;
    let proxy = Proxy::start(database.url()).await.unwrap();
    let through = Db::connect(proxy.url()).await.unwrap();
    let app = App::new(through).with(jobs![chore_of_an_hour]).timings(Timings::new(LONG, LONG, LONG));
    let worker = app.start().await.unwrap();
    let n_left =
        "select (select count(*) from runledger.waiting) + (select count(*) from runledger.deadline)";
    eventually(async || scalar::<i64>(&db, n_left).await, |n_left| *n_left == 0).await;
    assert_eq!(proxy.count("-- heartbeat"), 1);
    worker.stop().await;
}

/// Lets the end of a run fail.
async fn spoil(db: &Db, run_id: Uuid) {
    let spoiled = format!(
        "create function public.spoil() returns trigger language plpgsql as $$ begin raise 'spoiled'; end $$;
         create trigger spoil before insert on runledger.outcome for each row when (new.run_id = '{run_id}') execute function public.spoil()"
    );
    execute(db, &spoiled).await;
}

async fn mend(db: &Db) {
    execute(db, "drop trigger spoil on runledger.outcome").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn request_that_cannot_be_carried_out_does_not_stop_others() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let mut runs = Vec::new();
    for _ in 0..3 {
        runs.push(chore_of_an_hour().delay(LONG).enqueue(&db).await.unwrap());
    }
    spoil(&db, runs[0].id()).await;
    for run in &runs {
        execute(&db, &format!("insert into runledger.cancel (run_id) values ('{}')", run.id())).await;
    }
    let worker = worker(&db, jobs![chore_of_an_hour]).await;
    for run in &runs[1..] {
        until(&db, run.id(), |info| info.state == RunState::Cancelled).await;
    }
    assert_eq!(db.run(runs[0].id()).await.unwrap().state, RunState::Queued);
    mend(&db).await;
    until(&db, runs[0].id(), |info| info.state == RunState::Cancelled).await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn request_for_a_run_that_nobody_can_take_is_looked_at_once_a_heartbeat() {
    let Fixture { db, database } = Fixture::new().await;
    let run = chore_of_an_hour().delay(LONG).enqueue(&db).await.unwrap();
    let lost = format!(
        "delete from runledger.ready where run_id = '{0}'; insert into runledger.cancel (run_id) values ('{0}')",
        run.id()
    );
    execute(&db, &lost).await;
    let proxy = Proxy::start(database.url()).await.unwrap();
    let worker = worker(&Db::connect(proxy.url()).await.unwrap(), jobs![chore_of_an_hour]).await;
    eventually(async || proxy.count("-- heartbeat"), |n_beats| *n_beats >= 3).await;
    let (n_looks, n_beats) = (proxy.count("-- cancel_left"), proxy.count("-- heartbeat"));
    assert!(n_looks <= n_beats + 2, "{n_looks} looks in {n_beats} heartbeats");
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn deadline_that_cannot_be_kept_does_not_stop_others() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let mut runs = Vec::new();
    for _ in 0..3 {
        runs.push(chore_of_an_hour().delay(LONG).deadline(LONG).enqueue(&db).await.unwrap());
    }
    spoil(&db, runs[0].id()).await;
    for (place, run) in runs.iter().enumerate() {
        let over = format!(
            "update runledger.deadline set deadline_at = now() - interval '2 hours' + {place} * interval '1 minute' where run_id = '{}'",
            run.id()
        );
        execute(&db, &over).await;
    }
    let worker = worker(&db, jobs![chore_of_an_hour]).await;
    for run in &runs[1..] {
        until(&db, run.id(), |info| info.state == RunState::Cancelled).await;
    }
    mend(&db).await;
    until(&db, runs[0].id(), |info| info.state == RunState::Cancelled).await;
    worker.stop().await;
}

/// Inserts children of a run: these many have ended, the last is to begin in an hour.
fn children(parent: Uuid, n_ended: usize) -> String {
    format!(
        "insert into runledger.run (run_id, job, tenant, queue, priority, input, parent_id, depth, start_at)
             select lpad(to_hex(n), 32, '0')::uuid, 'chore_of_an_hour', '', 'default', 0, '[]', '{parent}', 1, now()
             from generate_series(1, {n_ended} + 1) n;
         insert into runledger.outcome (run_id, state, output, attempt)
             select run_id, 'completed', 'null', 1 from runledger.run where parent_id = '{parent}' order by run_id limit {n_ended};
         insert into runledger.ready (run_id, queue, job, priority, ready_at, cause, attempt, crashes, claims)
             select run_id, queue, job, priority, now() + interval '1 hour', 'enqueued', 0, 0, 0
             from runledger.run where parent_id = '{parent}' order by run_id desc limit 1"
    )
}

const LAST_CHILD: &str =
    "select run_id from runledger.run where parent_id is not null order by run_id desc limit 1";

const CHILDREN_READ: &str = "select idx_tup_read from pg_stat_user_indexes where indexrelname = 'run_parent'";

#[tokio::test(flavor = "multi_thread")]
async fn cancel_reads_the_children_of_a_run_in_pages() {
    let Fixture { db, database } = Fixture::new().await;
    let parent = chore_of_an_hour().delay(LONG).enqueue(&db).await.unwrap();
    let mut others = database.connect().await.unwrap();
    plans::execute(&mut others, &children(parent.id(), 10_000)).await;
    others.close().await.unwrap();
    let last: Uuid = scalar(&db, LAST_CHILD).await;
    alone(&db).await;
    let before: i64 = scalar(&db, CHILDREN_READ).await;

    let proxy = Proxy::start(database.url()).await.unwrap();
    let through = Db::connect(proxy.url()).await.unwrap();
    let cancelled = Handle::of(chore_of_an_hour, &through, parent.id()).cancel("no more").await.unwrap();
    assert_eq!(cancelled, Cancelled::Now);
    assert_eq!(db.run(last).await.unwrap().state, RunState::Cancelled);
    assert_eq!(proxy.count("-- cancel_below"), 6, "10,001 children in pages of 2,000");
    through.pool().close().await;
    alone(&db).await;
    // As long as the last page does not show, the server has yet to count.
    let n_read = async || scalar::<i64>(&db, CHILDREN_READ).await - before;
    let n_read = eventually(n_read, |n_read| *n_read > 10_000).await;
    assert!(n_read < 11_000, "{n_read} index entries for 10,001 children");
}

#[tokio::test(flavor = "multi_thread")]
async fn worker_cancels_what_an_ended_run_with_many_children_has_left() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let parent = chore_of_an_hour().delay(LONG).enqueue(&db).await.unwrap();
    execute(&db, &children(parent.id(), 10_000)).await;
    let last: Uuid = scalar(&db, LAST_CHILD).await;
    let ended = format!(
        r#"with gone as (delete from runledger.ready where run_id = '{}' returning run_id, attempt),
           asked as (insert into runledger.cancel (run_id, reason) select run_id, 'half done' from gone)
           insert into runledger.outcome (run_id, state, error, attempt)
           select run_id, 'cancelled', '{{"kind": "cancelled", "message": "cancelled"}}', attempt from gone"#,
        parent.id()
    );
    execute(&db, &ended).await;
    let worker = worker(&db, jobs![chore_of_an_hour]).await;
    let info = until(&db, last, |info| info.state == RunState::Cancelled).await;
    assert!(info.error.unwrap().to_string().contains("half done"));
    eventually(async || scalar::<i64>(&db, "select count(*) from runledger.cancel").await, |n| *n == 0).await;
    worker.stop().await;
}
