//! I1: an acknowledged run exists, and a rolled-back run does not. I5: one run per key.

use std::collections::HashSet;
use std::future::Future;
use std::task::Poll;

use runledger::{Db, RunHandle, enqueue_all};
use runledger_tests::check::calls::{Submission, Told, doubled_keys, lost_or_invented, torn};
use runledger_tests::check::{Fleet, jobs};
use runledger_tests::proxy::{Fault, Proxy};
use sqlx::postgres::PgListener;

/// A dropped `begin()` leaves its transaction open in about one of three cases.
const ROUNDS: usize = 60;

/// Concurrent callers with one key.
const CALLERS: usize = 16;

#[tokio::test(flavor = "multi_thread")]
async fn acknowledged_enqueue_survives_dropped_transactions_of_same_pool() -> anyhow::Result<()> {
    let fleet = Fleet::new().await?;
    // With one connection, an enqueue gets the connection that a dropped `begin()` left.
    let db = Db::connect_with(fleet.url().parse()?, 1).await?;
    let mut submissions = Vec::new();
    for round in 0..ROUNDS {
        polled_and_dropped(db.begin(), 1 + round % 3).await;
        let run = jobs::check_canary().enqueue(&db).await?;
        submissions.push(Submission::acknowledged(run.id()));
    }
    db.pool().close().await;
    let violations = lost_or_invented(&mut fleet.connect().await?, &submissions).await?;
    assert_eq!(violations, Vec::<String>::new());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn enqueue_with_lost_reply_returns_created_run() -> anyhow::Result<()> {
    let fleet = Fleet::new().await?;
    let proxy = Proxy::start(fleet.url()).await?;
    let db = Db::connect(proxy.url()).await?;
    proxy.arm("-- enqueue_fresh:", Fault::LoseReply);
    let told = jobs::check_canary().enqueue(&db).await;
    assert!(told.is_ok(), "it was written, and its caller is told: {told:?}");
    assert_eq!(proxy.n_faults(), 1);
    let there: Vec<uuid::Uuid> =
        sqlx::query_scalar("select run_id from runledger.run").fetch_all(fleet.db.pool()).await?;
    assert_eq!(there, told.iter().map(RunHandle::id).collect::<Vec<_>>());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn run_exists_exactly_when_callers_transaction_commits() -> anyhow::Result<()> {
    let fleet = Fleet::new().await?;
    let mut submissions = Vec::new();
    for round in 0..24 {
        let id = uuid::Uuid::now_v7();
        let mut tx = fleet.db.begin().await?;
        sqlx::query("insert into audit.business values ($1)").bind(id).execute(&mut *tx).await?;
        let call = jobs::check_canary().tenant("torn").idempotency_key(id.to_string());
        let run = call.enqueue(&mut tx).await?;
        let told = match round % 3 {
            0 => tx.commit().await.map(|()| Told::Ok)?,
            1 => tx.rollback().await.map(|()| Told::RolledBack)?,
            _ => {
                drop(tx);
                Told::RolledBack
            }
        };
        submissions.push(Submission {
            key: Some(id.to_string()),
            told,
            ..Submission::acknowledged(run.id())
        });
    }
    // A dropped transaction is rolled back when its connection returns to the pool.
    fleet.db.pool().close().await;
    let mut connection = fleet.connect().await?;
    assert_eq!(lost_or_invented(&mut connection, &submissions).await?, Vec::<String>::new());
    assert_eq!(torn(&mut connection).await?, Vec::<String>::new());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_enqueues_with_one_key_create_one_run() -> anyhow::Result<()> {
    let fleet = Fleet::new().await?;
    let worker = fleet.worker(fleet.url()).await?;
    let mut callers = tokio::task::JoinSet::new();
    for caller in 0..CALLERS {
        let db = fleet.db.clone();
        callers.spawn(async move {
            let mut told = Vec::new();
            for key in 0..10 {
                let key = format!("order-{key}");
                let call = jobs::check_canary().idempotency_key(&key);
                // Half of the callers drop a call and repeat it: repeating resolves an ambiguous
                // call.
                if (caller + told.len()) % 2 == 0 {
                    let call = jobs::check_canary().idempotency_key(&key);
                    polled_and_dropped(call.enqueue(&db), 3).await;
                }
                let run_id = call.enqueue(&db).await.map(|run| run.id());
                told.push((key, run_id));
            }
            told
        });
    }
    let mut submissions = Vec::new();
    while let Some(told) = callers.join_next().await {
        for (key, run_id) in told? {
            submissions.push(Submission { key: Some(key), ..Submission::acknowledged(run_id?) });
        }
    }
    let mut connection = fleet.connect().await?;
    assert_eq!(doubled_keys(&mut connection, &submissions).await?, Vec::<String>::new());
    assert_eq!(lost_or_invented(&mut connection, &submissions).await?, Vec::<String>::new());
    let n_created: i64 =
        sqlx::query_scalar("select count(*) from runledger.run").fetch_one(&mut connection).await?;
    assert_eq!(n_created, 10);
    fleet.drained().await?;
    worker.stop().await;
    assert_eq!(fleet.verdict(&[]).await?, Vec::<String>::new());
    Ok(())
}

/// Drops a future in flight, after at most `n_polls` polls.
async fn polled_and_dropped<T>(future: impl Future<Output = T>, n_polls: usize) {
    let mut future = std::pin::pin!(future);
    let mut n_left = n_polls;
    std::future::poll_fn(|cx| {
        let polled = future.as_mut().poll(cx);
        n_left -= 1;
        if polled.is_ready() || n_left == 0 { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn enqueue_wakes_one_sleeping_serving_worker_per_run_plus_one() -> anyhow::Result<()> {
    let fleet = Fleet::new().await?;
    let sleepers = "insert into runledger.worker (name, version, session_name, jobs, queues, sleeping)
                    select 'w' || n, '1', 's' || n, case when n <= 5 then '{check.canary}' else '{other}' end::text[], '{checks}', n <> 5
                    from generate_series(1, 8) n";
    sqlx::query(sleepers).execute(fleet.db.pool()).await?;
    let serving = "select array_agg(worker_id::text) from runledger.worker where sleeping and 'check.canary' = any (jobs)";
    let serving: Vec<String> = sqlx::query_scalar(serving).fetch_one(fleet.db.pool()).await?;
    let mut listener = PgListener::connect(fleet.url()).await?;
    listener.listen_all(["runledger_ready", "enough"]).await?;
    for (n_runs, n_woken) in [(1, 2), (2, 3), (10, 4)] {
        enqueue_all((0..n_runs).map(|_| jobs::check_canary()), &fleet.db).await?;
        sqlx::query("notify enough").execute(fleet.db.pool()).await?;
        let mut woken = HashSet::new();
        loop {
            let notification = listener.recv().await?;
            if notification.channel() == "enough" {
                break;
            }
            assert!(serving.iter().any(|worker| worker == notification.payload()), "{notification:?}");
            assert!(woken.insert(notification.payload().to_owned()), "{notification:?} twice");
        }
        assert_eq!(woken.len(), n_woken, "for {n_runs} runs");
    }
    Ok(())
}
