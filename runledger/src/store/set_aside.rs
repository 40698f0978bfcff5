//! Runs that maintenance sets aside because their rows, or what others do to them, make it fail. Other runs do not wait for
//! them.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use sqlx::PgConnection;
use uuid::Uuid;

use super::error::spares_others;
use super::places::has_repaired;

/// The first pause of a run, and the longest one whose length only the number of failures decides.
const FIRST_PAUSE: Duration = Duration::from_secs(5);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Each of them pauses so many times as long as a try of all of them takes.
const REST: u32 = 4;

#[derive(Debug, Default)]
pub(crate) struct SetAside(HashMap<Uuid, Pause>);

#[derive(Debug)]
struct Pause {
    end: Instant,
    length: Duration,
}

impl SetAside {
    /// The runs to leave out.
    pub(crate) fn runs(&mut self) -> Vec<Uuid> {
        let now = Instant::now();
        // Who fails again soon after its pause gets a longer one.
        self.0.retain(|_, pause| now < pause.end + pause.length);
        self.0.iter().filter(|(_, pause)| now < pause.end).map(|(run_id, _)| *run_id).collect()
    }

    pub(crate) fn has(&self, run_id: Uuid) -> bool {
        self.0.get(&run_id).is_some_and(|pause| Instant::now() < pause.end)
    }

    /// Sets a run aside whose last try `took` so long.
    pub(crate) fn add(&mut self, run_id: Uuid, took: Duration) {
        let n_others = u32::try_from(self.0.len()).unwrap_or(u32::MAX);
        let rest = took.saturating_mul(REST).saturating_mul(n_others.saturating_add(1));
        let now = Instant::now();
        let length = match self.0.get(&run_id) {
            None => FIRST_PAUSE,
            Some(pause) if now < pause.end => pause.length,
            Some(pause) => (pause.length * 2).min(LONGEST_PAUSE),
        };
        let length = length.max(rest);
        self.0.insert(run_id, Pause { end: now + length, length });
    }

    /// Does some work for runs: for all at once, or one by one if that fails. Sets those aside for which it fails then, too.
    /// Returns what the work does.
    pub(crate) async fn spare<F>(
        &mut self,
        connection: &mut PgConnection,
        runs: &[Uuid],
        work: F,
    ) -> Result<Vec<Uuid>, sqlx::Error>
    where
        F: AsyncFn(&mut PgConnection, &[Uuid]) -> Result<Vec<Uuid>, sqlx::Error>,
    {
        match Box::pin(repaired(connection, runs, &work)).await {
            Err(error) if spares_others(&error) => {}
            done => return done,
        }
        let mut all = Vec::new();
        for run_id in runs {
            // If the caller gives this try up, the next one begins with others.
            self.add(*run_id, Duration::ZERO);
            let began = Instant::now();
            match Box::pin(repaired(connection, &[*run_id], &work)).await {
                Ok(done) => {
                    self.0.remove(run_id);
                    all.extend(done);
                }
                Err(error) if spares_others(&error) => {
                    tracing::warn!(%error, %run_id, "maintenance fails for a run; it goes on with others and tries again");
                    self.add(*run_id, began.elapsed());
                }
                Err(error) => return Err(error),
            }
        }
        Ok(all)
    }
}

/// Repeats the work if a run was in two places and is in one now.
async fn repaired<F>(connection: &mut PgConnection, runs: &[Uuid], work: &F) -> Result<Vec<Uuid>, sqlx::Error>
where
    F: AsyncFn(&mut PgConnection, &[Uuid]) -> Result<Vec<Uuid>, sqlx::Error>,
{
    match work(connection, runs).await {
        Err(error) if has_repaired(connection, &error, runs).await? => work(connection, runs).await,
        done => done,
    }
}
