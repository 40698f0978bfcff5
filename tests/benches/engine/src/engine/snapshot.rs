//! Drains while an open snapshot blocks vacuum: with one long-running worker process, or with a new
//! one per round.

use std::time::Duration;

use runledger::{Db, enqueue_all};
use sqlx::PgConnection;

use super::drain::no_op;
use super::process::Process;
use super::{WHO, client, copies, ended};
use crate::Res;
use crate::arguments::Arguments;
use crate::line::Line;
use crate::pinned::{Contender, Sizes, rate};
use crate::work::{NOTE, connect, now, until};

/// With `--fresh 1` each round starts a new worker. Its first scan reads all dead index entries
/// that earlier rounds left in the queue.
pub async fn measure(url: &str, arguments: &Arguments) -> Res<Line> {
    let sizes = Sizes::of(arguments);
    let ahead = Duration::from_secs(arguments.get("ahead", sizes.ahead()));
    let is_fresh = arguments.get("fresh", 0) == 1;
    let concurrency = arguments.count("concurrency", 512);
    let (db, connection) = (client(url, 4).await?, connect(url).await?);
    let mut workers = Workers { url, db, connection, concurrency, ahead, is_fresh, n: 0, running: None };
    let notes = if is_fresh {
        "a worker process is started for each round, on jobs that are there; from its start until the last was recorded as completed"
    } else {
        workers.start().await?;
        "one worker process all the time; from the instant at which all jobs fall due until the last was recorded as completed"
    };
    Ok(sizes.measure(WHO, url, arguments, &mut workers).await?.noting(notes))
}

struct Workers<'u> {
    url: &'u str,
    db: Db,
    connection: PgConnection,
    concurrency: usize,
    ahead: Duration,
    /// Jobs enqueued so far.
    n: usize,
    is_fresh: bool,
    running: Option<Process>,
}

impl Workers<'_> {
    async fn start(&mut self) -> Res<()> {
        self.running = Some(Process::start(self.url, &[("concurrency", self.concurrency)]).await?);
        Ok(())
    }

    async fn stop(&mut self) -> Res<()> {
        match self.running.take() {
            Some(process) => process.stop().await,
            None => Ok(()),
        }
    }

    async fn all_ended(&mut self) -> Res<()> {
        until(&mut self.connection, Self::ENDED, self.n).await
    }

    async fn make(&mut self, jobs: usize, delay: Duration) -> Res<()> {
        let first = no_op(0, NOTE).delay(delay).enqueue(&self.db).await?.id();
        self.n += jobs;
        copies::rows(&mut self.connection, first, &["run", "ready"], jobs - 1).await
    }
}

impl Contender for Workers<'_> {
    const ENDED: &'static str = "select count(*) from runledger.outcome where state = 'completed'";

    async fn round(&mut self, jobs: usize) -> Res<f64> {
        let since = if self.is_fresh {
            self.make(jobs, Duration::ZERO).await?;
            let since = now(&mut self.connection).await?;
            self.start().await?;
            self.all_ended().await?;
            self.stop().await?;
            since
        } else {
            self.make(jobs, self.ahead).await?;
            let (due, left) = copies::due(&mut self.connection).await?;
            tokio::time::sleep(left).await;
            self.all_ended().await?;
            due
        };
        Ok(rate(jobs, ended::nth(&mut self.connection, "no_op", &since, jobs).await?))
    }

    async fn begin_load(&mut self) -> Res<()> {
        if self.is_fresh { self.start().await } else { Ok(()) }
    }

    async fn enqueue(&mut self, jobs: usize) -> Res<()> {
        self.n += jobs;
        Ok(enqueue_all((0..jobs).map(|n| no_op(n as u64, NOTE)), &self.db).await.map(drop)?)
    }

    async fn end_load(&mut self) -> Res<()> {
        self.all_ended().await?;
        if self.is_fresh { self.stop().await } else { Ok(()) }
    }
}
