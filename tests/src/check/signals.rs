//! I8: a run receives each signal once, in the order of its name, and no run waits for a signal
//! that has arrived.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use sqlx::PgConnection;
use uuid::Uuid;

use super::calls::Told;
use super::{Event, Facts, Violations, What};

/// A signal from a client. A client sends the signals of one run and name one after another: each
/// once the previous call was answered or given up.
#[derive(Clone, Debug)]
pub struct Sent {
    /// The run.
    pub run_id: Uuid,
    /// The name of the signal.
    pub name: &'static str,
    /// The value, unique for its run and name.
    pub value: u32,
    /// The answer to the client.
    pub told: Told,
    /// The time, in microseconds since 1970.
    pub at_us: i64,
    /// Whether the client already knew that the run had ended.
    pub is_late: bool,
}

/// The key of the step that handles a signal. The history shows by it which signals were received.
#[must_use]
pub fn heard(name: &str, value: u32) -> String {
    format!("{name}.{value}")
}

/// Compares the answers to clients with what the bodies did.
///
/// Finds acknowledged signals that a completed run did not receive, that it received twice, or that
/// it received after a later one. Also finds signals that no client sent, and signals that were
/// accepted after the end of their run.
#[must_use]
pub fn misheard(sent: &[Sent], events: &[Event], facts: &Facts) -> Violations {
    let completed: BTreeSet<Uuid> =
        facts.ends.iter().filter(|end| end.state == "completed").map(|end| end.run_id).collect();
    let mut of_runs: HashMap<Uuid, Vec<&Event>> = HashMap::new();
    for event in events.iter().filter(|event| event.what == What::Start) {
        of_runs.entry(event.run_id).or_default().push(event);
    }
    let mut series: BTreeMap<(Uuid, &str), Vec<&Sent>> = BTreeMap::new();
    for signal in sent {
        series.entry((signal.run_id, signal.name)).or_default().push(signal);
    }
    let mut violations = Violations::new();
    for ((run_id, name), signals) in series {
        let first = first_heard(of_runs.get(&run_id).map(Vec::as_slice).unwrap_or_default(), name);
        let told = |what: &str, value: u32| format!("signal `{name}` {value} of run {run_id} {what}");
        let mut latest = i64::MIN;
        for signal in &signals {
            let keys: Vec<i64> =
                first.iter().filter(|((value, _), _)| *value == signal.value).map(|(_, at)| *at).collect();
            match (signal.told, keys.as_slice()) {
                (Told::Ok, _) if signal.is_late => {
                    violations.push(told("was taken on though the run had ended", signal.value));
                }
                (Told::Ok, []) if completed.contains(&run_id) => {
                    violations.push(told("was acknowledged, and is lost", signal.value));
                }
                (Told::RolledBack, [_, ..]) => {
                    violations.push(told("was refused, and was taken", signal.value));
                }
                (_, [_, _, ..]) => violations.push(told("was taken twice", signal.value)),
                (Told::Ok | Told::Unknown | Told::RolledBack, _) => {}
            }
            let Some(&at) = keys.first() else { continue };
            // An unanswered signal may have been stored after the next one.
            if signal.told == Told::Ok {
                if at < latest {
                    violations.push(told("was overtaken", signal.value));
                }
                latest = latest.max(at);
            }
        }
        let values: BTreeSet<u32> = signals.iter().map(|signal| signal.value).collect();
        let strangers = first.keys().filter(|(value, _)| !values.contains(value));
        violations.extend(strangers.map(|(value, _)| told("was taken, and nobody has sent it", *value)));
    }
    violations
}

/// Returns when the step for each signal of this name first started, by value and step key.
fn first_heard<'e>(events: &[&'e Event], name: &str) -> BTreeMap<(u32, &'e str), i64> {
    let mut first = BTreeMap::new();
    for event in events {
        let Some((_, of_name)) = event.key.split_once(&format!("[{name}.")) else { continue };
        let Some(value) = of_name.split(']').next().and_then(|value| value.parse().ok()) else { continue };
        let at = first.entry((value, event.key.as_str())).or_insert(event.at_us);
        *at = event.at_us.min(*at);
    }
    first
}

/// Finds every lost, repeated or overtaken signal.
const WRONG: &str = "
select format('signal %s of `%s` was taken by step `%s` of run %s, which has recorded another value', number, name, taken_by, signal.run_id) as wrong
from runledger.signal
left join runledger.continuation on continuation.run_id = signal.run_id
left join runledger.step on step.run_id = signal.run_id and step.key = taken_by
where taken_by is not null and taken_in = coalesce(slice, 0) and (step.key is null or step.output::text is distinct from signal.payload::text)
union all
select format('step `%s` of run %s has recorded a signal that nobody has sent', key, run_id)
from runledger.step
where key like 'signal[%' and output is not null
    and not exists (
        select from runledger.signal
        where signal.run_id = step.run_id and taken_by = step.key
            and taken_in = coalesce((select slice from runledger.continuation where continuation.run_id = step.run_id), 0)
    )
union all
select format('step `%s` of run %s has taken two signals', taken_by, run_id)
from runledger.signal
where taken_by is not null
group by run_id, taken_by, taken_in
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

/// Returns what contradicts the guarantee now.
///
/// # Errors
/// If the database does not answer.
pub async fn wrong(connection: &mut PgConnection) -> Result<Violations, sqlx::Error> {
    sqlx::query_scalar(WRONG).fetch_all(connection).await
}

#[cfg(test)]
mod tests {
    use super::super::facts::Written;
    use super::*;

    /// Counts the violations if these signals were sent and these were received, one after another.
    fn n_wrong(sent: &[(u32, Told)], taken: &[&str]) -> usize {
        let run_id = Uuid::now_v7();
        let signal = |&(value, told): &(u32, Told)| Sent {
            run_id,
            name: "value",
            value,
            told,
            at_us: 0,
            is_late: false,
        };
        let body = |(at_us, key): (i64, &&str)| Event {
            what: What::Start,
            run_id,
            key: format!("check.quick[{key}"),
            token: run_id,
            pid: 1,
            at_us,
        };
        let sent: Vec<Sent> = sent.iter().map(signal).collect();
        let events: Vec<Event> = (1..).zip(taken).map(body).collect();
        let ends = vec![Written::end(run_id, "completed", "null", 9)];
        misheard(&sent, &events, &Facts { ends, ..Facts::default() }).len()
    }

    #[test]
    fn lost_duplicated_reordered_or_unknown_signal_is_violation() {
        let [one, two] = [(1, Told::Ok), (2, Told::Ok)];
        assert_eq!(n_wrong(&[one, two], &["value.1]", "value.2]"]), 0);
        assert_eq!(n_wrong(&[one, two], &["value.1]", "value.1]", "value.2]"]), 0, "the body ran again");
        assert_eq!(n_wrong(&[one, two], &["value.1]"]), 1, "lost");
        assert_eq!(n_wrong(&[one, two], &["value.1]", "value.1]#2", "value.2]"]), 1, "doubled");
        assert_eq!(n_wrong(&[one, two], &["value.2]", "value.1]"]), 1, "overtaken");
        assert_eq!(n_wrong(&[one], &["value.1]", "value.7]"]), 1, "invented");
        assert_eq!(n_wrong(&[(1, Told::Unknown), two], &["value.2]"]), 0, "nothing was promised");
        assert_eq!(n_wrong(&[(1, Told::Unknown), two], &["value.2]", "value.1]"]), 0);
        assert_eq!(n_wrong(&[(1, Told::RolledBack), two], &["value.1]", "value.2]"]), 1, "refused");
    }

    /// One run for each kind of wrong row, named after the expected finding, and one correct run.
    const ROWS: &str = "
        insert into runledger.run (run_id, job, tenant, queue, priority, input, start_at)
        select gen_random_uuid(), job, '', 'default', 0, '{}', now()
        from unnest(array['another value', 'nobody has sent', 'two signals', 'was overtaken', 'a gap', 'that has come', 'right']) as job;
        insert into runledger.step (run_id, key, ordinal, fingerprint, output, seen_len, claims)
        select run_id, 'signal[a]', 1, 0, '1'::json, 0, 1 from runledger.run where job not in ('was overtaken', 'a gap', 'that has come')
        union all
        select run_id, 'signal[a]', 1, 0, '2', 0, 1 from runledger.run where job = 'was overtaken';
        insert into runledger.signal (run_id, name, number, payload, idempotency_key, taken_by)
        select run_id, 'a', number, payload::json, number::text, taken_by
        from (
            values
                ('another value', 1, '7', 'signal[a]'), ('two signals', 1, '1', 'signal[a]'), ('two signals', 2, '1', 'signal[a]'),
                ('was overtaken', 1, '1', null), ('was overtaken', 2, '2', 'signal[a]'), ('a gap', 2, '1', null), ('that has come', 1, '1', null),
                ('right', 1, '1', 'signal[a]'), ('right', 2, '2', null)
        ) as sent (job, number, payload, taken_by)
        join runledger.run using (job);
        insert into runledger.waiting (run_id, state, wait_any, wait_all, wait_signals, attempt, crashes, claims, since)
        select run_id, 'waiting', '{}', '{}', '{a}', 0, 0, 1, now() from runledger.run where job = 'that has come'";

    #[tokio::test]
    async fn each_kind_of_inconsistent_signal_row_is_violation() -> anyhow::Result<()> {
        let fixture = crate::Fixture::new().await;
        let mut connection = fixture.db.pool().acquire().await?;
        sqlx::raw_sql(ROWS).execute(&mut *connection).await?;
        let runs: Vec<(String, String)> =
            sqlx::query_as("select run_id::text, job from runledger.run").fetch_all(&mut *connection).await?;
        let violations = wrong(&mut connection).await?;
        for (run_id, what) in runs.iter().filter(|(_, what)| what != "right") {
            let found = violations.iter().filter(|said| said.contains(run_id) && said.contains(what)).count();
            assert_eq!(found, 1, "{what}: {violations:?}");
        }
        assert_eq!(violations.len(), runs.len() - 1, "{violations:?}");
        Ok(())
    }

    #[test]
    fn acknowledged_signal_to_terminal_run_is_violation() {
        let late =
            |told| Sent { run_id: Uuid::nil(), name: "value", value: 1, told, at_us: 0, is_late: true };
        let n_wrong = |told| misheard(&[late(told)], &[], &Facts::default()).len();
        assert_eq!([Told::Ok, Told::RolledBack, Told::Unknown].map(n_wrong), [1, 0, 0]);
    }
}
