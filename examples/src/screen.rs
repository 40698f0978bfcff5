//! What the quickstart shows: a bar that follows the recorded steps, and which steps ran when.

use std::io::Write;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use runledger::{ClientError, Db, Error, StepInfo};
use uuid::Uuid;

/// Between two looks at the recorded steps.
const LOOK: Duration = Duration::from_millis(50);

/// How many looks in a row may fail: half a minute of them, as long as the wait for the result rides out a database that is away.
const MOST_FAILED: u32 = 600;

/// How many steps of a kind are named.
const NAMED: usize = 4;

/// The progress of one run, read from the database: it shows what would survive a crash, not what this process believes.
#[derive(Debug)]
pub struct Screen {
    db: Db,
    run_id: Uuid,
    bar: ProgressBar,
}

impl Screen {
    /// A screen for a run; nothing is drawn yet, and nothing ever where the standard error is not a terminal.
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

    /// Draws the bar until it is dropped. A look that fails is skipped: the survey itself goes on without it.
    ///
    /// # Errors
    /// The database failed again and again.
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
    /// The database failed, or the terminal is gone.
    pub async fn finish(&self) -> Result<(), Error> {
        self.draw().await?;
        self.bar.abandon();
        if !self.bar.is_hidden() {
            // The bar leaves the cursor behind itself.
            writeln!(std::io::stderr())?;
        }
        Ok(())
    }

    /// The steps that were recorded before and those that are now, in two lines.
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
            // Beside the listings and the files there is the merging.
            self.bar.set_length(u64::try_from(listed).unwrap_or(0) + 1);
        }
        self.bar.set_position(u64::try_from(recorded).unwrap_or(0));
        Ok(())
    }
}

/// How many steps of a run are recorded.
pub(crate) async fn n_recorded(db: &Db, run_id: Uuid) -> Result<u64, ClientError> {
    let sql = "select count(*) from runledger.step where run_id = $1";
    let count: i64 = sqlx::query_scalar(sql).bind(run_id).fetch_one(db.pool()).await?;
    Ok(u64::try_from(count).unwrap_or(0))
}
