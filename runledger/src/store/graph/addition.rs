//! Additions to graphs: reads and locks what an addition depends on, before it adds nodes to a live
//! graph.

use std::collections::HashSet;

use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row};
use uuid::Uuid;

use crate::model::graph::NodeEnding;
use crate::store::sql;

/// What an addition needs to know about its graph.
#[derive(Debug)]
pub(crate) struct Whole {
    /// The name of the graph; `None` if the run is not a graph.
    pub(crate) name: Option<String>,
    /// How the graph ended; `None` if it is live.
    pub(crate) ended: Option<NodeEnding>,
    pub(crate) n_nodes: i64,
    /// The canonical form of an earlier addition with the same key.
    pub(crate) request: Option<String>,
}

/// Locks the run of a graph, and reads what an addition needs to know about the graph.
pub(crate) async fn whole(
    connection: &mut PgConnection,
    graph_id: Uuid,
    key: &str,
) -> Result<Option<Whole>, sqlx::Error> {
    sqlx::query(sql::LOCK_RUNS).bind(vec![graph_id]).execute(&mut *connection).await?;
    let row = sqlx::query(sql::ADDITION).bind(graph_id).bind(key).fetch_optional(connection).await?;
    row.map(|row| {
        Ok(Whole {
            name: row.try_get("graph")?,
            ended: ended(&row)?,
            n_nodes: row.try_get("n_nodes")?,
            request: row.try_get("request")?,
        })
    })
    .transpose()
}

/// A node of the graph that an addition names.
#[derive(Debug)]
pub(crate) struct Standing {
    pub(crate) run_id: Uuid,
    /// How the node ended; `None` if it is live.
    pub(crate) ended: Option<NodeEnding>,
    /// Whether the addition will create this node.
    pub(crate) is_new: bool,
}

/// Locks nodes and all their dependencies, so that none of them ends or moves, and returns their
/// outcomes. `None` if one of them is about to end or move: its transaction has written but not yet
/// committed.
pub(crate) async fn hold(
    connection: &mut PgConnection,
    needed: &[Uuid],
    new: &[Uuid],
) -> Result<Option<Vec<Standing>>, sqlx::Error> {
    let rows = sqlx::query(sql::APPEND_LOCK).bind(needed).fetch_all(&mut *connection).await?;
    let held = rows.iter().map(|row| row.try_get("run_id")).collect::<Result<HashSet<Uuid>, _>>()?;
    let rows = sqlx::query(sql::APPEND_LOOK).bind(needed).bind(new).fetch_all(connection).await?;
    let standings = rows.iter().map(standing).collect::<Result<Vec<_>, _>>()?;
    let stays = |node: &Standing| node.is_new || node.ended.is_some() || held.contains(&node.run_id);
    Ok(standings.iter().all(stays).then_some(standings))
}

fn standing(row: &PgRow) -> Result<Standing, sqlx::Error> {
    Ok(Standing { run_id: row.try_get("run_id")?, ended: ended(row)?, is_new: row.try_get("is_new")? })
}

fn ended(row: &PgRow) -> Result<Option<NodeEnding>, sqlx::Error> {
    let word: Option<&str> = row.try_get("state")?;
    let unknown = |word: &str| sqlx::Error::Decode(format!("the end `{word}` of a node is not known").into());
    word.map(|word| NodeEnding::parse(word).ok_or_else(|| unknown(word))).transpose()
}
