//! The final rows of the database, and the notes of triggers in the test database.

use std::collections::{HashMap, HashSet};

use anyhow::Result;
use sqlx::{PgConnection, Row};
use uuid::Uuid;

use super::output::Line;
use super::permits::Permitted;

/// Records claims, and every change that must never happen to a row. Never part of the product.
const AUDIT: &str = "
create schema audit;
create table audit.claim (run_id uuid, token uuid, worker_id bigint, claims integer, at timestamptz default clock_timestamp());
create table audit.tampering (run_id uuid, what text, at timestamptz default clock_timestamp());
create table audit.recovery (run_id uuid, cause text, at timestamptz default clock_timestamp());
create table audit.ledger (id bigint generated always as identity, run_id uuid, key text, token uuid);
create table audit.business (business_id uuid primary key);

create function audit.claimed() returns trigger language plpgsql as $$ begin
    insert into audit.claim (run_id, token, worker_id, claims) values (new.run_id, new.token, new.worker_id, new.claims);
    return null;
end $$;
create trigger claimed after insert on runledger.lease for each row execute function audit.claimed();

create sequence audit.moment;
create table audit.permitted (
    resource text, run_id uuid, token uuid, began bigint default nextval('audit.moment'), ended bigint, primary key (run_id, token)
);
create function audit.permitted() returns trigger language plpgsql as $$ begin
    insert into audit.permitted (resource, run_id, token)
    select runledger.resource_of(options), run_id, new.token
    from runledger.run
    where run_id = new.run_id and options ->> 'resource' is not null;
    return null;
end $$;
create trigger permitted after insert on runledger.lease for each row execute function audit.permitted();
create function audit.given_back() returns trigger language plpgsql as $$ begin
    update audit.permitted set ended = nextval('audit.moment') where run_id = old.run_id and token = old.token;
    return null;
end $$;
create trigger given_back after delete on runledger.lease for each row execute function audit.given_back();

create function audit.recovered() returns trigger language plpgsql as $$ begin
    if new.cause = 'released' and exists (
        select from audit.claim join runledger.worker using (worker_id) where run_id = new.run_id and claims = new.claims and state = 'draining'
    ) then
        insert into audit.recovery (run_id, cause) values (new.run_id, 'handed back');
    else
        insert into audit.recovery (run_id, cause) values (new.run_id, new.cause);
    end if;
    return null;
end $$;
create trigger recovered after insert on runledger.ready for each row when (new.cause in ('crashed', 'released')) execute function audit.recovered();

create function audit.changed() returns trigger language plpgsql as $$ begin
    insert into audit.tampering (run_id, what) values (old.run_id, tg_op || ' of ' || tg_table_name);
    return null;
end $$;
create trigger changed after update or delete on runledger.outcome for each row execute function audit.changed();

-- Of a run that has begun anew the steps until then are forgotten.
create function audit.forgotten() returns trigger language plpgsql as $$ begin
    if tg_op = 'DELETE' and exists (
        select from runledger.continuation where continuation.run_id = old.run_id and continuation.claims >= old.claims
    ) then
        return null;
    end if;
    insert into audit.tampering (run_id, what) values (old.run_id, tg_op || ' of step');
    return null;
end $$;
create trigger changed after update or delete on runledger.step for each row execute function audit.forgotten();

create function audit.revived() returns trigger language plpgsql as $$ begin
    if exists (select from runledger.outcome where run_id = new.run_id) then
        insert into audit.tampering (run_id, what) values (new.run_id, tg_table_name || ' after its end');
    end if;
    return null;
end $$;
create trigger revived after insert on runledger.ready for each row execute function audit.revived();
create trigger revived after insert on runledger.lease for each row execute function audit.revived();
create trigger revived after insert on runledger.waiting for each row execute function audit.revived();
create trigger revived after insert on runledger.step for each row execute function audit.revived();

create table audit.wake (run_id uuid, n_left bigint, at timestamptz default clock_timestamp());
create function audit.woken() returns trigger language plpgsql as $$ begin
    insert into audit.wake (run_id, n_left)
    select new.run_id, count(*)
    from runledger.run
    where parent_id = new.run_id and not exists (select from runledger.outcome where outcome.run_id = run.run_id);
    return null;
end $$;
create trigger woken after insert on runledger.ready for each row when (new.cause = 'woken' and new.job = 'check.joining') execute function audit.woken();
";

/// A claim, as the trigger recorded it.
#[derive(Clone, Debug)]
pub struct Claim {
    /// The run.
    pub run_id: Uuid,
    /// The token of the attempt.
    pub token: Uuid,
    /// The worker that claimed the run.
    pub worker_id: i64,
    /// The number of this claim of the run, from 1.
    pub claims: i32,
    /// The time, in microseconds since 1970.
    pub at_us: i64,
}

/// Something that an attempt writes once: a step, or (with an empty key) the end of a run.
#[derive(Clone, Debug)]
pub struct Written {
    /// The run.
    pub run_id: Uuid,
    /// The step key. Empty for the end of a run.
    pub key: String,
    /// The output as JSON text. `None` for a failure.
    pub output: Option<String>,
    /// The time, in microseconds since 1970.
    pub at_us: i64,
    /// The attempt number. Only for ends.
    pub attempt: i32,
    /// The state. Only for ends.
    pub state: String,
    /// Whether a compensation is recorded with the step. Only for steps.
    pub is_undoable: bool,
}

/// All rows that the checkers read.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// Every claim, oldest first.
    pub claims: Vec<Claim>,
    /// The recorded steps.
    pub steps: Vec<Written>,
    /// The outcomes of runs.
    pub ends: Vec<Written>,
    /// The run of each failed attempt that was followed by another. Crashes, divergences and failed
    /// compensations are recorded elsewhere and use up no attempt.
    pub failed: Vec<Uuid>,
    /// Why runs continued in another attempt. `crashed`: the worker died. `released`: the worker
    /// did not know of its claim. `handed back`: the worker stopped.
    pub recoveries: Vec<String>,
    /// The job of each run.
    pub jobs: HashMap<Uuid, String>,
    /// The parent of each run that has one.
    pub parents: HashMap<Uuid, Uuid>,
    /// The lines that runs have emitted.
    pub lines: Vec<Line>,
    /// The claimed runs that needed a permit, in the order of their claims.
    pub permitted: Vec<Permitted>,
    /// The largest number of seconds by which the server's clock was put back.
    pub put_back_s: i64,
    /// The indexes of a run's claims.
    pub(super) by_run: HashMap<Uuid, Vec<usize>>,
}

impl Facts {
    /// Installs the triggers.
    ///
    /// # Errors
    /// When the database refuses.
    pub async fn record(connection: &mut PgConnection) -> Result<()> {
        sqlx::raw_sql(AUDIT).execute(connection).await?;
        Ok(())
    }

    /// Reads everything.
    ///
    /// # Errors
    /// When the database does not answer.
    pub async fn load(connection: &mut PgConnection) -> Result<Self> {
        let claims = sqlx::query(
            "select run_id, token, worker_id, claims, (extract(epoch from at) * 1e6)::int8 as at_us from audit.claim order by at",
        )
        .fetch_all(&mut *connection)
        .await?;
        let steps = sqlx::query(
            "select run_id, key, output::text as output, (extract(epoch from recorded_at) * 1e6)::int8 as at_us, 0 as attempt, '' as state,
                compensation is not null and claims > 0 as is_undoable
            from runledger.step order by recorded_at",
        )
        .fetch_all(&mut *connection)
        .await?;
        let ends = sqlx::query(
            "select run_id, '' as key, output::text as output, (extract(epoch from finished_at) * 1e6)::int8 as at_us, attempt, state,
                false as is_undoable
            from runledger.outcome order by finished_at",
        )
        .fetch_all(&mut *connection)
        .await?;
        let failed = sqlx::query_scalar(
            "select run_id from runledger.attempt
            where step_key = '' and error ->> 'kind' not in ('crash', 'diverged') and error ->> 'message' not like 'step `compensate[%'",
        );
        let recoveries = sqlx::query_scalar("select cause from audit.recovery order by at");
        let runs: Vec<(Uuid, String, Option<Uuid>)> =
            sqlx::query_as("select run_id, job, parent_id from runledger.run")
                .fetch_all(&mut *connection)
                .await?;
        let lines: Vec<(Uuid, i64, String, i32)> =
            sqlx::query_as("select run_id, position, step_key, number from runledger.output")
                .fetch_all(&mut *connection)
                .await?;
        let permitted: Vec<(String, Uuid, i64, Option<i64>)> =
            sqlx::query_as("select resource, run_id, began, ended from audit.permitted order by began")
                .fetch_all(&mut *connection)
                .await?;
        Ok(Self {
            permitted: permitted
                .into_iter()
                .map(|(resource, run_id, began, ended)| Permitted { resource, run_id, began, ended })
                .collect(),
            steps: steps.iter().map(written).collect::<Result<_>>()?,
            ends: ends.iter().map(written).collect::<Result<_>>()?,
            failed: failed.fetch_all(&mut *connection).await?,
            recoveries: recoveries.fetch_all(connection).await?,
            parents: runs.iter().filter_map(|(run_id, _, parent)| Some((*run_id, (*parent)?))).collect(),
            jobs: runs.into_iter().map(|(run_id, job, _)| (run_id, job)).collect(),
            lines: lines
                .into_iter()
                .map(|(run_id, position, step_key, number)| Line { run_id, position, step_key, number })
                .collect(),
            ..Self::of_claims(claims.iter().map(claim).collect::<Result<_>>()?)
        })
    }

    /// Facts with these claims (oldest first) and nothing else.
    #[must_use]
    pub fn of_claims(claims: Vec<Claim>) -> Self {
        let mut by_run: HashMap<Uuid, Vec<usize>> = HashMap::new();
        for (at, claim) in claims.iter().enumerate() {
            by_run.entry(claim.run_id).or_default().push(at);
        }
        Self { claims, by_run, ..Self::default() }
    }

    /// Counts the runs that continued in another attempt because of a fault. A stopping worker that
    /// hands its runs back is not a fault.
    #[must_use]
    pub fn n_recoveries(&self) -> usize {
        self.recoveries.iter().filter(|cause| *cause != "handed back").count()
    }

    /// Corrects the times of a server whose clock was sometimes wrong by one of `wrong_by` seconds.
    ///
    /// The correct time is the smallest candidate that is not before the start of the scenario.
    /// This requires that the errors differ by more than the duration of the scenario.
    pub fn at_real_time(&mut self, began_us: i64, wrong_by: &[i64]) {
        let put_back =
            wrong_by.iter().enumerate().flat_map(|(at, from)| wrong_by[at..].iter().map(move |to| from - to));
        self.put_back_s = put_back.max().unwrap_or_default();
        let right = |at_us: i64| {
            let candidates = wrong_by.iter().map(|seconds| at_us - seconds * 1_000_000);
            candidates.filter(|at_us| *at_us >= began_us).min().unwrap_or(at_us)
        };
        for claim in &mut self.claims {
            claim.at_us = right(claim.at_us);
        }
        for written in self.steps.iter_mut().chain(&mut self.ends) {
            written.at_us = right(written.at_us);
        }
    }

    /// Returns a copy without the steps and ends of these runs.
    #[must_use]
    pub fn without(&self, runs: &HashSet<Uuid>) -> Self {
        let mut rest = self.clone();
        rest.steps.retain(|step| !runs.contains(&step.run_id));
        rest.ends.retain(|end| !runs.contains(&end.run_id));
        rest.lines.retain(|line| !runs.contains(&line.run_id));
        rest
    }

    /// Returns the claims of a run, oldest first.
    pub fn claims_of(&self, run_id: Uuid) -> impl Iterator<Item = &Claim> {
        self.by_run.get(&run_id).into_iter().flatten().filter_map(|at| self.claims.get(*at))
    }

    /// Returns the claim with this token.
    #[must_use]
    pub fn claim_with(&self, run_id: Uuid, token: Uuid) -> Option<&Claim> {
        self.claims_of(run_id).find(|claim| claim.token == token)
    }

    /// Returns the claim that superseded this token, if any.
    #[must_use]
    pub fn claim_after(&self, run_id: Uuid, token: Uuid) -> Option<&Claim> {
        let own = self.claim_with(run_id, token)?.claims;
        self.claims_of(run_id).filter(|claim| claim.claims > own).min_by_key(|claim| claim.claims)
    }
}

fn claim(row: &sqlx::postgres::PgRow) -> Result<Claim> {
    Ok(Claim {
        run_id: row.try_get("run_id")?,
        token: row.try_get("token")?,
        worker_id: row.try_get("worker_id")?,
        claims: row.try_get("claims")?,
        at_us: row.try_get("at_us")?,
    })
}

fn written(row: &sqlx::postgres::PgRow) -> Result<Written> {
    Ok(Written {
        run_id: row.try_get("run_id")?,
        key: row.try_get("key")?,
        output: row.try_get("output")?,
        at_us: row.try_get("at_us")?,
        attempt: row.try_get("attempt")?,
        state: row.try_get("state")?,
        is_undoable: row.try_get("is_undoable")?,
    })
}

#[cfg(test)]
impl Written {
    /// A step that a test makes up.
    pub(crate) fn step(run_id: Uuid, key: &str, at_us: i64) -> Self {
        let (key, output, state) = (key.to_owned(), Some("null".to_owned()), String::new());
        Self { run_id, key, output, at_us, attempt: 0, state, is_undoable: false }
    }

    /// The end of a run in its first attempt, made up by a test.
    pub(crate) fn end(run_id: Uuid, state: &str, output: &str, at_us: i64) -> Self {
        let (output, state) = (Some(output.to_owned()), state.to_owned());
        Self { run_id, key: String::new(), output, at_us, attempt: 1, state, is_undoable: false }
    }
}
