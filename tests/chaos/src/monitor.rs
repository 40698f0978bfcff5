//! Checks every second, from outside the fleet, what must always be true of the database.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use runledger_tests::check::{Violations, progress};
use sqlx::{Connection, PgConnection, Row};
use tokio::sync::{Mutex, OwnedMutexGuard, watch};
use tokio::task::JoinHandle;
use uuid::Uuid;

use crate::pace::Pace;
use crate::summary::{SoFar, Summary, lock};

/// The interval between checks.
const EVERY: Duration = Duration::from_secs(1);

/// How long a check may take before the monitor drops its connection. Faults affect this connection
/// too.
const PATIENCE: Duration = Duration::from_secs(20);

/// A scenario needs at least one completed check per this many seconds, however often its server is
/// down …
const SPARSE: u64 = 10;

/// … and at least this many.
const FEWEST: u64 = 3;

/// Workers without a heartbeat for longer than any fault lasts that are not marked dead.
const SILENT: &str = "
select format('worker %s has been silent since %s, and is not declared dead', worker_id, heartbeat_at)
from runledger.worker
where state <> 'dead' and heartbeat_at < clock_timestamp() - $1::text::interval";

/// The database's counts for the summary table.
const COUNTS: &str = "
select (select count(*) from runledger.run), (select count(*) from runledger.outcome), (select count(*) from runledger.step),
    (select count(*) from audit.recovery where cause <> 'handed back')";

/// The highest claim number seen for each leased run.
pub type Claims = HashMap<Uuid, i32>;

/// A task that checks the database every second until it is stopped.
#[derive(Debug)]
pub struct Monitor {
    claims: Arc<Mutex<Claims>>,
    pace: watch::Sender<Pace>,
    stop: watch::Sender<bool>,
    task: JoinHandle<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    violations: BTreeSet<String>,
    n_looks: u64,
    /// The time in which it could check.
    lasted: Duration,
}

impl Seen {
    /// Returns all violations. Too few checks are a violation as well.
    fn judge(self) -> Violations {
        let fewest = FEWEST.max(self.lasted.as_secs() / SPARSE);
        let mut violations: Violations = self.violations.into_iter().collect();
        if self.n_looks < fewest {
            violations.push(format!(
                "the monitor had {} answers in {} s, and needs {fewest}",
                self.n_looks,
                self.lasted.as_secs()
            ));
        }
        violations
    }
}

impl Monitor {
    /// Starts to watch the database, at an address that only faults of the server itself cut off.
    #[must_use]
    pub fn start(url: &str, so_far: SoFar) -> Self {
        let (stop, mut stopped) = watch::channel(false);
        let (pace, paces) = watch::channel(Pace::FAST);
        let url = url.to_owned();
        let claims = Arc::<Mutex<Claims>>::default();
        let known = Arc::clone(&claims);
        let task = tokio::spawn(async move {
            let mut seen = Seen::default();
            let mut connection = None;
            while !*stopped.borrow() {
                let mut claims = known.lock().await;
                let (began, bound) = (Instant::now(), paces.borrow().bound());
                let look = async {
                    let violations = look(&url, &mut connection, &mut claims, bound).await?;
                    count(connection.as_mut(), &so_far).await?;
                    Ok::<_, sqlx::Error>(violations)
                };
                let looked = tokio::time::timeout(PATIENCE, look).await;
                drop(claims);
                match looked {
                    Ok(Ok(violations)) => {
                        seen.n_looks += 1;
                        seen.violations.extend(violations);
                    }
                    // The server is down or ended the session. The next check opens a new session.
                    Ok(Err(_)) | Err(_) => connection = None,
                }
                // The sender lives until the end.
                let _ = tokio::time::timeout(EVERY, stopped.changed()).await;
                seen.lasted += began.elapsed();
            }
            seen
        });
        Self { claims, pace, stop, task }
    }

    /// Expects the fleet to work at this pace or faster.
    pub fn expect(&self, pace: Pace) {
        self.pace.send_replace(pace);
    }

    /// Suspends the checks until the returned guard is dropped: while a clock is set, or while
    /// another server replaces the one whose claims are known.
    pub async fn pause(&self) -> OwnedMutexGuard<Claims> {
        Arc::clone(&self.claims).lock_owned().await
    }

    /// Stops the checks and returns the violations.
    ///
    /// # Errors
    /// The task panicked.
    pub async fn end(&mut self) -> Result<Violations> {
        let _ = self.stop.send(true);
        Ok((&mut self.task).await?.judge())
    }
}

async fn look(
    url: &str,
    connection: &mut Option<PgConnection>,
    claims: &mut Claims,
    bound: Duration,
) -> Result<Violations, sqlx::Error> {
    let connection = match connection {
        Some(connection) => connection,
        None => connection.insert(PgConnection::connect(url).await?),
    };
    let bound = format!("{} seconds", bound.as_secs_f64());
    let mut violations = progress::lost_for(connection, &bound).await?;
    violations.extend(sqlx::query_scalar::<_, String>(SILENT).bind(bound).fetch_all(&mut *connection).await?);
    let held: Vec<(Uuid, i32)> =
        sqlx::query_as("select run_id, claims from runledger.lease").fetch_all(connection).await?;
    for (run_id, now) in held {
        let before = claims.insert(run_id, now).unwrap_or_default();
        if now < before {
            violations.push(format!("run {run_id} is in claim {now} after claim {before}"));
        }
    }
    Ok(violations)
}

/// Counts rows, for a scenario that does not finish.
async fn count(connection: Option<&mut PgConnection>, so_far: &SoFar) -> Result<(), sqlx::Error> {
    let Some(connection) = connection else { return Ok(()) };
    let counts: [i64; 4] = sqlx::query(COUNTS)
        .fetch_one(connection)
        .await
        .and_then(|row| Ok([row.try_get(0)?, row.try_get(1)?, row.try_get(2)?, row.try_get(3)?]))?;
    let [n_started, n_ended, n_steps, n_recoveries] = counts.map(|n| usize::try_from(n).unwrap_or_default());
    let mut so_far = lock(so_far);
    *so_far = Summary { n_started, n_ended, n_steps, n_recoveries, ..std::mem::take(&mut *so_far) };
    Ok(())
}

#[cfg(test)]
mod tests {
    use runledger_tests::Fixture;
    use sqlx::AssertSqlSafe;

    use super::*;

    /// A history whose violations are `SINCE` seconds old:
    /// - run `woken` waits for nothing, and its deadline has passed;
    /// - run `slept` is past its timer, and its cancellation was requested twice as long ago;
    /// - run `leased` belongs to a dead worker, and its pause was requested twice as long ago;
    /// - worker `silent` has sent no heartbeat.
    const HISTORY: &str = "
        insert into runledger.worker (name, version, session_name, jobs, queues, heartbeat_at)
        values ('silent', '0', 'silent', '{}', '{}', clock_timestamp() - interval 'SINCE s');
        insert into runledger.worker (name, version, session_name, jobs, queues, heartbeat_at, state, died_at, died_why)
        values ('dead', '0', 'dead', '{}', '{}', now(), 'dead', clock_timestamp() - interval 'SINCE s', 'a test');
        insert into runledger.run (run_id, job, tenant, queue, priority, input, start_at)
        select gen_random_uuid(), job, '', 'default', 0, '{}', now() from unnest(array['woken', 'slept', 'leased']) as job;
        insert into runledger.waiting (run_id, state, wait_any, wait_all, wait_signals, wake_at, attempt, crashes, claims, since)
        select run_id, 'waiting', '{}', '{}', '{}', case when job = 'slept' then clock_timestamp() - interval 'SINCE s' end, 0, 0, 1,
            clock_timestamp() - case when job = 'woken' then interval 'SINCE s' else interval '0' end
        from runledger.run where job in ('woken', 'slept');
        insert into runledger.lease (run_id, token, worker_id, attempt, crashes, claims, claimed_at)
        select run_id, gen_random_uuid(), worker_id, 1, 0, 1, now() from runledger.run, runledger.worker where job = 'leased' and name = 'dead';
        insert into runledger.deadline (run_id, deadline_at)
        select run_id, clock_timestamp() - interval 'SINCE s' from runledger.run where job = 'woken';
        insert into runledger.cancel (run_id, requested_at)
        select run_id, clock_timestamp() - 2 * interval 'SINCE s' from runledger.run where job = 'slept';
        insert into runledger.pause (run_id, reason, requested_at)
        select run_id, 'a test', clock_timestamp() - 2 * interval 'SINCE s' from runledger.run where job = 'leased'";

    async fn looked(since: Duration, pace: Pace) -> Result<Violations> {
        let fixture = Fixture::new().await;
        let history = HISTORY.replace("SINCE", &since.as_secs().to_string());
        sqlx::raw_sql(AssertSqlSafe(history)).execute(fixture.db.pool()).await?;
        Ok(look(fixture.database.url(), &mut None, &mut Claims::new(), pace.bound()).await?)
    }

    #[tokio::test]
    async fn stalled_state_is_reported_only_beyond_pace_bound() -> Result<()> {
        let late = looked(Pace::FAST.bound() + Duration::from_secs(2), Pace::FAST).await?;
        let kinds = [
            "waits for nothing",
            "should have been woken",
            "leased to worker",
            "has been silent",
            "after its deadline",
            "the cancel of",
            "the pause of",
        ];
        for kind in kinds {
            assert_eq!(
                late.iter().filter(|violation| violation.contains(kind)).count(),
                1,
                "{kind}: {late:?}"
            );
        }
        assert_eq!(late.len(), kinds.len(), "{late:?}");
        assert_eq!(looked(Pace::FAST.bound() / 2, Pace::FAST).await?, Violations::new());
        assert_eq!(
            looked(Pace::FAST.bound() + Duration::from_secs(2), Pace::DEFAULT).await?,
            Violations::new()
        );
        Ok(())
    }

    /// The jobs of the runs that a history loses. `LONG` stands for more seconds than anything may
    /// take.
    async fn lost_jobs(history: &str) -> Result<Vec<String>> {
        let fixture = Fixture::new().await;
        let long = Pace::FAST.bound() + Duration::from_secs(2);
        let history = history.replace("LONG", &long.as_secs().to_string());
        sqlx::raw_sql(AssertSqlSafe(history)).execute(fixture.db.pool()).await?;
        let runs: Vec<(Uuid, String)> = sqlx::query_as("select run_id, job from runledger.run order by job")
            .fetch_all(fixture.db.pool())
            .await?;
        let lost = look(fixture.database.url(), &mut None, &mut Claims::new(), Pace::FAST.bound()).await?;
        let is_lost = |run_id: Uuid| lost.iter().any(|said| said.starts_with(&format!("run {run_id} wait")));
        Ok(runs.into_iter().filter(|(run_id, _)| is_lost(*run_id)).map(|(_, job)| job).collect())
    }

    #[tokio::test]
    async fn wake_up_is_lost_only_if_child_completed_long_ago() -> Result<()> {
        // The children ended long ago, just now, or not at all.
        let history = "
            insert into runledger.run (run_id, job, tenant, queue, priority, input, start_at)
            select gen_random_uuid(), job, '', 'default', 0, '{}', now()
            from unnest(array['long', 'now', 'open', 'any', 'all', 'any of the last', 'all with the last']) as job;
            insert into runledger.ready (run_id, queue, job, priority, ready_at, cause, attempt, crashes, claims)
            select run_id, queue, job, 0, now(), 'enqueued', 0, 0, 0 from runledger.run where job = 'open';
            insert into runledger.outcome (run_id, state, output, attempt, finished_at)
            select run_id, 'completed', '1', 1, now() - case when job = 'long' then interval 'LONG s' else interval '0' end
            from runledger.run where job in ('long', 'now');
            insert into runledger.waiting (run_id, state, wait_any, wait_all, wait_signals, attempt, crashes, claims, since)
            select run_id, 'waiting',
                array(select run_id from runledger.run as child where run.job like 'any%' and child.job = any(awaited)),
                array(select run_id from runledger.run as child where run.job like 'all%' and child.job = any(awaited)),
                '{}', 0, 0, 1, now() - interval 'LONG s'
            from runledger.run, lateral (
                select case
                    when run.job = 'any' then array['long', 'open']
                    when run.job = 'all' then array['long']
                    when run.job like 'any%' then array['now', 'open']
                    else array['long', 'now']
                end
            ) as children (awaited)
            where job like 'a%'";
        assert_eq!(lost_jobs(history).await?, ["all", "any"]);
        Ok(())
    }

    #[tokio::test]
    async fn unconsumed_signal_is_excused_only_if_sender_recently_locked_run() -> Result<()> {
        // Each job's name says how its run was parked and when its signal arrived.
        let history = "
            insert into runledger.run (run_id, job, tenant, queue, priority, input, start_at)
            select gen_random_uuid(), job, '', 'default', 0, '{}', now()
            from unnest(array['unlocked', 'locked', 'unlocked with a timer', 'locked long before']) as job;
            insert into runledger.waiting (run_id, state, wait_any, wait_all, wait_signals, wake_at, attempt, crashes, claims, since)
            select run_id, 'waiting', '{}', '{}', '{left}',
                case when job like 'locked%' then since + interval '30 s' when job like '%timer' then since + interval '1 h' end, 0, 0, 1, since
            from runledger.run, lateral (select now() - case when job like '%before' then interval 'LONG s' else interval '0' end) as parked (since);
            insert into runledger.signal (run_id, name, number, payload, idempotency_key, sent_at)
            select run_id, 'left', 1, '1', 'once', now() from runledger.run";
        assert_eq!(lost_jobs(history).await?, ["locked long before", "unlocked", "unlocked with a timer"]);
        Ok(())
    }

    #[test]
    fn monitor_with_too_few_observations_reports_violation() {
        let seen =
            |n_looks, seconds| Seen { n_looks, lasted: Duration::from_secs(seconds), ..Seen::default() };
        assert_eq!(seen(3, 8).judge().len(), 0);
        assert_eq!(seen(2, 8).judge().len(), 1);
        assert_eq!(seen(11, 120).judge().len(), 1);
        assert_eq!(seen(12, 120).judge().len(), 0);
    }
}
