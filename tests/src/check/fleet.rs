//! A database with its triggers, a place, and workers. The workers run in their own processes,
//! which tests can pause and kill, or in the process of the test.

use std::path::Path;
use std::process::Stdio;

use anyhow::{Context, Result};
use runledger::{App, Db, Payload, RunHandle, Timings, Worker};
use rustix::process::{Pid, Signal, kill_process};
use sqlx::{Connection, PgConnection};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use uuid::Uuid;

use super::place::Deleted;
use super::progress::Watch;
use super::{
    Event, Excuses, Facts, Place, Violations, What, attempts, cancels, deadlines, graphs, jobs, joins,
    ownership, permits, progress, sagas, signals, slices, steps, terminal,
};
use crate::{Fixture, PATIENCE, eventually};

/// The environment of a scenario.
#[derive(Debug)]
pub struct Fleet {
    /// The client of the test.
    pub db: Db,
    /// Where the bodies record what they do.
    pub place: Place,
    url: String,
    watch: Watch,
    _fixture: Fixture,
    _folder: Deleted,
}

impl Fleet {
    /// Creates a database and starts watching it.
    ///
    /// # Errors
    /// If the database refuses, or if there is no space for the folder.
    pub async fn new() -> Result<Self> {
        let fixture = Fixture::new().await;
        let url = fixture.database.url().to_owned();
        Facts::record(&mut PgConnection::connect(&url).await?).await?;
        let watch = Watch::start(&url);
        let place = Place::new()?;
        let folder = Deleted(place.clone());
        Ok(Self { db: fixture.db.clone(), place, url, watch, _fixture: fixture, _folder: folder })
    }

    /// The connection string of the database.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Opens a connection that the engine does not use.
    ///
    /// # Errors
    /// If the server refuses.
    pub async fn connect(&self) -> Result<PgConnection> {
        Ok(PgConnection::connect(&self.url).await?)
    }

    /// Starts a worker process. Returns once it claims runs.
    ///
    /// # Errors
    /// If the process does not start.
    pub async fn process(&self, program: impl AsRef<Path>) -> Result<Process> {
        Process::start(Command::new(program.as_ref()).arg(&self.url)).await
    }

    /// As [`process`](Self::process), with more arguments.
    ///
    /// # Errors
    /// If the process does not start.
    pub async fn process_with(&self, program: impl AsRef<Path>, arguments: &[&str]) -> Result<Process> {
        Process::start(Command::new(program.as_ref()).arg(&self.url).args(arguments)).await
    }

    /// Starts a worker in this process that connects to another address.
    ///
    /// # Errors
    /// If the worker does not start.
    pub async fn worker(&self, url: &str) -> Result<Worker> {
        let db = Db::connect(url).await?;
        Ok(jobs::app(&db).start().await?)
    }

    /// Starts a worker in this process that serves only canaries.
    ///
    /// # Errors
    /// If the worker does not start.
    pub async fn worker_of_canaries(&self) -> Result<Worker> {
        let db = Db::connect(&self.url).await?;
        let canary = runledger::jobs![jobs::check_canary];
        Ok(App::new(db).with(canary).timings(Timings::FAST).start().await?)
    }

    /// Waits until the body of a run has started `n_starts` times. Returns the last start.
    ///
    /// # Errors
    /// If the history cannot be read.
    ///
    /// # Panics
    /// If the body does not start.
    pub async fn started(&self, run_id: Uuid, n_starts: usize) -> Result<Event> {
        let starts = || async {
            let mut events = self.place.events().unwrap_or_default();
            events.retain(|event| event.what == What::Start && event.run_id == run_id);
            events
        };
        let starts = eventually(starts, |starts| starts.len() >= n_starts).await;
        starts.into_iter().nth(n_starts - 1).context("it has not begun")
    }

    /// Waits until every run is terminal or blocked, to show that no run is stuck after the
    /// scenario.
    ///
    /// # Errors
    /// If the database does not answer.
    ///
    /// # Panics
    /// If a run does not end.
    pub async fn drained(&self) -> Result<()> {
        let open = || async {
            sqlx::query_scalar::<_, i64>(
                "select count(*) from runledger.run_state where state in ('queued', 'running', 'waiting')",
            )
            .fetch_one(self.db.pool())
            .await
            .unwrap_or(i64::MAX)
        };
        eventually(open, |open| *open == 0).await;
        Ok(())
    }

    /// Returns everything that contradicts a guarantee. `paused` lists the processes that were
    /// paused.
    ///
    /// # Errors
    /// If the database does not answer.
    pub async fn verdict(self, paused: &[u32]) -> Result<Violations> {
        let mut violations = self.watch.end().await?;
        let mut connection = PgConnection::connect(&self.url).await?;
        let (events, facts) = (self.place.events()?, Facts::load(&mut connection).await?);
        // Only a pause between the guard and the body could cause a stale start. No test pauses
        // there.
        violations.extend(steps::stale_starts(&events, &facts, &Excuses::default()));
        let excuses = Excuses::always(paused);
        violations.extend(contradictions(&mut connection, &events, &facts, &excuses).await?);
        violations.extend(cancels::outlived(&facts, PATIENCE));
        violations.extend(permits::exceeded(&facts));
        violations.extend(sagas::disordered(&events, &facts));
        violations.extend(slices::forgotten(&events, &facts));
        Ok(violations)
    }
}

/// Returns the output of a run that must complete.
///
/// # Panics
/// If the run fails, or does not end in time.
pub async fn completes<T: Payload>(run: &RunHandle<T>) -> T {
    let result = run.result_within(PATIENCE).await;
    result.unwrap_or_else(|error| unreachable!("run {} has to complete: {error}", run.id()))
}

/// Returns everything that contradicts a guarantee, whatever happened to the processes.
///
/// Stale starts are not included: if processes are paused at any point, their bodies may start
/// late.
///
/// # Errors
/// If the database does not answer.
pub async fn contradictions(
    connection: &mut PgConnection,
    events: &[Event],
    facts: &Facts,
    excuses: &Excuses,
) -> Result<Violations> {
    let mut violations = steps::repeated(events, facts);
    violations.extend(steps::unexplained_overlaps(events, excuses));
    violations.extend(steps::not_once(connection).await?);
    violations.extend(steps::resting_on_nothing(connection).await?);
    violations.extend(ownership::stale_writes(facts));
    violations.extend(ownership::foreign_claims(connection).await?);
    violations.extend(signals::wrong(connection).await?);
    violations.extend(joins::wrong(connection).await?);
    violations.extend(graphs::wrong(connection, facts.put_back_s).await?);
    violations.extend(terminal::changes(connection).await?);
    violations.extend(attempts::miscounted(facts));
    violations.extend(deadlines::early(connection, facts.put_back_s).await?);
    violations.extend(progress::lost(connection).await?);
    Ok(violations)
}

/// A worker process. Dropping this value kills it.
#[derive(Debug)]
pub struct Process {
    /// The id of the worker at its start.
    pub worker_id: i64,
    /// Its process id.
    pub pid: u32,
    child: Child,
}

impl Process {
    /// Starts a worker. Returns once it prints `ready` and its id.
    ///
    /// # Errors
    /// If the process does not start.
    pub async fn start(command: &mut Command) -> Result<Self> {
        let mut child = command
            // Reading the symbols of a debug build takes longer than any canary may wait.
            .env("RUST_BACKTRACE", "0")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let out = child.stdout.take().context("the worker has no output")?;
        let line = BufReader::new(out).lines().next_line().await?.unwrap_or_default();
        let worker_id = line.strip_prefix("ready ").with_context(|| format!("the worker said `{line}`"))?;
        let pid = child.id().context("the worker has gone")?;
        Ok(Self { worker_id: worker_id.parse()?, pid, child })
    }

    /// Sends SIGTERM and waits until the process ends. Returns whether it exited with success.
    ///
    /// # Errors
    /// If the process has already ended.
    pub async fn terminate(&mut self) -> Result<bool> {
        self.signal(Signal::TERM)?;
        Ok(self.child.wait().await?.success())
    }

    /// Whether the process has ended.
    pub fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Pauses the process (SIGSTOP).
    ///
    /// # Errors
    /// If the process has ended.
    pub fn pause(&self) -> Result<()> {
        self.signal(Signal::STOP)
    }

    /// Resumes the process (SIGCONT).
    ///
    /// # Errors
    /// If the process has ended.
    pub fn resume(&self) -> Result<()> {
        self.signal(Signal::CONT)
    }

    /// Kills the process (SIGKILL) and waits until it has ended.
    ///
    /// # Errors
    /// If the wait fails.
    pub async fn kill(mut self) -> Result<()> {
        Ok(self.child.kill().await?)
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        let pid = Pid::from_raw(i32::try_from(self.pid)?).context("no process has the number 0")?;
        Ok(kill_process(pid, signal)?)
    }
}
