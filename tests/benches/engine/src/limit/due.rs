//! Rows that fall due at once: while a snapshot is held, and as many as there are sleepers.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use sqlx::PgConnection;
use tokio::task::JoinHandle;
use uuid::Uuid;

use super::drain::{Claimer, session};
use super::{WHO, check};
use crate::Res;
use crate::arguments::Arguments;
use crate::line::Line;
use crate::pinned::{Contender, Sizes, rate};
use crate::work::{connect, execute, payload};

const FILL: usize = 20_000;

/// Sleepers created per second, at least, on a slow machine.
const MADE_A_SECOND: u64 = 15_000;

/// The pause after a claim that found nothing.
const POLL: Duration = Duration::from_millis(2);

const MAKE: &str = "
    with run as (insert into bare.run (id, job, queue, input) select id, 'j', 'q', $2::text::json from unnest($1::uuid[]) as u (id) returning id),
    step as (insert into bare.step (run_id, key, output) select id, 'note', $2::text::json from run where $4)
    insert into bare.ready (queue, priority, ready_at, id) select 'q', 0, $3::text::timestamptz, id from run";

/// One claimer runs all the time, as in a worker process.
pub async fn snapshot(url: &str, arguments: &Arguments) -> Res<Line> {
    let sizes = Sizes::of(arguments);
    let ahead = arguments.get("ahead", sizes.ahead());
    let (done, mut claimer) = (Arc::new(AtomicUsize::new(0)), Claimer::open(url).await?);
    let count = Arc::clone(&done);
    let worker = tokio::spawn(async move {
        loop {
            match claimer.drain(usize::MAX).await? {
                0 => tokio::time::sleep(POLL).await,
                n => drop(count.fetch_add(n, Ordering::Relaxed)),
            }
        }
    });
    let mut bare = Bare { connection: session(url).await?, ahead, n: 0, done, worker };
    Ok(sizes
        .measure(WHO, url, arguments, &mut bare)
        .await?
        .noting("claims and settlements of 100 by one connection that runs on, polled each 2 ms, no bodies"))
}

struct Bare {
    connection: PgConnection,
    ahead: u64,
    /// Jobs inserted so far.
    n: usize,
    done: Arc<AtomicUsize>,
    worker: JoinHandle<Res<()>>,
}

impl Bare {
    async fn all_ended(&mut self) -> Res<()> {
        while self.done.load(Ordering::Relaxed) < self.n {
            if self.worker.is_finished() {
                return Err("the claimer stopped".into());
            }
            tokio::time::sleep(POLL).await;
        }
        Ok(())
    }
}

impl Contender for Bare {
    const ENDED: &'static str = "select count(*) from bare.outcome";

    async fn round(&mut self, jobs: usize) -> Res<f64> {
        let due = after(&mut self.connection, self.ahead).await?;
        make(&mut self.connection, &due, jobs, false).await?;
        self.n += jobs;
        tokio::time::sleep(left(&mut self.connection, &due).await?).await;
        self.all_ended().await?;
        Ok(rate(jobs, ended(&mut self.connection, &due, jobs).await?))
    }

    async fn begin_load(&mut self) -> Res<()> {
        Ok(())
    }

    async fn enqueue(&mut self, jobs: usize) -> Res<()> {
        let due = after(&mut self.connection, 0).await?;
        self.n += jobs;
        make(&mut self.connection, &due, jobs, false).await
    }

    async fn end_load(&mut self) -> Res<()> {
        self.all_ended().await
    }
}

/// Runs with a recorded step fall due at once. The limit claims them with that step and settles
/// them.
pub async fn sleepers(url: &str, arguments: &Arguments) -> Res<Line> {
    let runs = arguments.count("runs", 1_000_000);
    let mut connection = session(url).await?;
    let due = after(&mut connection, arguments.get("ahead", 10 + runs as u64 / MADE_A_SECOND)).await?;
    make(&mut connection, &due, runs, true).await?;
    execute(&mut connect(url).await?, "vacuum analyze").await?;
    let mut claimer = Claimer::open(url).await?.with_steps();
    tokio::time::sleep(left(&mut connection, &due).await?).await;
    let mut done = 0;
    while done < runs {
        done += claimer.drain(usize::MAX).await?;
    }
    check(url, "bare.outcome", runs).await?;
    let took = ended(&mut connection, &due, runs).await?;
    Ok(Line::rate(WHO, "sleepers", arguments, runs, took)
        .noting("claims, with the step of each, and settlements of 100, one connection, no bodies"))
}

/// The instant `seconds` from now, by the database's clock.
async fn after(connection: &mut PgConnection, seconds: u64) -> Res<String> {
    let query = "select (clock_timestamp() + make_interval(secs => $1))::text";
    let seconds = i32::try_from(seconds)?;
    Ok(sqlx::query_scalar(query).bind(f64::from(seconds)).fetch_one(connection).await?)
}

/// The time until `due`. Fails if it has passed.
async fn left(connection: &mut PgConnection, due: &str) -> Res<Duration> {
    let query = "select (extract(epoch from $1::text::timestamptz - clock_timestamp()))::float8";
    let left: f64 = sqlx::query_scalar(query).bind(due).fetch_one(connection).await?;
    Duration::try_from_secs_f64(left)
        .map_err(|_| "the rows fell due before all was ready: `--ahead` more seconds".into())
}

async fn make(connection: &mut PgConnection, due: &str, n: usize, with_steps: bool) -> Res<()> {
    for first in (0..n).step_by(FILL) {
        let ids: Vec<Uuid> = (first..(first + FILL).min(n)).map(|_| Uuid::now_v7()).collect();
        let query = sqlx::query(MAKE).bind(ids).bind(payload(first)).bind(due).bind(with_steps);
        query.execute(&mut *connection).await?;
    }
    Ok(())
}

/// The time from `since` until the last of `n` rows was settled. Fails if another number was.
async fn ended(connection: &mut PgConnection, since: &str, n: usize) -> Res<Duration> {
    let query = "select count(*), (extract(epoch from max(finished_at) - $1::text::timestamptz))::float8
                 from bare.outcome where finished_at >= $1::text::timestamptz";
    let (found, seconds): (i64, Option<f64>) =
        sqlx::query_as(query).bind(since).fetch_one(connection).await?;
    match seconds {
        Some(seconds) if usize::try_from(found)? == n => Ok(Duration::try_from_secs_f64(seconds)?),
        _ => Err(format!("{found} of {n} rows are settled").into()),
    }
}
