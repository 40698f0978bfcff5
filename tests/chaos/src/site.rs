//! The environment of a scenario: a database with audit triggers, worker processes, a client that
//! enqueues runs, and the final checkers.

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use runledger::Db;
use runledger_tests::Fixture;
use runledger_tests::check::calls::{Submission, Told, doubled_keys, lost_or_invented, torn};
use runledger_tests::check::fleet::{Process, contradictions};
use runledger_tests::check::place::now_us;
use runledger_tests::check::{
    Event, Excuses, Facts, Place, What, cancels, jobs, output, pauses, permits, sagas, shapes, signals,
    slices, steps,
};
use sqlx::postgres::PgConnectOptions;
use sqlx::{Connection, PgConnection};
use tokio::process::Command;
use uuid::Uuid;

use crate::WORKER;
use crate::load::jobs::LINES;
use crate::load::{Client, History, decide_unheard, repeat};
use crate::monitor::Monitor;
use crate::pace::Pace;
use crate::scenario::Setting;
use crate::summary::{SoFar, Summary, lock};
use crate::tail::Content;

/// The limit of the tail, in which every run and then a canary must end.
const TAIL: Duration = Duration::from_secs(90);

/// How long a worker may take to start under faults.
const START: Duration = Duration::from_secs(60);

/// A database, and what is known about it outside.
#[derive(Debug)]
pub struct Site {
    /// The files in which bodies record their starts and ends.
    pub place: Place,
    /// The number of injected faults. Scenarios count them.
    pub n_faults: usize,
    /// Remarks for the reader of the summary.
    pub notes: Vec<String>,
    /// Violations that the scenario itself found.
    pub violations: Vec<String>,
    /// Data of replaced servers that their successors lack.
    pub lost: Content,
    /// By how many seconds each process's clock is wrong.
    pub clocks: HashMap<u32, i64>,
    /// Every offset in seconds that the server's clock had, if the scenario set it.
    pub server_clock: Vec<i64>,
    /// The monitor that checks every second.
    pub monitor: Monitor,
    /// Whether workers may be marked dead. False if none dies and none is silent for long.
    pub may_reclaim: bool,
    /// Whether some run must have continued in another attempt. Otherwise the faults had no effect.
    pub must_recover: bool,
    /// The scenario's own calls.
    pub asked: Vec<Submission>,
    /// Runs that need not complete.
    pub hopeless: BTreeSet<Uuid>,
    url: String,
    address: String,
    folder: PathBuf,
    excuses: Excuses,
    pace: Pace,
    n_workers: usize,
    began: Instant,
    began_us: i64,
    so_far: SoFar,
    fixture: Option<Fixture>,
}

impl Site {
    /// Creates a site with a new database on the shared server.
    ///
    /// # Errors
    /// The database refused, or the folder cannot be written.
    pub async fn new(setting: &Setting) -> Result<Self> {
        let fixture = Fixture::new().await;
        let url = fixture.database.url().to_owned();
        let mut site = Self::on(setting, &url).await?;
        site.fixture = Some(fixture);
        Ok(site)
    }

    /// Creates a site with an empty database on the scenario's own server. No network fault may cut
    /// off this address.
    ///
    /// # Errors
    /// The database refused, or the folder cannot be written.
    pub async fn on(setting: &Setting, url: &str) -> Result<Self> {
        drop(Db::connect(url).await?);
        Facts::record(&mut PgConnection::connect(url).await?).await?;
        let place = Place::within(setting.folder.join("place"))?;
        // The bodies of the checks wait at gates that only the checks' own tests close.
        place.open("all")?;
        Ok(Self {
            place,
            n_faults: 0,
            notes: Vec::new(),
            violations: Vec::new(),
            lost: Content::default(),
            may_reclaim: true,
            must_recover: false,
            asked: Vec::new(),
            hopeless: BTreeSet::new(),
            clocks: HashMap::new(),
            server_clock: Vec::new(),
            url: url.to_owned(),
            address: url.to_owned(),
            folder: setting.folder.clone(),
            excuses: Excuses::default(),
            pace: Pace::FAST,
            n_workers: 0,
            monitor: Monitor::start(url, SoFar::clone(&setting.so_far)),
            began: Instant::now(),
            began_us: now_us(),
            so_far: SoFar::clone(&setting.so_far),
            fixture: None,
        })
    }

    /// Returns the address of the database.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns the address for workers and clients, before their proxies.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Gives workers and clients another address, with another role or through a pooler.
    pub fn set_address(&mut self, address: String) {
        self.address = address;
    }

    /// Opens a connection outside the engine, without timeouts.
    ///
    /// # Errors
    /// The server refused the connection.
    pub async fn connect(&self) -> Result<PgConnection> {
        Ok(PgConnection::connect_with(&patient(&self.url)?).await?)
    }

    /// Starts a worker process. Its log is in the scenario's folder.
    ///
    /// # Errors
    /// The worker did not start.
    pub async fn worker(&mut self) -> Result<Process> {
        let url = self.address.clone();
        self.worker_at(&url, &[]).await
    }

    /// Starts a worker process at another address, with
    /// [`worker::Options`](crate::load::worker::Options). Retries for 60 s.
    ///
    /// # Errors
    /// The worker did not start.
    pub async fn worker_at(&mut self, url: &str, options: &[&str]) -> Result<Process> {
        let began = Instant::now();
        loop {
            match Process::start(&mut self.command(url, options)?).await {
                Err(error) if began.elapsed() > START => return Err(error),
                Err(_) => tokio::time::sleep(Duration::from_millis(200)).await,
                started => return started,
            }
        }
    }

    /// Returns the command that starts a worker process, for the caller to change.
    ///
    /// # Errors
    /// The worker's log cannot be created.
    pub fn command(&mut self, url: &str, options: &[&str]) -> Result<Command> {
        self.command_of(Command::new(std::env::current_exe()?), url, options)
    }

    /// Like [`command`](Self::command), with a command that runs this program.
    ///
    /// # Errors
    /// The worker's log cannot be created.
    pub fn command_of(&mut self, mut command: Command, url: &str, options: &[&str]) -> Result<Command> {
        self.n_workers += 1;
        self.pace = self.pace.max(Pace::of(options));
        self.monitor.expect(self.pace);
        let log = File::create(self.folder.join(format!("worker-{}.log", self.n_workers)))?;
        command.args([WORKER, url]).args(options).stderr(log);
        Ok(command)
    }

    /// Starts the client.
    ///
    /// # Errors
    /// The client cannot connect.
    pub async fn client(&self, setting: &Setting) -> Result<Client> {
        self.client_at(&self.address, setting).await
    }

    /// Starts the client at another address.
    ///
    /// # Errors
    /// The client cannot connect.
    pub async fn client_at(&self, url: &str, setting: &Setting) -> Result<Client> {
        let db = Db::connect(url).await?;
        Ok(Client::start(db, self.place.clone(), setting.rate, setting.seed))
    }

    /// Records that a process is paused or cut off from now on. Until it
    /// [recovers](Self::recovers), its bodies may start too late, and may run at the same time as
    /// bodies of other attempts.
    pub fn excuse(&mut self, process: &Process) {
        self.excuses.begin(process.pid);
    }

    /// Records that the fault of a process is over. The process must soon know which runs it lost.
    pub fn recovers(&mut self, process: &Process) {
        self.excuses.end(process.pid, self.pace.recovery());
    }

    /// Ends a scenario after its faults, with at least one live worker. Every run and a final
    /// canary must end, and no checker may find a violation.
    ///
    /// # Errors
    /// The database did not answer.
    pub async fn judge(self, client: Client) -> Result<Summary> {
        let history = client.end().await?;
        self.judge_history(history).await
    }

    /// Like [`judge`](Self::judge), with a client's history.
    ///
    /// # Errors
    /// The database did not answer.
    pub async fn judge_history(mut self, mut history: History) -> Result<Summary> {
        let mut connection = self.connect().await?;
        self.notes.extend(history.counts());
        let mut submissions = std::mem::take(&mut history.calls);
        submissions.append(&mut self.asked);
        if !self.lost.is_empty() {
            repeat(&Db::connect(&self.url).await?, &history).await?;
        }
        decide_unheard(&Db::connect(&self.url).await?, &submissions).await?;
        submissions.extend(self.tail(&mut connection).await?);
        self.violations.extend(self.monitor.end().await?);
        if self.n_faults == 0 {
            self.violations.push("no fault was injected, so that nothing is shown".to_owned());
        }
        if !submissions.iter().any(|submission| submission.told == Told::Ok) {
            self.violations.push("no call was acknowledged, so that nothing is shown".to_owned());
        }
        let (mut events, mut facts) = (self.place.events()?, Facts::load(&mut connection).await?);
        for event in &mut events {
            event.at_us -= self.clocks.get(&event.pid).copied().unwrap_or_default() * 1_000_000;
        }
        facts.at_real_time(self.began_us, &self.server_clock);
        self.judge_visits(&mut history, &events, &facts);
        if !self.lost.is_empty() {
            let there = Content::of(&self.url).await?.runs;
            let n_calls = self.lost.forgive(&mut submissions, &there);
            let n_bodies = self.lost.forget_bodies(&mut events, &facts) / 2;
            self.notes.push(format!(
                "lost with servers: {n_calls} acknowledged calls, and the claims of {n_bodies} bodies"
            ));
        }
        self.violations.extend(steps::stale_starts(&events, &facts, &self.excuses));
        self.violations.extend(contradictions(&mut connection, &events, &facts, &self.excuses).await?);
        let (n_shapes, misended) = shapes::wrong(&Db::connect(&self.url).await?).await?;
        self.violations.extend(misended);
        if n_shapes > 0 {
            self.notes.push(format!("{n_shapes} graphs of random shapes"));
        }
        self.violations.extend(lost_or_invented(&mut connection, &submissions).await?);
        self.violations.extend(doubled_keys(&mut connection, &submissions).await?);
        self.violations.extend(torn(&mut connection).await?);
        self.hopeless.append(&mut history.hopeless);
        self.hopeless.extend(history.ends.keys());
        self.violations.extend(uncompleted(&mut connection, &self.hopeless).await?);
        if !self.may_reclaim {
            self.violations.extend(reclaimed(&mut connection).await?);
        }
        let n_unknown = submissions.iter().filter(|submission| submission.told == Told::Unknown).count();
        if n_unknown > 0 {
            self.notes.push(format!("{n_unknown} of {} calls ended without an answer", submissions.len()));
        }
        let n_recoveries = facts.n_recoveries();
        if self.must_recover && n_recoveries == 0 {
            self.violations.push("no run had to go on elsewhere, so that nothing is shown".to_owned());
        }
        let n_started: i64 =
            sqlx::query_scalar("select count(*) from runledger.run").fetch_one(&mut connection).await?;
        Ok(Summary {
            n_started: usize::try_from(n_started)?,
            n_ended: facts.ends.len(),
            n_steps: facts.steps.len(),
            n_faults: self.n_faults,
            n_recoveries,
            n_stale_starts: steps::late(&events, &facts, What::Start).count(),
            n_fenced: steps::late(&events, &facts, What::End).count(),
            violations: std::mem::take(&mut self.violations),
            notes: std::mem::take(&mut self.notes),
            not_run: None,
            took: self.began.elapsed(),
        })
    }

    /// Checks the client's actions on runs, except runs whose data a server may have lost.
    fn judge_visits(&mut self, history: &mut History, events: &[Event], facts: &Facts) {
        let touched = self.lost.touched(events, history);
        history.forget(&touched);
        let facts = facts.without(&touched);
        self.violations.extend(signals::misheard(&history.signals, events, &facts));
        self.violations.extend(pauses::broken(&history.pauses, events, &facts, &self.excuses));
        self.violations.extend(history.decided_by_revoked_links());
        self.violations.extend(history.misended(&facts));
        self.violations.extend(cancels::outlived(&facts, self.pace.bound()));
        self.violations.extend(permits::exceeded(&facts));
        self.violations.extend(sagas::disordered(events, &facts));
        self.violations.extend(slices::forgotten(events, &facts));
        self.violations.extend(output::garbled(&facts, "chaos.ten", LINES));
    }

    /// Waits until every run has ended, then enqueues a canary and returns it. A run parked for
    /// crashes that its own body did not cause is a violation: an operator would find an innocent
    /// run blocked.
    async fn tail(&mut self, connection: &mut PgConnection) -> Result<Option<Submission>> {
        let (began, db) = (Instant::now(), Db::connect(&self.url).await?);
        loop {
            let open = n_open(connection).await?;
            if open == 0 {
                break;
            }
            if began.elapsed() > TAIL {
                self.violations.push(format!("{open} runs have not ended {TAIL:?} after the last fault"));
                self.violations.extend(standing(connection).await?);
                self.violations.extend(blocking(connection).await?);
                return Ok(None);
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let accused = crashed_too_often(connection, &self.hopeless).await?;
        if let Some(first) = accused.first() {
            let n_accused = accused.len();
            self.violations.push(format!(
                "{n_accused} runs are parked for crashes that others caused, for one run {first}"
            ));
        }
        let canary = jobs::check_canary().enqueue(&db).await?;
        if let Err(error) = canary.result_within(TAIL).await {
            self.violations
                .push(format!("a canary that was enqueued after the last fault did not end: {error}"));
        }
        Ok(Some(Submission::acknowledged(canary.id())))
    }
}

impl Drop for Site {
    /// Passes on what an unfinished scenario has found.
    fn drop(&mut self) {
        let mut so_far = lock(&self.so_far);
        so_far.n_faults = self.n_faults;
        so_far.violations.append(&mut self.violations);
        so_far.notes.append(&mut self.notes);
    }
}

/// Options for sessions of the harness: no timeouts, even if a scenario sets them for the engine. A
/// slow server must still answer them.
fn patient(url: &str) -> Result<PgConnectOptions, sqlx::Error> {
    let options: PgConnectOptions = url.parse()?;
    Ok(options.options([("statement_timeout", "0"), ("lock_timeout", "0")]))
}

async fn n_open(connection: &mut PgConnection) -> Result<i64, sqlx::Error> {
    sqlx::query_scalar(
        "select count(*) from runledger.run
        where not exists (select from runledger.outcome where outcome.run_id = run.run_id)
            and not exists (select from runledger.waiting where waiting.run_id = run.run_id and waiting.state = 'blocked')",
    )
    .fetch_one(connection)
    .await
}

/// Runs that are blocked because their workers crashed repeatedly, without those whose own bodies
/// crash.
async fn crashed_too_often(
    connection: &mut PgConnection,
    hopeless: &BTreeSet<Uuid>,
) -> Result<Vec<Uuid>, sqlx::Error> {
    let hopeless: Vec<Uuid> = hopeless.iter().copied().collect();
    sqlx::query_scalar(
        "select run_id from runledger.run_state where state = 'blocked' and error ->> 'kind' = 'crash' and run_id <> all ($1)",
    )
    .bind(hopeless)
    .fetch_all(connection)
    .await
}

/// Up to ten runs that have not ended, with their state.
async fn standing(connection: &mut PgConnection) -> Result<Vec<String>, sqlx::Error> {
    sqlx::query_scalar(
        "select format('run %s of `%s` is %s (cause %s, ready at %s, worker %s, %s crashes): %s', run_id, job, state, cause, ready_at, worker_id,
            crashes, error ->> 'message')
        from runledger.run_state where state not in ('completed', 'failed', 'cancelled') order by run_id limit 10",
    )
    .fetch_all(connection)
    .await
}

/// Sessions that block others, with their last statement.
async fn blocking(connection: &mut PgConnection) -> Result<Vec<String>, sqlx::Error> {
    sqlx::query_scalar(
        "select format('session %s (%s since %s) keeps session %s waiting: `%s` before `%s`', blocker.pid, blocker.state, blocker.state_change,
            waiting.pid, split_part(blocker.query, E'\\n', 1), split_part(waiting.query, E'\\n', 1))
        from pg_stat_activity as waiting, unnest(pg_blocking_pids(waiting.pid)) as by (pid)
        join pg_stat_activity as blocker using (pid)
        where waiting.datname = current_database()",
    )
    .fetch_all(connection)
    .await
}

/// Runs that failed, were cancelled or are blocked. No fault counts as a failure of a body.
async fn uncompleted(
    connection: &mut PgConnection,
    hopeless: &BTreeSet<Uuid>,
) -> Result<Vec<String>, sqlx::Error> {
    let hopeless: Vec<Uuid> = hopeless.iter().copied().collect();
    sqlx::query_scalar(
        "select format('run %s of `%s` is %s: %s', run_id, job, state, error ->> 'message')
        from runledger.run_state
        where state in ('failed', 'cancelled', 'blocked')
            and (state = 'blocked' or (job <> 'check.adds' and coalesce(graph, '') <> 'check.shape'))
            and coalesce(node, '') not like 'hopeless%' and run_id <> all ($1) and (parent_id is null or parent_id <> all ($1))
        order by run_id",
    )
    .bind(hopeless)
    .fetch_all(connection)
    .await
}

/// Workers that were marked dead, and runs that were reclaimed from them.
async fn reclaimed(connection: &mut PgConnection) -> Result<Vec<String>, sqlx::Error> {
    sqlx::query_scalar(
        "select format('worker %s was declared dead, and lives: %s', worker_id, died_why) from runledger.worker where state = 'dead' and died_why <> 'stopped'
        union all
        select format('run %s was taken from a living worker', run_id) from audit.recovery where cause = 'crashed'",
    )
    .fetch_all(connection)
    .await
}

/// Creates the folder of one scenario, inside the program's own folder.
///
/// # Errors
/// The folder cannot be created.
pub fn folder(name: &str) -> Result<PathBuf> {
    let path = base().join(name);
    std::fs::create_dir_all(&path).with_context(|| path.display().to_string())?;
    Ok(path)
}

/// Returns the program's own folder.
#[must_use]
pub fn base() -> PathBuf {
    Path::new("/var/tmp").join(format!("runledger-chaos-{}", std::process::id()))
}
