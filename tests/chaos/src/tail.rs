//! What a server had that took the place of another did not: commits that were acknowledged, and that an asynchronous standby had not received.

use std::collections::HashSet;

use anyhow::Result;
use runledger_tests::check::calls::{Submission, Told};
use runledger_tests::check::{Event, Facts};
use sqlx::{Connection, PgConnection};
use uuid::Uuid;

/// The runs and claims of a server.
#[derive(Clone, Debug, Default)]
pub struct Content {
    /// The runs.
    pub runs: HashSet<Uuid>,
    /// The tokens of claims.
    pub claims: HashSet<Uuid>,
}

impl Content {
    /// Those of a database.
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn of(url: &str) -> Result<Self> {
        let mut connection = PgConnection::connect(url).await?;
        let runs = sqlx::query_scalar("select run_id from runledger.run");
        let runs: Vec<Uuid> = runs.fetch_all(&mut connection).await?;
        let claims = sqlx::query_scalar("select token from audit.claim");
        let claims: Vec<Uuid> = claims.fetch_all(&mut connection).await?;
        connection.close().await?;
        Ok(Self { runs: runs.into_iter().collect(), claims: claims.into_iter().collect() })
    }

    /// What this one has and the other has not.
    #[must_use]
    pub fn without(&self, other: &Self) -> Self {
        Self {
            runs: self.runs.difference(&other.runs).copied().collect(),
            claims: self.claims.difference(&other.claims).copied().collect(),
        }
    }

    /// Adds another.
    pub fn extend(&mut self, other: Self) {
        self.runs.extend(other.runs);
        self.claims.extend(other.claims);
    }

    /// Takes out of the history what was promised by a server that is gone and is not there any more, nor was told again. Says how much.
    pub fn forgive(&self, submissions: &mut Vec<Submission>, there: &HashSet<Uuid>) -> usize {
        let n_before = submissions.len();
        let is_lost = |run_id: Uuid| self.runs.contains(&run_id) && !there.contains(&run_id);
        submissions
            .retain(|submission| submission.told != Told::Ok || !submission.run_id.is_some_and(is_lost));
        n_before - submissions.len()
    }

    /// Takes out the bodies whose claims nobody knows any more: nothing that they gave was kept, and the run may have been claimed again meanwhile.
    pub fn forget_bodies(&self, events: &mut Vec<Event>, facts: &Facts) -> usize {
        let n_before = events.len();
        let is_lost = |event: &Event| {
            self.claims.contains(&event.token) && facts.claim_with(event.run_id, event.token).is_none()
        };
        events.retain(|event| !is_lost(event));
        n_before - events.len()
    }
}
