//! A codec that panics.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use runledger::prelude::*;
use runledger::{AesGcm, ClientError, Codec, CodecError, FailureKind, Place, RunState, Sealed};
use runledger_tests::Fixture;
use runledger_tests::rows::{scalar, soon, until, worker};

use crate::words::{codec, jobs, tells};

/// A codec that panics on request.
struct Panics {
    codec: AesGcm,
    seals: Arc<AtomicBool>,
    opens: Arc<AtomicBool>,
    digests: Arc<AtomicBool>,
}

impl Panics {
    /// Returns a codec that does not panic until a test sets one of its flags.
    fn never() -> Self {
        let [seals, opens, digests] = [(); 3].map(|()| Arc::new(AtomicBool::new(false)));
        Self { codec: codec(), seals, opens, digests }
    }
}

impl Codec for Panics {
    fn seal(&self, place: &Place<'_>, plain: &[u8]) -> Result<Sealed, CodecError> {
        assert!(!self.seals.load(Ordering::SeqCst), "no seal today");
        self.codec.seal(place, plain)
    }

    fn open(&self, place: &Place<'_>, sealed: &Sealed) -> Result<Vec<u8>, CodecError> {
        assert!(!self.opens.load(Ordering::SeqCst), "no opening today");
        self.codec.open(place, sealed)
    }

    fn digest(&self, bytes: &[u8]) -> [u8; 32] {
        assert!(!self.digests.load(Ordering::SeqCst), "no digest today");
        self.codec.digest(bytes)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn codec_panic_while_decrypting_blocks_run_until_resumed() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let panics = Panics::never();
    let opens = Arc::clone(&panics.opens);
    let db = db.with_codec(panics);
    let handle = tells("abc".into()).enqueue(&db).await.unwrap();
    opens.store(true, Ordering::SeqCst);
    let worker = worker(&db, jobs()).await;
    let blocked = until(&db, handle.id(), |info| info.state == RunState::Blocked).await;
    let failure = blocked.error.unwrap();
    assert_eq!(failure.kind, FailureKind::Sealed);
    assert!(failure.to_string().contains("the codec panicked: no opening today"), "{failure}");
    assert_eq!(blocked.attempt, 0, "no attempt is spent");
    opens.store(false, Ordering::SeqCst);
    handle.resume().await.unwrap();
    assert_eq!(soon(handle.result()).await.unwrap(), "abc");
    assert_eq!(
        scalar::<i64>(&db, "select count(*) from runledger.attempt where error ->> 'kind' = 'crash'").await,
        0
    );
    opens.store(true, Ordering::SeqCst);
    let error = handle.result().await.unwrap_err();
    assert!(matches!(error, ClientError::Unreadable { .. }), "{error}");
    worker.stop().await;
}

#[job]
async fn echoes(word: String) -> Result<String> {
    Ok(word)
}

#[tokio::test(flavor = "multi_thread")]
async fn codec_panic_while_encrypting_blocks_run_until_resumed() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let panics = Panics::never();
    let seals = Arc::clone(&panics.seals);
    let db = db.with_codec(panics);
    let handle = echoes("abc".into()).enqueue(&db).await.unwrap();
    seals.store(true, Ordering::SeqCst);
    let refused = echoes("def".into()).enqueue(&db).await.unwrap_err();
    assert!(format!("{refused:?}").contains("no seal today"), "{refused:?}");
    let worker = worker(&db, jobs![echoes]).await;
    let blocked = until(&db, handle.id(), |info| info.state == RunState::Blocked).await;
    let failure = blocked.error.unwrap();
    assert_eq!(failure.kind, FailureKind::Sealed);
    assert!(failure.to_string().contains("the codec panicked: no seal today"), "{failure}");
    seals.store(false, Ordering::SeqCst);
    handle.resume().await.unwrap();
    assert_eq!(soon(handle.result()).await.unwrap(), "abc");
    worker.stop().await;
}

/// Needs a digest of an input, in each way that a workflow can.
#[workflow]
async fn digests(wf: &Wf, how: String) -> Result<String> {
    match how.as_str() {
        "a step" => Ok(wf.run(echoes(how)).await?),
        "a child" => Ok(wf.start(echoes(how)).await?.result().await?),
        _ => {
            wf.emit(&how);
            Ok(how)
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn codec_panic_in_digest_blocks_run_until_resumed() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let panics = Panics::never();
    let panicking = Arc::clone(&panics.digests);
    let db = db.with_codec(panics);
    let worker = worker(&db, jobs![digests, echoes]).await;
    for how in ["a step", "a child", "a line"] {
        panicking.store(true, Ordering::SeqCst);
        let handle = digests(how.to_owned()).enqueue(&db).await.unwrap();
        let blocked =
            until(&db, handle.id(), |info| info.state != RunState::Queued && info.state != RunState::Running)
                .await;
        assert_eq!(blocked.state, RunState::Blocked, "{how}: {:?}", blocked.error);
        let failure = blocked.error.unwrap();
        assert_eq!(failure.kind, FailureKind::Sealed, "{how}");
        assert!(failure.to_string().contains("the codec panicked: no digest today"), "{how}: {failure}");
        assert_eq!(blocked.attempt, 0, "{how}: no attempt is spent");
        panicking.store(false, Ordering::SeqCst);
        handle.resume().await.unwrap();
        assert_eq!(soon(handle.result()).await.unwrap(), how);
    }
    worker.stop().await;
}

#[tokio::test]
async fn codec_panic_in_digest_refuses_graph() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let panics = Panics::never();
    panics.digests.store(true, Ordering::SeqCst);
    let db = db.with_codec(panics);
    let mut graph = runledger::Graph::new("one");
    graph.call(echoes("abc".into()));
    let refused = graph.enqueue(&db).await.unwrap_err();
    assert!(matches!(refused, ClientError::Encode { .. }), "{refused:?}");
    assert!(format!("{refused:?}").contains("no digest today"), "{refused:?}");
}

#[job(max_attempts = 1)]
async fn declines(#[inject] seals: &Arc<AtomicBool>) -> Result<()> {
    seals.store(true, Ordering::SeqCst);
    Err("declined".into())
}

#[workflow]
async fn tells_why(wf: &Wf) -> Result<usize> {
    let why = wf.run(declines()).await.unwrap_err().to_string();
    let n = wf.run(tells(why)).await?.len();
    wf.signal::<()>("go on").await?;
    Ok(n)
}

/// The code would receive a failure text that a replay would not.
#[tokio::test(flavor = "multi_thread")]
async fn run_is_blocked_when_step_failure_cannot_be_encrypted() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let panics = Panics::never();
    let seals = Arc::clone(&panics.seals);
    let db = db.with_codec(panics);
    let app = App::new(db.clone()).with(jobs![tells_why, declines, tells]).provide(Arc::clone(&seals));
    let worker = app.timings(runledger::Timings::FAST).start().await.unwrap();
    let handle = tells_why().enqueue(&db).await.unwrap();
    let blocked = until(&db, handle.id(), |info| info.state == RunState::Blocked).await;
    assert_eq!(blocked.error.unwrap().kind, FailureKind::Sealed);
    worker.stop().await;
}
