//! Deadlines: a run is never cancelled before its deadline. [`progress`](super::progress) checks
//! that an overdue run ends.

use sqlx::PgConnection;

use super::Violations;

/// Finds runs that were cancelled for a deadline that had not passed.
///
/// `put_back_s` is the tolerance for a clock that was put back by that many seconds: the cancel was
/// requested before the change and recorded after it.
///
/// # Errors
/// If the database does not answer.
pub async fn early(connection: &mut PgConnection, put_back_s: i64) -> Result<Violations, sqlx::Error> {
    sqlx::query_scalar(
        "select format('run %s was cancelled at %s for its deadline of %s', run_id, finished_at, deadline_at)
        from runledger.outcome
        join runledger.run using (run_id)
        cross join lateral (select start_at + (options ->> 'deadline_ms')::bigint * interval '1 millisecond' as deadline_at) as own
        where outcome.state = 'cancelled' and error ->> 'message' like '%did not end within its deadline%'
            and finished_at + $1 * interval '1 second' < deadline_at",
    )
    .bind(put_back_s)
    .fetch_all(connection)
    .await
}

#[cfg(test)]
mod tests {
    use crate::Fixture;

    /// Three runs with a deadline of one minute. One was cancelled for it too early, one in time,
    /// and one was cancelled by a person.
    const HISTORY: &str = "
        insert into runledger.run (run_id, job, tenant, queue, priority, input, options, start_at)
        select gen_random_uuid(), job, '', 'default', 0, '{}', '{\"deadline_ms\": 60000}', now() - interval '1 hour'
        from unnest(array['early', 'late', 'by a person']) as job;
        insert into runledger.outcome (run_id, state, error, attempt, finished_at)
        select
            run_id, 'cancelled',
            json_build_object('kind', 'cancelled', 'message', case when job = 'by a person' then 'cancelled' else 'cancelled: it did not end within its deadline of 60s' end),
            0, start_at + case when job = 'late' then interval '61 s' else interval '59 s' end
        from runledger.run";

    #[tokio::test]
    async fn deadline_cancellation_before_deadline_passes_is_violation() -> anyhow::Result<()> {
        let fixture = Fixture::new().await;
        let mut connection = fixture.db.pool().acquire().await?;
        sqlx::raw_sql(HISTORY).execute(&mut *connection).await?;
        let early: String = sqlx::query_scalar("select run_id::text from runledger.run where job = 'early'")
            .fetch_one(&mut *connection)
            .await?;
        let violations = super::early(&mut connection, 0).await?;
        assert_eq!(violations.len(), 1, "{violations:?}");
        assert!(violations[0].contains(&early), "{violations:?}");
        assert!(
            super::early(&mut connection, 3600).await?.is_empty(),
            "a clock that is put back is no fault of the engine's"
        );
        Ok(())
    }
}
