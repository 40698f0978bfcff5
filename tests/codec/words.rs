//! Runs with a word in payloads of each kind, and the codec that encrypts it.

use std::collections::BTreeMap;

use runledger::AesGcm;
use runledger::prelude::*;
use runledger_tests::Fixture;

pub fn codec() -> AesGcm {
    AesGcm::new("present", [7; 32])
}

/// A database with encrypted payloads.
pub async fn sealed() -> Fixture {
    let Fixture { db, database } = Fixture::new().await;
    Fixture { db: db.with_codec(codec()), database }
}

/// Passes the word to everything that a body can call. The first attempt fails with the word.
#[job(max_attempts = 2, backoff = "1ms..1ms")]
pub async fn tells(word: String, #[inject] context: &Context) -> Result<String> {
    let configured: Option<BTreeMap<String, String>> = context.config(1)?;
    assert!(configured.is_none_or(|configured| configured["word"] == word), "it is given as it was");
    context.progress(&word).await?;
    context.emit(&word).await?;
    if context.attempt() == 1 {
        return Err(format!("the first try of {word}").into());
    }
    let before: Option<String> = context.last_progress().await?;
    Ok(before.unwrap_or_default())
}

#[job]
pub async fn untells(word: String) -> Result<()> {
    drop(word);
    Ok(())
}

#[job(max_attempts = 1)]
pub async fn fails_with(word: String) -> Result<()> {
    Err(format!("no {word}").into())
}

/// Has the word in its inputs, steps, markers, lines, signals, children and compensations.
/// Completes or fails with the word.
#[workflow]
pub async fn everything(wf: &Wf, word: String, slice: u32, ends_well: bool) -> Result<String> {
    let saga = wf.saga();
    let told = saga.run(tells(word.clone()), |told| untells(told.clone())).await?;
    let _ = wf.uuid();
    wf.emit(&told);
    wf.publish("state", &told).await?;
    let sent: String = wf.signal("word").await?;
    let child = wf.start(tells(sent).key("child")).await?.result().await?;
    if slice == 0 {
        return wf.continue_as_new(everything(child, 1, ends_well)).await;
    }
    let failure = wf.run(fails_with(child.clone())).await.map_err(|error| error.failure().message.clone());
    assert_eq!(failure, Err(format!("no {child}")), "the code is given what it was");
    if !ends_well {
        wf.run(fails_with(child.clone()).key("last")).await?;
    }
    Ok(child)
}

#[workflow]
pub async fn waits(wf: &Wf) -> Result<String> {
    Ok(wf.signal("word").await?)
}

pub async fn run_everything(db: &Db, word: &str, ends_well: bool) -> RunHandle<String> {
    let handle = everything(word.to_owned(), 0, ends_well).enqueue(db).await.unwrap();
    for _ in 0..2 {
        handle.signal("word", word).await.unwrap();
    }
    let ended = runledger_tests::rows::soon(handle.result()).await;
    assert_eq!(ended.is_ok(), ends_well, "{ended:?}");
    handle
}

pub fn jobs() -> [&'static runledger::Definition; 6] {
    jobs![everything, tells, untells, fails_with, waits, crate::secrets::logs_in]
}
