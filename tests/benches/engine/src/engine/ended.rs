//! Durations by the database's clock.

use std::time::Duration;

use sqlx::PgConnection;

use crate::Res;

/// The time from `since` until the `n`-th run of a job was recorded as completed. Fails if fewer
/// completed.
pub async fn nth(connection: &mut PgConnection, job: &str, since: &str, n: usize) -> Res<Duration> {
    let query = "select count(*), coalesce((extract(epoch from max(finished_at) - $2::timestamptz) * 1000000)::bigint, 0)
                 from (
                     select finished_at from runledger.outcome join runledger.run using (run_id)
                     where job = $1 and state = 'completed' and finished_at >= $2::timestamptz
                     order by finished_at limit $3
                 ) as ended";
    let asked = sqlx::query_as::<_, (i64, i64)>(query).bind(job).bind(since).bind(i64::try_from(n)?);
    let (ended, micros) = asked.fetch_one(connection).await?;
    if usize::try_from(ended)? != n {
        return Err(format!("{ended} of {n} runs are recorded as completed").into());
    }
    Ok(Duration::from_micros(u64::try_from(micros)?))
}
