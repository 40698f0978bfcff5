//! I8: what was sent to a run is taken once, in the order of its name, and none is left where a run waits for it.

use sqlx::PgConnection;

use super::Violations;

/// Every way in which a signal can be lost, repeated or overtaken.
const WRONG: &str = "
select format('signal %s of `%s` was taken by step `%s` of run %s, which has recorded another value', number, name, taken_by, signal.run_id) as wrong
from runledger.signal
left join runledger.step on step.run_id = signal.run_id and step.key = taken_by
where taken_by is not null and (step.key is null or step.output::text is distinct from signal.payload::text)
union all
select format('step `%s` of run %s has recorded a signal that nobody has sent', key, run_id)
from runledger.step
where key like 'signal[%' and output is not null
    and not exists (select from runledger.signal where signal.run_id = step.run_id and taken_by = step.key)
union all
select format('step `%s` of run %s has taken two signals', taken_by, run_id)
from runledger.signal
where taken_by is not null
group by run_id, taken_by
having count(*) > 1
union all
select format('signal %s of `%s` of run %s was overtaken by %s', earlier.number, earlier.name, earlier.run_id, later.number)
from runledger.signal as earlier
join runledger.signal as later using (run_id, name)
where later.number > earlier.number and later.taken_by is not null and earlier.taken_by is null
union all
select format('signals of `%s` of run %s have a gap before %s', name, run_id, number)
from runledger.signal
where number > 1
    and not exists (
        select from runledger.signal as before
        where before.run_id = signal.run_id and before.name = signal.name and before.number = signal.number - 1
    )
union all
select format('run %s waits for a signal `%s` that has come', waiting.run_id, name)
from runledger.waiting
join runledger.signal on signal.run_id = waiting.run_id and name = any(wait_signals) and taken_by is null";

/// What contradicts the guarantee now.
///
/// # Errors
/// When the database does not answer.
pub async fn wrong(connection: &mut PgConnection) -> Result<Violations, sqlx::Error> {
    sqlx::query_scalar(WRONG).fetch_all(connection).await
}
