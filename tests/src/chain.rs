//! Jobs for worker processes that are killed and paused, and the log that they leave outside the database.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

use runledger::prelude::*;

/// A file to which every process appends a line with one write.
#[derive(Debug)]
pub struct Log(File);

/// What a step does in its process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// `start` or `end`.
    pub event: String,
    /// The run.
    pub run_id: String,
    /// The step.
    pub key: String,
    /// The fence of the attempt.
    pub token: String,
    /// The process.
    pub pid: u32,
}

impl Log {
    /// Opens or makes the log.
    ///
    /// # Errors
    /// As [`OpenOptions::open`].
    pub fn open(path: &Path) -> io::Result<Self> {
        OpenOptions::new().append(true).create(true).open(path).map(Self)
    }

    /// Appends a line.
    ///
    /// # Errors
    /// As [`Write::write_all`].
    pub fn line(&self, event: &str, context: &Context) -> io::Result<()> {
        let (run_id, token) = (context.run_id(), context.fence_token());
        let key = context.step_key().unwrap_or("-");
        let line = format!("{event} {run_id} {key} {token} {}\n", std::process::id());
        (&self.0).write_all(line.as_bytes())
    }

    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.0.metadata()?.len() == 0)
    }

    /// Every line so far.
    ///
    /// # Errors
    /// As [`std::fs::read_to_string`].
    pub fn read(path: &Path) -> io::Result<Vec<Line>> {
        let text = std::fs::read_to_string(path)?;
        Ok(text.lines().filter_map(Line::parse).collect())
    }
}

impl Line {
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split(' ').map(str::to_owned);
        let (event, run_id, key, token) = (words.next()?, words.next()?, words.next()?, words.next()?);
        Some(Self { event, run_id, key, token, pid: words.next()?.parse().ok()? })
    }
}

/// One step: says when it starts and when it ends.
#[job(max_attempts = 1)]
pub async fn chain_link(millis: u64, #[inject] log: &Log, #[inject] context: &Context) -> io::Result<u64> {
    log.line("start", context)?;
    tokio::time::sleep(Duration::from_millis(millis)).await;
    log.line("end", context)?;
    Ok(1)
}

/// Ends the process the first time it comes here.
fn die_once(log: &Log, context: &Context) -> io::Result<()> {
    if log.is_empty()? {
        log.line("death", context)?;
        std::process::abort();
    }
    Ok(())
}

/// Writes an entry; its process dies before the commit, the first time, if `when` is `before`.
#[job(max_attempts = 1)]
pub async fn fragile_entry(
    when: String,
    #[inject] log: &Log,
    #[inject] context: &Context,
    #[inject] tx: &mut Tx,
) -> Result<()> {
    sqlx::query("insert into entry values (1)").execute(&mut **tx).await?;
    if when == "before" {
        die_once(log, context)?;
    }
    Ok(())
}

/// Its process dies in it, the first time.
#[job(max_attempts = 1)]
pub async fn fragile_end(#[inject] log: &Log, #[inject] context: &Context) -> io::Result<()> {
    die_once(log, context)
}

/// A transactional step and one after it, in one of which the process dies.
#[workflow]
pub async fn fragile(wf: &Wf, when: String) -> Result<()> {
    wf.run(fragile_entry(when)).await?;
    wf.run(fragile_end()).await.map_err(Into::into)
}

/// Steps one after the other.
#[workflow]
pub async fn chain(wf: &Wf, links: u64, millis: u64) -> Result<u64> {
    let mut sum = 0;
    for _ in 0..links {
        sum += wf.run(chain_link(millis)).await?;
    }
    Ok(sum)
}
