//! Reads live runs with their recorded steps in pages, to verify that the code still replays them.

use std::time::Instant;

use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row};
use uuid::Uuid;

use crate::model::graph::dependency_inputs::DependencyOutput;
use crate::model::payload::Stored;
use crate::model::replay::recorded::StoredStep;
use crate::model::unreadable::Unreadable;
use crate::store::attempt::checkpoint::steps;
use crate::store::error::problem_of_rows;
use crate::store::{given, sql};

/// A live run, as it is stored.
#[derive(Debug)]
pub(crate) struct InFlight {
    pub(crate) run_id: Uuid,
    pub(crate) job: String,
    pub(crate) tenant: String,
    pub(crate) queue: String,
    pub(crate) graph_id: Option<Uuid>,
    /// The number of attempts spent, without attempts that ended by a crash, a suspension or a
    /// shutdown.
    pub(crate) attempt: i32,
    /// Whether the run compensates, so that its code does not execute any more.
    pub(crate) compensating: bool,
    /// For a graph, a gate, or a node that waits for other nodes: the parameters that other nodes
    /// provide.
    pub(crate) fed: Option<Vec<String>>,
    /// An unreadable row affects only its own run, not the page.
    pub(crate) content: Result<Content, Unreadable>,
}

/// The parts of a run that its code reads.
#[derive(Debug)]
pub(crate) struct Content {
    pub(crate) input: Stored,
    /// For a node of a graph: the outcomes of its dependencies.
    pub(crate) given: Vec<DependencyOutput>,
    pub(crate) steps: Vec<StoredStep>,
}

/// Live runs in pages, in the order of their ids. A page has few runs if the runs are large. The
/// server puts the steps of a run into one value, and the client holds a page in memory.
#[derive(Debug)]
pub(crate) struct Pages {
    last: Uuid,
    n_runs: i64,
}

/// The maximum number of runs on a page.
const MOST_RUNS: i64 = 64;

/// The size of a page in bytes above which the next page has one run.
const LARGE: usize = 16 << 20;

/// The maximum number of statements that read one page.
pub(crate) const MAX_STATEMENTS: u32 = 3;

impl Pages {
    pub(crate) fn new() -> Self {
        Self { last: Uuid::nil(), n_runs: 1 }
    }

    /// Reads the next page, with at most [`MAX_STATEMENTS`] statements. `None` after the last run.
    pub(crate) async fn next(
        &mut self,
        connection: &mut PgConnection,
    ) -> Result<Option<Vec<InFlight>>, sqlx::Error> {
        let (rows, unreadable) = loop {
            let began = Instant::now();
            match self.rows(connection, true).await {
                Ok(rows) => {
                    let is_large = rows.iter().map(size).sum::<usize>() > LARGE;
                    self.n_runs = if is_large { 1 } else { (self.n_runs * 2).min(MOST_RUNS) };
                    break (rows, None);
                }
                // Together the runs may be too large.
                Err(_) if self.n_runs > 1 => self.n_runs = 1,
                Err(error) => {
                    let problem = problem_of_rows(&error, began.elapsed()).ok_or(error)?;
                    break (self.rows(connection, false).await?, Some(Unreadable::new("content", &problem)));
                }
            }
        };
        let Some(end) = rows.last() else { return Ok(None) };
        self.last = end.try_get("run_id")?;
        let mut page = Vec::with_capacity(rows.len());
        for row in &rows {
            // Workers do not claim a queue entry whose run is gone.
            if row.try_get::<Option<&str>, _>("job")?.is_some() {
                page.push(found(row, unreadable.clone().map_or_else(|| content(row), Err))?);
            }
        }
        Ok(Some(page))
    }

    async fn rows(
        &self,
        connection: &mut PgConnection,
        with_content: bool,
    ) -> Result<Vec<PgRow>, sqlx::Error> {
        sqlx::query(sql::IN_FLIGHT)
            .bind(self.last)
            .bind(self.n_runs)
            .bind(with_content)
            .fetch_all(connection)
            .await
    }
}

fn size(row: &PgRow) -> usize {
    let text = |column| row.try_get::<Option<&str>, _>(column).ok().flatten().map_or(0, str::len);
    ["input", "given", "steps"].map(text).iter().sum()
}

fn found(row: &PgRow, content: Result<Content, Unreadable>) -> Result<InFlight, sqlx::Error> {
    let fed: Option<Vec<Option<String>>> = row.try_get("fed")?;
    let has_null = fed.iter().flatten().any(Option::is_none);
    let content =
        if has_null { Err(Unreadable::new("edge.parameters", &"one of them is null")) } else { content };
    Ok(InFlight {
        run_id: row.try_get("run_id")?,
        job: row.try_get("job")?,
        tenant: row.try_get("tenant")?,
        queue: row.try_get("queue")?,
        graph_id: row.try_get("graph_id")?,
        attempt: row.try_get("attempt")?,
        compensating: row.try_get("compensating")?,
        fed: fed.map(|fed| fed.into_iter().flatten().collect()),
        content,
    })
}

fn content(row: &PgRow) -> Result<Content, Unreadable> {
    let input = row.try_get("input").map_err(|error| Unreadable::new("input", &error))?;
    Ok(Content { input: Stored::read(input), given: given(row)?, steps: steps(row)? })
}
