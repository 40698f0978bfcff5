//! Link: new runs that are another go at old ones, with the steps that they keep.

use sqlx::{PgConnection, Row};
use uuid::Uuid;

use super::checkpoint::{seen_text, steps};
use super::sql;
use super::write::write;
use crate::model::replay::Recorded;
use crate::model::state::RunState;

/// A run that another is to be made of.
#[derive(Debug)]
pub(crate) struct Origin {
    pub(crate) run_id: Uuid,
    pub(crate) parent_id: Option<Uuid>,
    pub(crate) state: RunState,
    /// Without the outputs that cannot be the id of a run.
    pub(crate) steps: Vec<Recorded>,
    /// Whether what they did is taken back, or is about to be.
    pub(crate) is_undone: bool,
}

/// A run to be made.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) run_id: Uuid,
    pub(crate) origin_id: Uuid,
    pub(crate) parent_id: Option<Uuid>,
    pub(crate) steps: Vec<KeptStep>,
}

/// What becomes of the signals that were sent to the old runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Signals {
    /// The new ones have them too: those that no kept step has taken are left.
    Kept,
    /// The new ones begin without.
    Left,
}

/// A step that is taken over.
#[derive(Debug)]
pub(crate) struct KeptStep {
    pub(crate) key: String,
    /// What takes the place of its output: the id of a child that takes the place of another.
    pub(crate) output: Option<String>,
    pub(crate) seen: Option<Vec<u64>>,
}

/// Reads runs and their steps. Those that do not exist are left out.
pub(crate) async fn origins(
    connection: &mut PgConnection,
    runs: &[Uuid],
) -> Result<Vec<Origin>, sqlx::Error> {
    let rows = sqlx::query(sql::ORIGINS).bind(runs).fetch_all(connection).await?;
    rows.iter()
        .map(|row| {
            Ok(Origin {
                run_id: row.try_get("run_id")?,
                parent_id: row.try_get("parent_id")?,
                state: super::inspect::state(row)?,
                steps: steps(row)?,
                is_undone: row.try_get("is_undone")?,
            })
        })
        .collect()
}

/// A run below this one that has not ended, if there is one.
pub(crate) async fn going_on_below(
    connection: &mut PgConnection,
    run_id: Uuid,
) -> Result<Option<Uuid>, sqlx::Error> {
    sqlx::query_scalar(sql::GOING_ON_BELOW).bind(run_id).fetch_optional(connection).await
}

/// Makes a run, and those that go with it. False where it is there already: then nothing is made.
pub(crate) async fn link(
    connection: &mut PgConnection,
    first: Uuid,
    links: &[Link],
    signals: Signals,
) -> Result<bool, sqlx::Error> {
    let steps: Vec<(Uuid, &KeptStep)> =
        links.iter().flat_map(|link| link.steps.iter().map(|step| (link.run_id, step))).collect();
    let row = write(sql::LINK, |make| {
        sqlx::query(make)
            .bind(first)
            .bind(links.iter().map(|link| link.run_id).collect::<Vec<_>>())
            .bind(links.iter().map(|link| link.origin_id).collect::<Vec<_>>())
            .bind(links.iter().map(|link| link.parent_id).collect::<Vec<_>>())
            .bind(steps.iter().map(|(run_id, _)| *run_id).collect::<Vec<_>>())
            .bind(steps.iter().map(|(_, step)| step.key.as_str()).collect::<Vec<_>>())
            .bind(steps.iter().map(|(_, step)| step.output.as_deref()).collect::<Vec<_>>())
            .bind(steps.iter().map(|(_, step)| seen_text(step.seen.as_deref())).collect::<Vec<_>>())
            .bind(signals == Signals::Kept)
            .fetch_one(connection)
    })
    .await?;
    row.try_get("created")
}
