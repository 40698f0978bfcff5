//! Shows a progress bar of the recorded steps, and which steps ran when.

use std::io::Write;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use runledger::{ClientError, Db, Error, StepInfo};
use uuid::Uuid;

/// The pause between two polls of the recorded steps.
const LOOK: Duration = Duration::from_millis(50);

/// How many polls in a row may fail. The limit is 30 s, as long as the wait for the result
/// tolerates an unavailable database.
const MOST_FAILED: u32 = 600;

/// How many steps of a kind the summary names.
const NAMED: usize = 4;

/// The progress of one run, read from the database. It shows the steps that would survive a crash.
#[derive(Debug)]
pub struct Screen {
    db: Db,
    run_id: Uuid,
    bar: ProgressBar,
}

impl Screen {
    /// Creates a screen for a run without drawing it. It never draws if standard error is not a
    /// terminal.
    #[must_use]
    pub fn new(db: &Db, run_id: Uuid) -> Self {
        let bar = ProgressBar::no_length();
        if let Ok(style) =
            ProgressStyle::with_template("  {bar:40.cyan/dim} {pos} of {len} steps recorded, {elapsed}")
        {
            bar.set_style(style.progress_chars("━╸─"));
        }
        Self { db: db.clone(), run_id, bar }
    }

    /// Draws the bar until the future is dropped. Skips a failed poll, because the survey continues
    /// without it.
    ///
    /// # Errors
    /// If the database fails 600 times in a row.
    pub async fn follow(&self) -> Result<std::convert::Infallible, ClientError> {
        let mut n_failed = 0;
        loop {
            match self.draw().await {
                Ok(()) => n_failed = 0,
                Err(_) if n_failed < MOST_FAILED => n_failed += 1,
                Err(error) => return Err(error),
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Draws the bar for the last time.
    ///
    /// # Errors
    /// If the database fails, or the terminal is closed.
    pub async fn finish(&self) -> Result<(), Error> {
        self.draw().await?;
        self.bar.abandon();
        if !self.bar.is_hidden() {
            // The bar leaves the cursor at the end of its line.
            writeln!(std::io::stderr())?;
        }
        Ok(())
    }

    /// Summarizes the steps that were recorded before and those that ran now, in two lines.
    #[must_use]
    pub fn summary(before: &[StepInfo], now: &[StepInfo]) -> String {
        let keys = |steps: &[&StepInfo]| {
            let named: Vec<&str> = steps.iter().take(NAMED).map(|step| step.key.as_str()).collect();
            let more = steps.len().saturating_sub(NAMED);
            format!(
                "{}{}",
                named.join(", "),
                if more > 0 { format!(", … {more} more") } else { String::new() }
            )
        };
        let is_old = |step: &&StepInfo| {
            before.iter().any(|old| old.key == step.key && old.recorded_at == step.recorded_at)
        };
        let (old, new): (Vec<_>, Vec<_>) = now.iter().partition(is_old);
        let mut text = String::new();
        if !old.is_empty() {
            text = format!("  {:>5} steps not repeated: {}\n", old.len(), keys(&old));
        }
        text + &format!("  {:>5} steps ran now:     {}", new.len(), keys(&new))
    }

    async fn draw(&self) -> Result<(), ClientError> {
        let sql = "
            select count(*), sum(json_array_length(output -> 'files') + 1) filter (where key = 'list' or key like 'list#%')
            from runledger.step
            where run_id = $1";
        let (recorded, listed): (i64, Option<i64>) =
            sqlx::query_as(sql).bind(self.run_id).fetch_one(self.db.pool()).await?;
        if let Some(listed) = listed {
            // One more step merges the results.
            self.bar.set_length(u64::try_from(listed).unwrap_or(0) + 1);
        }
        self.bar.set_position(u64::try_from(recorded).unwrap_or(0));
        Ok(())
    }
}

/// Returns how many steps of a run are recorded.
pub(crate) async fn n_recorded(db: &Db, run_id: Uuid) -> Result<u64, ClientError> {
    let sql = "select count(*) from runledger.step where run_id = $1";
    let count: i64 = sqlx::query_scalar(sql).bind(run_id).fetch_one(db.pool()).await?;
    Ok(u64::try_from(count).unwrap_or(0))
}
