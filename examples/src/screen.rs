//! What the quickstart shows: a bar that follows the recorded steps, and which steps ran when.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use runledger::{ClientError, Db, StepInfo};
use uuid::Uuid;

/// Between two looks at the recorded steps.
const LOOK: Duration = Duration::from_millis(50);

/// How many steps of a kind are named.
const NAMED: usize = 4;

/// The steps of a survey beside those for the files: the listing and the merging.
const OTHER_STEPS: u64 = 2;

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

    /// Draws the bar until it is dropped.
    ///
    /// # Errors
    /// The database failed.
    pub async fn follow(&self) -> Result<std::convert::Infallible, ClientError> {
        loop {
            self.draw().await?;
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Draws the bar for the last time.
    ///
    /// # Errors
    /// The database failed.
    pub async fn finish(&self) -> Result<(), ClientError> {
        self.draw().await?;
        self.bar.abandon();
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
        let (recorded, files): (i64, Option<i32>) = sqlx::query_as(
            "select count(*), max(json_array_length(output -> 'files')) filter (where key = 'list') from runledger.step where run_id = $1",
        )
        .bind(self.run_id)
        .fetch_one(self.db.pool())
        .await?;
        if let Some(files) = files {
            self.bar.set_length(u64::try_from(files).unwrap_or(0) + OTHER_STEPS);
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
