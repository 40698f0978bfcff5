//! I2: a recorded step does not execute again, and its record is immutable. I4: the writes of a
//! transactional body commit once.

use std::collections::HashMap;

use sqlx::PgConnection;
use uuid::Uuid;

use super::facts::{Claim, Written};
use super::{Event, Excuses, Facts, Violations, What};

/// Finds bodies that started under a claim that came after their step was recorded (I2a).
#[must_use]
pub fn repeated(events: &[Event], facts: &Facts) -> Violations {
    let recorded: HashMap<(Uuid, &str), &Written> =
        facts.steps.iter().map(|step| ((step.run_id, step.key.as_str()), step)).collect();
    events
        .iter()
        .filter(|event| event.what == What::Start)
        .filter_map(|event| {
            let step = recorded.get(&(event.run_id, event.key.as_str()))?;
            let claim = facts.claim_with(event.run_id, event.token)?;
            (claim.at_us > step.at_us).then(|| {
                format!(
                    "step `{}` of run {} was recorded before claim {}, and ran again",
                    event.key, event.run_id, claim.claims
                )
            })
        })
        .collect()
}

/// Finds recorded steps whose code had received more results than are recorded (I2).
///
/// They rely on a record that was lost with a server: for example, when an attempt that began on
/// the old primary writes to the promoted standby.
///
/// # Errors
/// If the database does not answer.
pub async fn resting_on_nothing(connection: &mut PgConnection) -> Result<Violations, sqlx::Error> {
    // A run with an origin has steps of the origin's other branches, which its own code did not
    // receive.
    let rows: Vec<(Uuid, String, i32, i64)> = sqlx::query_as(
        "select run_id, key, seen_len, n_others
        from runledger.step
        join runledger.run using (run_id)
        cross join lateral (select count(*) - 1 as n_others from runledger.step as any_of where any_of.run_id = step.run_id) as counted
        where origin_id is null and seen_len > n_others",
    )
    .fetch_all(connection)
    .await?;
    let rests = |(run_id, key, seen_len, n_others)| {
        format!("step `{key}` of run {run_id} rests on {seen_len} results, of which {n_others} are on record")
    };
    Ok(rows.into_iter().map(rests).collect())
}

/// Finds bodies that started after another claim had taken their run (I2c). Schedules that pause
/// only before the guard allow none; elsewhere a process has an excuse.
#[must_use]
pub fn stale_starts(events: &[Event], facts: &Facts, excuses: &Excuses) -> Violations {
    late(events, facts, What::Start)
        .filter(|(event, _)| !excuses.cover(event.pid, event.at_us, event.at_us))
        .map(|(event, next)| {
            format!(
                "body `{}` of run {} began in process {} after claim {}",
                event.key, event.run_id, event.pid, next.claims
            )
        })
        .collect()
}

/// Returns events of bodies after another claim had taken their run, each with that claim.
pub fn late<'a>(
    events: &'a [Event],
    facts: &'a Facts,
    what: What,
) -> impl Iterator<Item = (&'a Event, &'a Claim)> {
    events.iter().filter(move |event| event.what == what).filter_map(|event| {
        let next = facts.claim_after(event.run_id, event.token)?;
        (event.at_us > next.at_us).then_some((event, next))
    })
}

/// Finds two bodies of one step that ran at the same time (I2c, I3). A process with an excuse for
/// the whole overlap is exempt.
#[must_use]
pub fn unexplained_overlaps(events: &[Event], excuses: &Excuses) -> Violations {
    let mut ends: HashMap<(Uuid, &str, Uuid), i64> = HashMap::new();
    let mut starts: HashMap<(Uuid, &str), Vec<&Event>> = HashMap::new();
    for event in events {
        let (run_id, key) = (event.run_id, event.key.as_str());
        match event.what {
            What::Start => starts.entry((run_id, key)).or_default().push(event),
            What::End => drop(ends.entry((run_id, key, event.token)).or_insert(event.at_us)),
        }
    }
    let end_of =
        |start: &Event| ends.get(&(start.run_id, &start.key, start.token)).copied().unwrap_or(start.at_us);
    let mut violations = Vec::new();
    for starts in starts.values() {
        for (at, one) in starts.iter().enumerate() {
            for other in starts.iter().skip(at + 1).filter(|other| other.token != one.token) {
                let (from_us, until_us) = (one.at_us.max(other.at_us), end_of(one).min(end_of(other)));
                let is_excused = |event: &Event| excuses.cover(event.pid, from_us, until_us);
                if from_us <= until_us && !is_excused(one) && !is_excused(other) {
                    violations.push(format!(
                        "body `{}` of run {} ran in processes {} and {} at once",
                        one.key, one.run_id, one.pid, other.pid
                    ));
                }
            }
        }
    }
    violations
}

/// Finds wrong rows of the ledger (I4). A completed run or a recorded step must have exactly one
/// row, all others none.
///
/// # Errors
/// If the database does not answer.
pub async fn not_once(connection: &mut PgConnection) -> Result<Violations, sqlx::Error> {
    sqlx::query_scalar(
        "select format('`%s` of run %s %s, and has %s rows of the ledger', key, run_id, case when done then 'is done' else 'is not done' end, coalesce(n, 0))
        from (
            select run_id, '' as key, outcome.state is not distinct from 'completed' as done
            from runledger.run
            left join runledger.outcome using (run_id)
            where run.job = 'check.post'
            union all
            select run_id, key, output is not null
            from runledger.step
            where key like 'check.post%'
        ) as posted
        full join (select run_id, key, count(*) as n from audit.ledger group by run_id, key) as ledger using (run_id, key)
        where coalesce(n, 0) <> case when done then 1 else 0 end",
    )
    .fetch_all(connection)
    .await
}

#[cfg(test)]
mod tests {
    use super::super::facts::Claim;
    use super::*;
    use crate::Fixture;

    const SECOND: i64 = 1_000_000;

    /// Two bodies of one step: one of a process that lost its run in the 7th second, and one of the
    /// new owner from the 8th to the 12th.
    fn history(lost_from: i64, lost_until: i64) -> (Vec<Event>, Facts) {
        let [run_id, lost, heir] = [(); 3].map(|()| Uuid::now_v7());
        let body = |token, pid, from: i64, until: i64| {
            [(What::Start, from), (What::End, until)].map(|(what, at)| Event {
                what,
                run_id,
                key: "charge".to_owned(),
                token,
                pid,
                at_us: at * SECOND,
            })
        };
        let claim = |token, worker_id, claims, at: i64| Claim {
            run_id,
            token,
            worker_id,
            claims,
            at_us: at * SECOND,
        };
        let events = [body(lost, 1, lost_from, lost_until), body(heir, 2, 8, 12)].concat();
        (events, Facts::of_claims(vec![claim(lost, 1, 1, 1), claim(heir, 2, 2, 7)]))
    }

    fn excused(pid: u32, from: i64, until: i64) -> Excuses {
        Excuses::during(pid, from * SECOND, until * SECOND)
    }

    #[tokio::test]
    async fn ledger_entries_differing_from_completed_runs_are_violations() {
        let fixture = Fixture::new().await;
        let mut connection = fixture.db.pool().acquire().await.unwrap();
        Facts::record(&mut connection).await.unwrap();
        // The name of each run says how many ledger rows it has.
        let history = "
            insert into runledger.run (run_id, job, tenant, queue, priority, input, start_at, idempotency_key)
            select gen_random_uuid(), 'check.post', '', 'default', 0, '{}', now(), name
            from unnest(array['done, 0', 'done, 1', 'done, 2', 'open, 0', 'open, 1']) as name;
            insert into runledger.outcome (run_id, state, output, attempt)
            select run_id, 'completed', '1', 1 from runledger.run where idempotency_key like 'done%';
            insert into runledger.ready (run_id, queue, job, priority, ready_at, cause, attempt, crashes, claims)
            select run_id, queue, job, 0, now(), 'enqueued', 0, 0, 0 from runledger.run where idempotency_key like 'open%';
            insert into audit.ledger (run_id, key, token)
            select run_id, '', gen_random_uuid() from runledger.run, generate_series(1, right(idempotency_key, 1)::int)";
        sqlx::raw_sql(history).execute(&mut *connection).await.unwrap();
        let names = "select run_id, idempotency_key from runledger.run order by idempotency_key";
        let names: Vec<(Uuid, String)> = sqlx::query_as(names).fetch_all(&mut *connection).await.unwrap();
        let found = not_once(&mut connection).await.unwrap();
        let is_found = |run_id: &Uuid| found.iter().any(|said| said.contains(&run_id.to_string()));
        let wrong: Vec<&str> =
            names.iter().filter(|(run_id, _)| is_found(run_id)).map(|(_, name)| name.as_str()).collect();
        assert_eq!(wrong, ["done, 0", "done, 2", "open, 1"], "{found:?}");
    }

    #[test]
    fn stale_body_start_is_violation_unless_process_is_excused() {
        let (events, facts) = history(9, 10);
        assert_eq!(stale_starts(&events, &facts, &Excuses::default()).len(), 1);
        assert_eq!(stale_starts(&events, &facts, &excused(1, 2, 9)).len(), 0);
        assert_eq!(stale_starts(&events, &facts, &excused(1, 2, 8)).len(), 1, "the excuse was over");
        assert_eq!(stale_starts(&events, &facts, &excused(1, 10, 12)).len(), 1, "the fault came after it");
        assert_eq!(stale_starts(&events, &facts, &excused(2, 2, 12)).len(), 1, "of another process");
    }

    #[test]
    fn overlapping_bodies_are_violation_unless_one_is_excused_throughout() {
        let (events, _) = history(6, 10);
        assert_eq!(unexplained_overlaps(&events, &Excuses::default()).len(), 1);
        assert_eq!(unexplained_overlaps(&events, &excused(1, 7, 11)).len(), 0);
        assert_eq!(unexplained_overlaps(&events, &excused(2, 8, 10)).len(), 0);
        assert_eq!(unexplained_overlaps(&events, &excused(1, 7, 9)).len(), 1, "it went on after its excuse");
        assert_eq!(
            unexplained_overlaps(&events, &excused(1, 9, 12)).len(),
            1,
            "it was beside the other before"
        );
        let (apart, _) = history(6, 7);
        assert_eq!(unexplained_overlaps(&apart, &Excuses::default()).len(), 0);
    }
}
