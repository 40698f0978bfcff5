//! Jobs for worker processes that tests kill and pause, and their log outside the database.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

use runledger::prelude::*;

/// A log file. Each process appends a line with a single write.
#[derive(Debug)]
pub struct Log(File);

/// One line of the log: what a step did in its process.
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
    /// Opens or creates the log.
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

    /// Returns all lines written so far.
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

/// A step that logs its start and its end.
#[job(max_attempts = 1)]
pub async fn chain_link(millis: u64, #[inject] log: &Log, #[inject] context: &Context) -> io::Result<u64> {
    log.line("start", context)?;
    tokio::time::sleep(Duration::from_millis(millis)).await;
    log.line("end", context)?;
    Ok(1)
}

/// Aborts the process on the first call.
fn die_once(log: &Log, context: &Context) -> io::Result<()> {
    if log.is_empty()? {
        log.line("death", context)?;
        std::process::abort();
    }
    Ok(())
}

/// Writes an entry. If `when` is `before`, the first call aborts the process before the commit.
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

/// The first call aborts the process.
#[job(max_attempts = 1)]
pub async fn fragile_end(#[inject] log: &Log, #[inject] context: &Context) -> io::Result<()> {
    die_once(log, context)
}

/// Runs a transactional step and then a plain one. The process dies in one of them.
#[workflow]
pub async fn fragile(wf: &Wf, when: String) -> Result<()> {
    wf.run(fragile_entry(when)).await?;
    wf.run(fragile_end()).await.map_err(Into::into)
}

/// Runs steps one after another.
#[workflow]
pub async fn chain(wf: &Wf, links: u64, millis: u64) -> Result<u64> {
    let mut sum = 0;
    for _ in 0..links {
        sum += wf.run(chain_link(millis)).await?;
    }
    Ok(sum)
}
