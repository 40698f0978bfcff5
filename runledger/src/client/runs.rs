//! Lists of runs, and looks at one, of those tenants that the caller names.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::str::FromStr;

use thiserror::Error;
use uuid::Uuid;

use crate::connection::client_error::ClientError;
use crate::connection::db::{Db, connection};
use crate::definition::registry;
use crate::model::name::{check_key, check_text};
use crate::model::state::RunState;
use crate::model::timestamp::Timestamp;
use crate::store::inspect::RunInfo;
use crate::store::runs::{Spot, Wanted, runs};

/// How many runs a page has at most, and by default.
const MOST: u16 = 1_000;
const DEFAULT: u16 = 100;

/// How many runs are looked at for a page where not all of them are wanted: some milliseconds.
const LOOK_AT: u16 = 2_000;

/// Whose runs are meant. It is always said: what was forgotten must not mean everybody's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TenantScope {
    /// Those of one tenant.
    Tenant(String),
    /// Those of no tenant.
    Global,
    /// Those of every tenant, and of none.
    All,
}

impl TenantScope {
    /// The runs of one tenant.
    pub fn tenant(name: impl Into<String>) -> Self {
        Self::Tenant(name.into())
    }

    /// The tenants, as they are stored; none: every one.
    pub(crate) fn tenants(self) -> Result<Option<Vec<String>>, ClientError> {
        self.check()?;
        Ok(match self {
            Self::Tenant(name) => Some(vec![name]),
            Self::Global => Some(vec![String::new()]),
            Self::All => None,
        })
    }

    /// An empty name is no tenant, and must not mean the runs of none.
    fn check(&self) -> Result<(), ClientError> {
        match self {
            Self::Tenant(name) => Ok(check_key("tenant", name)?),
            Self::Global | Self::All => Ok(()),
        }
    }

    fn has(&self, tenant: &str) -> bool {
        match self {
            Self::Tenant(name) => name == tenant,
            Self::Global => tenant.is_empty(),
            Self::All => true,
        }
    }
}

impl Db {
    /// The runs of a tenant, of none, or of all, the latest first: a page of them, and the place where the next begins. Await what this gives, with or without
    /// saying more.
    ///
    /// ```no_run
    /// # use runledger::prelude::*;
    /// # use runledger::{RunState, TenantScope};
    /// # async fn show(db: &Db) -> Result<()> {
    /// let mut page = db.runs(TenantScope::tenant("acme")).job("charge").state(RunState::Failed).await?;
    /// loop {
    ///     for run in &page.runs {
    ///         println!("{} {} {}", run.run_id, run.job, run.state);
    ///     }
    ///     let Some(next) = page.next else { break };
    ///     page = db.runs(TenantScope::tenant("acme")).job("charge").state(RunState::Failed).after(next).await?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Runs that are created meanwhile stand before the first page; none is left out or given twice. Costs one statement, which looks at as many runs as it
    /// gives, or, where a job, a queue or a state is wanted, at 2,000 at most: so a page may have fewer runs than its limit, or none, and there are others behind
    /// it as long as it has a `next`. With [`TenantScope::All`] it looks at so many of each tenant.
    ///
    /// # Errors
    /// The tenant is not a valid name, the job or queue contains a NUL character, or the database failed.
    pub fn runs(&self, scope: TenantScope) -> ListRuns {
        ListRuns { db: self.clone(), scope, wanted: Wanted::default(), limit: DEFAULT }
    }

    /// Where a run stands, as [`run`](Self::run) tells it, if it is of such a tenant: that there is one of another is not told. One query.
    ///
    /// # Errors
    /// [`ClientError::NoSuchRun`], the name of a tenant that breaks the rule, or a failure of the database.
    pub async fn run_within(&self, scope: &TenantScope, run_id: Uuid) -> Result<RunInfo, ClientError> {
        scope.check()?;
        let run = self.run(run_id).await?;
        if scope.has(&run.tenant) { Ok(run) } else { Err(ClientError::NoSuchRun { run_id }) }
    }
}

/// A list of runs that is about to be read: await it.
#[must_use = "nothing is read until it is awaited"]
#[derive(Clone, Debug)]
pub struct ListRuns {
    db: Db,
    scope: TenantScope,
    wanted: Wanted,
    limit: u16,
}

impl ListRuns {
    /// Only runs of this job, under any of its names that this program knows and in any version. Said again: of that one too.
    pub fn job(mut self, name: &str) -> Self {
        let names = registry::names_of(name);
        self.wanted.jobs.get_or_insert_default().extend(names);
        self
    }

    /// Only runs of this queue. Said again: of that one too.
    pub fn queue(mut self, name: impl Into<String>) -> Self {
        self.wanted.queues.get_or_insert_default().push(name.into());
        self
    }

    /// Only runs in this state. Said again: in that one too.
    pub fn state(mut self, state: RunState) -> Self {
        self.wanted.states.get_or_insert_default().push(state.to_string());
        self
    }

    /// How many runs a page has at most: from 1 to 1,000, 100 where nothing is said.
    pub fn limit(mut self, limit: u16) -> Self {
        self.limit = limit.clamp(1, MOST);
        self
    }

    /// From where the page before has ended.
    pub fn after(mut self, place: RunCursor) -> Self {
        self.wanted.before = Some(place.0);
        self
    }

    async fn read(self) -> Result<RunsPage, ClientError> {
        let Self { db, scope, wanted, limit } = self;
        for job in wanted.jobs.iter().flatten() {
            check_text("job", job)?;
        }
        for queue in wanted.queues.iter().flatten() {
            check_text("queue", queue)?;
        }
        let is_any = wanted.jobs.is_none() && wanted.queues.is_none() && wanted.states.is_none();
        let look_at = if is_any { limit } else { LOOK_AT.max(limit) };
        let wanted =
            Wanted { tenants: scope.tenants()?, look_at: look_at.into(), limit: limit.into(), ..wanted };
        let found = runs(&mut *connection(db.pool()).await?, &wanted, db.sealer()).await?;
        Ok(RunsPage { runs: found.runs, next: found.rest.map(RunCursor) })
    }
}

impl IntoFuture for ListRuns {
    type Output = Result<RunsPage, ClientError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.read())
    }
}

/// Some runs of a list.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RunsPage {
    /// The latest first. None of them may be wanted, though there are others behind.
    pub runs: Vec<RunInfo>,
    /// Where the next page begins; none where there is none.
    pub next: Option<RunCursor>,
}

/// A place in a list of runs: as text it goes through a URL and comes back by [`str::parse`]. It is a place in time, whatever runs are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunCursor(Spot);

/// A text that is no place in a list of runs.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("`{0}` is no place in a list of runs; give back what `RunsPage::next` was as text")]
pub struct InvalidRunCursor(String);

impl fmt::Display for RunCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0.created_at.unix_micros(), self.0.run_id.simple())
    }
}

impl FromStr for RunCursor {
    type Err = InvalidRunCursor;

    fn from_str(text: &str) -> Result<Self, InvalidRunCursor> {
        let spot = || {
            let (micros, run_id) = text.split_once('.')?;
            let created_at = Timestamp::from_unix_micros(micros.parse().ok()?);
            Some(Spot { created_at, run_id: Uuid::try_parse(run_id).ok()? })
        };
        spot().map(Self).ok_or_else(|| InvalidRunCursor(text.chars().take(80).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_goes_through_text_and_other_text_is_none() {
        let place = RunCursor(Spot {
            created_at: Timestamp::from_unix_micros(1_795_000_000_123_456),
            run_id: Uuid::from_u128(7),
        });
        assert_eq!(place.to_string().parse(), Ok(place));
        for text in ["", ".", "1", "1.", "x.00000000000000000000000000000007", "1.7", "1.2.3"] {
            assert_eq!(text.parse::<RunCursor>(), Err(InvalidRunCursor(text.to_owned())));
        }
    }
}
