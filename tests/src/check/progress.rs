//! I10: every live run is in exactly one place, from which something will move it.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use sqlx::{Connection, PgConnection};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::Violations;

/// How long a row may wait for something that moves it: several leases of
/// [`Timings::FAST`](runledger::Timings::FAST).
const BOUND: &str = "12 seconds";

/// The polling interval of a watch.
const EVERY: Duration = Duration::from_millis(50);

/// Finds every lost run, in one snapshot. The first kind is wrong at any time, the others only
/// after a limit.
///
/// For requests the limit counts twice: the run's worker may have to be detected as dead before
/// another worker carries the request out.
const LOST: &str = "
with place as (
    select run_id, 'ready' as name from runledger.ready
    union all
    select run_id, 'lease' from runledger.lease
    union all
    select run_id, 'waiting' from runledger.waiting
    union all
    select run_id, 'outcome' from runledger.outcome
),
standing as (
    select run.run_id, coalesce(string_agg(place.name, ', ' order by place.name), 'nowhere') as places, count(place.name) as n
    from runledger.run
    left join place using (run_id)
    group by run.run_id
)
select format('run %s stands in: %s', run_id, places) as lost from standing where n <> 1
union all
select format('a row of `%s` has no run %s', name, run_id) from place where not exists (select from runledger.run where run.run_id = place.run_id)
union all
select format('run %s is leased to worker %s, which is dead', run_id, worker_id)
from runledger.lease
left join runledger.worker using (worker_id)
where worker.worker_id is null or worker.died_at < clock_timestamp() - $1::text::interval
union all
select format('run %s waits for nothing that is still to come: since %s for any of %s or all of %s', run_id, since, wait_any, wait_all)
from runledger.waiting
where state = 'waiting' and wait_signals = '{}' and wake_at is null and since < clock_timestamp() - $1::text::interval
    -- What nodes and graphs wait for is counted: see `graphs`.
    and not exists (select from runledger.run where run.run_id = waiting.run_id and (run.graph is not null or run.node is not null))
    and (
        cardinality(wait_any || wait_all) = 0
        or exists (
            select from unnest(wait_any) as child (run_id)
            join runledger.outcome using (run_id)
            where finished_at < clock_timestamp() - $1::text::interval
        )
        or cardinality(wait_all) > 0 and not exists (
            select from unnest(wait_all) as child (run_id)
            left join runledger.outcome using (run_id)
            where finished_at is null or finished_at > clock_timestamp() - $1::text::interval
        )
    )
union all
select format('run %s waits since %s until %s for signal `%s`, which came at %s', waiting.run_id, since, wake_at, signal.name, sent_at)
from runledger.waiting
join runledger.signal on signal.run_id = waiting.run_id and signal.name = any(wait_signals) and taken_by is null
-- The sender may have locked the run while the run was suspended. Then the run polls within
-- 30 seconds, and the next condition holds.
where wake_at is null or wake_at > since + interval '30 seconds' or sent_at > since + $1::text::interval
union all
select format('run %s should have been woken at %s', run_id, wake_at)
from runledger.waiting
where wake_at < clock_timestamp() - $1::text::interval
union all
select format('run %s goes on after its deadline of %s', run_id, deadline_at)
from runledger.deadline
where deadline_at < clock_timestamp() - $1::text::interval
    and not exists (select from runledger.outcome where outcome.run_id = deadline.run_id)
    and not exists (select from runledger.compensation where compensation.run_id = deadline.run_id)
union all
select format('the cancel of run %s was asked for at %s', run_id, requested_at)
from runledger.cancel
where requested_at < clock_timestamp() - 2 * $1::text::interval
    and not exists (select from runledger.outcome where outcome.run_id = cancel.run_id)
    -- It came too late, and counts at the end of the compensation, for what goes on below the run.
    and not exists (select from runledger.compensation where compensation.run_id = cancel.run_id)
union all
select format('the pause of run %s was asked for at %s', run_id, requested_at)
from runledger.pause
where requested_at < clock_timestamp() - 2 * $1::text::interval";

/// Returns the runs that are lost now.
///
/// # Errors
/// If the database does not answer.
pub async fn lost(connection: &mut PgConnection) -> Result<Violations, sqlx::Error> {
    lost_for(connection, BOUND).await
}

/// As [`lost`], with another limit (a PostgreSQL interval).
///
/// # Errors
/// If the database does not answer.
pub async fn lost_for(connection: &mut PgConnection, bound: &str) -> Result<Violations, sqlx::Error> {
    sqlx::query_scalar(LOST).bind(bound).fetch_all(connection).await
}

/// Polls for lost runs until it is stopped.
#[derive(Debug)]
pub struct Watch {
    stop: Arc<watch::Sender<bool>>,
    task: JoinHandle<Result<Violations>>,
}

impl Watch {
    /// Starts to watch a database.
    #[must_use]
    pub fn start(url: &str) -> Self {
        let (stop, stopped) = watch::channel(false);
        let url = url.to_owned();
        let task = tokio::spawn(async move {
            let mut connection = PgConnection::connect(&url).await?;
            let mut seen = Violations::new();
            while !*stopped.borrow() {
                seen.extend(lost(&mut connection).await?);
                tokio::time::sleep(EVERY).await;
            }
            seen.dedup();
            Ok(seen)
        });
        Self { stop: Arc::new(stop), task }
    }

    /// Stops the watch and returns what it found.
    ///
    /// # Errors
    /// If the database did not answer.
    pub async fn end(self) -> Result<Violations> {
        let _ = self.stop.send(true);
        self.task.await?
    }
}
