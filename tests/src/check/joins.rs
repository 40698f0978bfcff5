//! I14, for children: a run that waits for several children is woken once, by the last of them, and
//! receives the output of each.

use sqlx::PgConnection;

use super::Violations;

/// Finds every wrong join of the runs of [`check_joining`](super::jobs::check_joining).
const WRONG: &str = "
select format('run %s waits for the last of its children, and was woken with %s of them going on', run_id, n_left) as wrong
from audit.wake
where n_left > 0
union all
select format('run %s waits for the last of its children, and was woken %s times', run_id, count(*))
from audit.wake
group by run_id
having count(*) > 1
union all
select format('run %s has completed with the outputs %s, and its children gave %s', run.run_id, outcome.output, given.outputs)
from runledger.run
join runledger.outcome using (run_id)
cross join lateral (
    select coalesce(json_agg(child_outcome.output order by (child.input ->> 'turn')::int), '[]')::text as outputs
    from runledger.run as child
    left join runledger.outcome as child_outcome using (run_id)
    where child.parent_id = run.run_id
) as given
where run.job = 'check.joining' and outcome.state = 'completed' and outcome.output::jsonb is distinct from given.outputs::jsonb
union all
select format('run %s has completed before its child %s', run.run_id, child.run_id)
from runledger.run
join runledger.outcome using (run_id)
join runledger.run as child on child.parent_id = run.run_id
left join runledger.outcome as child_outcome on child_outcome.run_id = child.run_id
where run.job = 'check.joining' and outcome.state = 'completed'
    and (child_outcome.run_id is null or child_outcome.finished_at > outcome.finished_at)";

/// Returns what contradicts the guarantee now.
///
/// # Errors
/// If the database does not answer.
pub async fn wrong(connection: &mut PgConnection) -> Result<Violations, sqlx::Error> {
    sqlx::query_scalar(WRONG).fetch_all(connection).await
}
