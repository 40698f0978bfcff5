//! The transition table against the statements. From every state, every event leads where the table
//! says or changes nothing.

use runledger::__private::{RunEvent, RunState, STATEMENTS};
use runledger::Db;
use runledger_tests::Fixture;
use sqlx::{AssertSqlSafe, PgConnection};
use uuid::Uuid;

const EVENTS: [RunEvent; 13] = [
    RunEvent::Claim,
    RunEvent::Complete,
    RunEvent::Retry,
    RunEvent::Fail,
    RunEvent::Sleep,
    RunEvent::Suspend,
    RunEvent::Wake,
    RunEvent::Release,
    RunEvent::Continue,
    RunEvent::Block,
    RunEvent::Pause,
    RunEvent::Resume,
    RunEvent::Cancel,
];

const ERROR: &str = r#"{"kind":"error","message":"no"}"#;

fn statement(name: &str) -> &'static str {
    STATEMENTS.iter().find(|(known, _)| *known == name).map(|(_, sql)| *sql).unwrap()
}

/// A run with a child, its token, and the worker that may own it.
struct Subject {
    run_id: Uuid,
    child: Uuid,
    token: Uuid,
    worker_id: i64,
}

async fn subject(connection: &mut PgConnection, state: RunState) -> Subject {
    let [run_id, child, token] = [(); 3].map(|()| Uuid::now_v7());
    let insert =
        "insert into runledger.run (run_id, job, tenant, queue, priority, input, parent_id, start_at)
                  values ($1, 'subject', '', 'default', 0, '{}', $2, now())";
    sqlx::query(insert).bind(run_id).bind(None::<Uuid>).execute(&mut *connection).await.unwrap();
    sqlx::query(insert).bind(child).bind(run_id).execute(&mut *connection).await.unwrap();
    let worker_id: i64 = sqlx::query_scalar(statement("worker_register"))
        .bind("worker")
        .bind("0")
        .bind("session")
        .bind(vec!["subject"])
        .bind(vec!["default"])
        .fetch_one(&mut *connection)
        .await
        .unwrap();
    let place = match state {
        RunState::Queued => {
            "insert into runledger.ready (run_id, queue, job, priority, ready_at, cause, attempt, crashes, claims)
             values ($1, 'default', 'subject', 0, now(), 'enqueued', 0, 0, 0)"
                .to_owned()
        }
        RunState::Running => format!("insert into runledger.lease values ($1, '{token}', {worker_id}, 1, 0, 1, now())"),
        RunState::Waiting => format!(
            "insert into runledger.waiting (run_id, state, wait_any, wait_all, wait_signals, attempt, crashes, claims, since)
             values ($1, 'waiting', array['{child}'::uuid], '{{}}', '{{}}', 0, 0, 1, now())"
        ),
        RunState::Blocked => format!(
            "insert into runledger.waiting (run_id, state, error, attempt, crashes, claims, since) values ($1, 'blocked', '{ERROR}', 0, 0, 1, now())"
        ),
        RunState::Paused => {
            "insert into runledger.waiting (run_id, state, ready_at, reason, attempt, crashes, claims, since) values ($1, 'paused', now(), 'no', 0, 0, 0, now())"
                .to_owned()
        }
        RunState::Completed => {
            "insert into runledger.outcome (run_id, state, output, attempt) values ($1, 'completed', 'null', 1)".to_owned()
        }
        RunState::Failed | RunState::Cancelled => {
            format!("insert into runledger.outcome (run_id, state, error, attempt) values ($1, '{state}', '{ERROR}', 1)")
        }
        other => unreachable!("{other}"),
    };
    sqlx::query(AssertSqlSafe(place)).bind(run_id).execute(connection).await.unwrap();
    Subject { run_id, child, token, worker_id }
}

async fn happen(connection: &mut PgConnection, subject: &Subject, event: RunEvent) {
    match event {
        RunEvent::Claim => claim(connection, subject).await,
        RunEvent::Complete => complete(connection, subject).await,
        RunEvent::Retry => settle(connection, subject, "queued", Some(ERROR)).await,
        RunEvent::Fail => settle(connection, subject, "failed", Some(ERROR)).await,
        RunEvent::Sleep | RunEvent::Release => settle(connection, subject, "queued", None).await,
        RunEvent::Continue => {
            let query = sqlx::query(statement("continue_run")).bind(subject.run_id).bind(subject.token);
            query.bind("{}").bind(0_i64).execute(connection).await.unwrap();
        }
        RunEvent::Block => settle(connection, subject, "blocked", Some(ERROR)).await,
        // A running run is paused by its own settlement, any other one by the caller.
        RunEvent::Pause => {
            sqlx::query(statement("pause_ask"))
                .bind(subject.run_id)
                .bind("not now")
                .execute(&mut *connection)
                .await
                .unwrap();
            sqlx::query(statement("pause_take"))
                .bind(subject.run_id)
                .execute(&mut *connection)
                .await
                .unwrap();
            settle(connection, subject, "paused", None).await;
        }
        RunEvent::Suspend => {
            let query = sqlx::query(statement("suspend"))
                .bind(subject.run_id)
                .bind(subject.token)
                .bind(vec![subject.child])
                .bind(Vec::<Uuid>::new())
                .bind(Vec::<String>::new());
            query.bind(None::<String>).bind(0_i32).bind(0_i32).bind(true).execute(connection).await.unwrap();
        }
        RunEvent::Wake => {
            sqlx::query(statement("wake_parents"))
                .bind(vec![subject.child])
                .execute(connection)
                .await
                .unwrap();
        }
        RunEvent::Resume => {
            sqlx::query(statement("resume")).bind(subject.run_id).execute(connection).await.unwrap();
        }
        // A running run is cancelled by its own settlement, any other one by the caller.
        RunEvent::Cancel => {
            sqlx::query(statement("cancel_take"))
                .bind(subject.run_id)
                .bind(ERROR)
                .bind(false)
                .bind(None::<String>)
                .execute(&mut *connection)
                .await
                .unwrap();
            settle(connection, subject, "cancelled", Some(ERROR)).await;
        }
    }
}

async fn claim(connection: &mut PgConnection, subject: &Subject) {
    let query = sqlx::query(AssertSqlSafe(
        statement("claim").replace("$7::timestamptz[]", "$7::text[]::timestamptz[]"),
    ));
    query
        .bind(subject.worker_id)
        .bind(Uuid::now_v7())
        .bind(10_i64)
        .bind(vec!["default"])
        .bind(vec!["subject"])
        .bind(vec![0_i16])
        .bind(vec!["-infinity"])
        .bind(vec![Uuid::nil()])
        .execute(connection)
        .await
        .unwrap();
}

async fn complete(connection: &mut PgConnection, subject: &Subject) {
    let query = sqlx::query(statement("settle_completed")).bind(vec![subject.run_id]);
    query.bind(vec![subject.token]).bind(vec!["null"]).execute(connection).await.unwrap();
}

async fn settle(connection: &mut PgConnection, subject: &Subject, state: &str, error: Option<&str>) {
    let query = sqlx::query(AssertSqlSafe(
        statement("settle").replace("$7::timestamptz[]", "$7::text[]::timestamptz[]"),
    ));
    query
        .bind(vec![subject.run_id])
        .bind(vec![subject.token])
        .bind(vec![state])
        .bind(vec![None::<String>])
        .bind(vec![error])
        .bind(vec![0_i64])
        .bind(vec![None::<String>])
        .bind(vec!["released"])
        .bind(vec![0_i32])
        .bind(vec![0_i32])
        .bind(None::<String>)
        .execute(connection)
        .await
        .unwrap();
}

async fn state(connection: &mut PgConnection, run_id: Uuid) -> RunState {
    let places = "select (select count(*) from runledger.ready where run_id = $1) + (select count(*) from runledger.lease where run_id = $1)
                  + (select count(*) from runledger.waiting where run_id = $1) + (select count(*) from runledger.outcome where run_id = $1)";
    let n_places: i64 = sqlx::query_scalar(places).bind(run_id).fetch_one(&mut *connection).await.unwrap();
    assert_eq!(n_places, 1, "a run stands in exactly one table");
    let word: String = sqlx::query_scalar("select state from runledger.run_state where run_id = $1")
        .bind(run_id)
        .fetch_one(connection)
        .await
        .unwrap();
    RunState::parse(&word).unwrap()
}

#[tokio::test]
async fn every_event_follows_transition_table_or_changes_nothing() {
    let fixture = Fixture::new().await;
    let db: &Db = &fixture.db;
    let mut connection = db.pool().acquire().await.unwrap();
    for before in RunState::ALL {
        for event in EVENTS {
            let subject = subject(&mut connection, before).await;
            happen(&mut connection, &subject, event).await;
            let after = state(&mut connection, subject.run_id).await;
            assert_eq!(after, before.next(event).unwrap_or(before), "{before} on {event:?}");
        }
    }
}

#[tokio::test]
async fn run_suspending_on_child_lost_in_failover_is_requeued() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let mut connection = db.pool().acquire().await.unwrap();
    let of_lost = Subject { child: Uuid::now_v7(), ..subject(&mut connection, RunState::Running).await };
    happen(&mut connection, &of_lost, RunEvent::Suspend).await;
    assert_eq!(state(&mut connection, of_lost.run_id).await, RunState::Queued);
}
