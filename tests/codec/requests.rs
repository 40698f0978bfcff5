//! Repeated requests, and connections without a codec.

use runledger::prelude::*;
use runledger::{ClientError, RunState, SignalReceipt};
use runledger_tests::Fixture;
use runledger_tests::rows::{scalar, soon, until, worker};

use crate::words::{codec, jobs, sealed, tells, waits};

#[tokio::test]
async fn repeated_keyed_request_is_recognised_and_conflict_hides_values() {
    let Fixture { db, database: _database } = sealed().await;
    let call = |word: &str| tells(word.to_owned()).idempotency_key("one");
    let first = call("hunter2").enqueue(&db).await.unwrap();
    let again = call("hunter2").enqueue(&db).await.unwrap();
    assert_eq!((again.id(), again.created()), (first.id(), false));
    let error = call("hunter3").enqueue(&db).await.unwrap_err();
    let ClientError::Conflict { difference, .. } = &error else { panic!("{error}") };
    assert_eq!(difference, "input");
    assert!(!format!("{error} {error:?}").contains("hunter"), "{error:?}");
    let batch = runledger::enqueue_all([call("a").idempotency_key("b"), call("a").idempotency_key("b")], &db);
    assert_eq!(batch.await.unwrap().len(), 2, "a repetition within a batch is one too");
    assert_eq!(scalar::<i64>(&db, "select count(*) from runledger.run").await, 2);
}

#[tokio::test]
async fn keyed_request_matches_one_from_before_codec() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let call = |word: &str| tells(word.to_owned()).idempotency_key("one");
    let first = call("abc").enqueue(&db).await.unwrap();
    let sealed = db.clone().with_codec(codec());
    assert_eq!(call("abc").enqueue(&sealed).await.unwrap().id(), first.id());
    assert!(matches!(call("def").enqueue(&sealed).await, Err(ClientError::Conflict { .. })));
    let other = tells("abc".into()).idempotency_key("two");
    other.enqueue(&sealed).await.unwrap();
    let error = tells("abc".into()).idempotency_key("two").enqueue(&db).await.unwrap_err();
    assert!(matches!(error, ClientError::Unreadable { .. }), "who cannot read cannot compare: {error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn repeated_keyed_signal_is_recognised_and_conflict_hides_values() {
    let Fixture { db, database: _database } = sealed().await;
    let handle = waits().enqueue(&db).await.unwrap();
    let signal = |word: &str| handle.signal("word", word).idempotency_key("one");
    assert_eq!(signal("hunter2").await.unwrap(), SignalReceipt::Sent);
    assert_eq!(signal("hunter2").await.unwrap(), SignalReceipt::AlreadySent);
    let error = signal("hunter3").await.unwrap_err();
    assert!(matches!(error, ClientError::SignalConflict { .. }), "{error}");
    assert!(!format!("{error} {error:?}").contains("hunter"));
    let worker = worker(&db, jobs()).await;
    assert_eq!(soon(handle.result()).await.unwrap(), "hunter2");
    worker.stop().await;
}

/// Enqueues on every kind of connection.
#[workflow]
async fn enqueues(wf: &Wf) -> Result<()> {
    wf.tx("own", |mut tx| async move {
        tells("own".into()).enqueue(&mut tx).await?;
        assert!(matches!(tells("bare".into()).enqueue(&mut *tx).await, Err(ClientError::NoCodec)));
        Ok::<_, Error>(())
    })
    .await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn bare_connection_is_refused_unless_client_supplies_codec() {
    let Fixture { db, database } = sealed().await;
    let pool = database.pool(2).await.unwrap();
    let mut bare = database.connect().await.unwrap();
    let handle = waits().enqueue(&db).await.unwrap();
    let refused = [
        tells("x".into()).enqueue(&pool).await.map(drop),
        tells("x".into()).enqueue(&mut bare).await.map(drop),
        tells("x".into()).enqueue(&mut *pool.begin().await.unwrap()).await.map(drop),
        handle.signal("word", "x").send(&mut bare).await.map(drop),
    ];
    for error in refused {
        let error = error.unwrap_err();
        assert!(matches!(error, ClientError::NoCodec), "{error}");
        assert!(error.to_string().contains("`db.on(&mut connection)`"), "{error}");
    }
    tells("on".into()).enqueue(db.on(&mut bare)).await.unwrap();
    handle.signal("word", "x").send(db.on(&mut bare)).await.unwrap();
    let mut tx = db.begin().await.unwrap();
    tells("tx".into()).enqueue(&mut tx).await.unwrap();
    tx.commit().await.unwrap();
    let worker = worker(&db, jobs![enqueues, tells, waits]).await;
    soon(enqueues().enqueue(&db).await.unwrap().result()).await.unwrap();
    until(&db, handle.id(), |info| info.state == RunState::Completed).await;
    let plain = "select count(*) from runledger.run where input ->> '$sealed' is null";
    assert_eq!(scalar::<i64>(&db, plain).await, 0);
    assert_eq!(scalar::<i64>(&db, "select count(*) from runledger.run").await, 5);
    worker.stop().await;
}
