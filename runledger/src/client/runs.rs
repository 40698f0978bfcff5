//! Lists of runs, and queries for one run, within the tenants that the caller names.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::str::FromStr;

use thiserror::Error;
use uuid::Uuid;

use crate::connection::client_error::ClientError;
use crate::connection::db::{Db, connection};
use crate::definition::registry;
use crate::model::run::name::{check_key, check_text};
use crate::model::run::state::RunState;
use crate::model::timestamp::Timestamp;
use crate::store::run::inspect::RunInfo;
use crate::store::run::runs::{Spot, Wanted, runs};

/// The maximum and the default number of runs on a page.
const MOST: u16 = 1_000;
const DEFAULT: u16 = 100;

/// How many runs a filtered page examines at most: a few milliseconds.
const LOOK_AT: u16 = 2_000;

/// Whose runs a query covers. It is always explicit, so that a forgotten tenant does not mean
/// everyone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TenantScope {
    /// The runs of one tenant.
    Tenant(String),
    /// The runs without a tenant.
    Global,
    /// All runs, with and without a tenant.
    All,
}

impl TenantScope {
    /// Covers the runs of one tenant.
    pub fn tenant(name: impl Into<String>) -> Self {
        Self::Tenant(name.into())
    }

    /// Returns the tenants as they are stored. `None` means every tenant.
    pub(crate) fn tenants(self) -> Result<Option<Vec<String>>, ClientError> {
        self.check()?;
        Ok(match self {
            Self::Tenant(name) => Some(vec![name]),
            Self::Global => Some(vec![String::new()]),
            Self::All => None,
        })
    }

    /// An empty name is not a tenant. It must not mean the runs without a tenant.
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
    /// Lists runs, newest first, in pages. Await the returned value, with or without filters.
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
    /// Runs created between two pages appear before the first page. No run is skipped or returned
    /// twice.
    ///
    /// # Errors
    /// The tenant is not a valid name, the job or queue contains a NUL character, or the database
    /// failed.
    ///
    /// # Cost
    /// One statement. Without filters it examines as many runs as it returns. With a job, queue or
    /// state filter it examines at most 2,000. So a page may have fewer runs than its limit, or
    /// none; more pages follow as long as it has a `next`. With [`TenantScope::All`], the statement
    /// examines this number of runs per tenant.
    pub fn runs(&self, scope: TenantScope) -> ListRuns {
        ListRuns { db: self.clone(), scope, wanted: Wanted::default(), limit: DEFAULT }
    }

    /// Returns the run's state and properties, as [`RunHandle::info`](crate::RunHandle::info) does,
    /// if the run is within `scope`.
    ///
    /// A run of another tenant gives the same error as a missing run. One query.
    ///
    /// # Errors
    /// [`ClientError::NoSuchRun`], an invalid tenant name, or a database error.
    pub async fn run_within(&self, scope: &TenantScope, run_id: Uuid) -> Result<RunInfo, ClientError> {
        scope.check()?;
        let run = self.run(run_id).info().await?;
        if scope.has(&run.tenant) { Ok(run) } else { Err(ClientError::NoSuchRun { run_id }) }
    }
}

/// A list of runs that is not read yet: await it.
#[must_use = "nothing is read until it is awaited"]
#[derive(Clone, Debug)]
pub struct ListRuns {
    db: Db,
    scope: TenantScope,
    wanted: Wanted,
    limit: u16,
}

impl ListRuns {
    /// Returns only runs of this job, under any name that this program knows, in any version.
    /// Repeated calls add jobs.
    pub fn job(mut self, name: &str) -> Self {
        let names = registry::names_of(name);
        self.wanted.jobs.get_or_insert_default().extend(names);
        self
    }

    /// Returns only runs of this queue. Repeated calls add queues.
    pub fn queue(mut self, name: impl Into<String>) -> Self {
        self.wanted.queues.get_or_insert_default().push(name.into());
        self
    }

    /// Returns only runs in this state. Repeated calls add states.
    pub fn state(mut self, state: RunState) -> Self {
        self.wanted.states.get_or_insert_default().push(state.to_string());
        self
    }

    /// The maximum number of runs on a page: 1 to 1,000, default 100.
    pub fn limit(mut self, limit: u16) -> Self {
        self.limit = limit.clamp(1, MOST);
        self
    }

    /// Starts after the previous page.
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

/// A page of a list of runs.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RunsPage {
    /// The runs, newest first. May be empty even if `next` is set.
    pub runs: Vec<RunInfo>,
    /// Where the next page starts. `None` after the last page.
    pub next: Option<RunCursor>,
}

/// A cursor in a list of runs.
///
/// Its text form fits in a URL; [`str::parse`] reads it back. It is a point in time and does not
/// depend on the filters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunCursor(Spot);

/// A text that is not a cursor in a list of runs.
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
    fn run_cursor_round_trips_through_text_and_refuses_other_text() {
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
