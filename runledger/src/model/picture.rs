//! The picture of a graph: its nodes and edges, and their states after submission. It can be
//! written as text for a terminal, JSON, DOT and SVG.
//!
//! Names and reasons may contain anything. `words` makes invisible characters visible, and each
//! writer escapes by the rules of its format.

mod arrange;
mod dot;
mod layers;
mod svg;
mod text;
mod words;

use std::collections::HashSet;

use serde::{Deserialize, Serialize};
use thiserror::Error;
use uuid::Uuid;

use crate::model::graph::dependency_inputs::CONDITION;
use crate::model::graph::graph_state::GraphState;
use crate::model::run::state::RunState;

/// The JSON format that this program writes. It reads no other.
const FORMAT: u32 = 1;

/// The nodes and edges of a graph, for people and tools.
///
/// [`Graph::picture`](crate::Graph::picture) returns it before the submission, and
/// [`GraphHandle::picture`](crate::GraphHandle::picture) returns it with the states of the nodes.
/// `Display` writes a table for a terminal. The picture omits inputs and outputs of nodes, but
/// reasons contain error messages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct GraphPicture {
    /// The version of the format.
    format: u32,
    /// The name of the graph.
    pub graph: String,
    /// The run, after submission.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_id: Option<Uuid>,
    /// The state of the graph, after submission.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<GraphState>,
    /// The name of the result node, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<String>,
    /// The nodes, by name.
    pub nodes: Vec<PictureNode>,
    /// The edges, by the names of the dependent node and of the dependency.
    pub edges: Vec<PictureEdge>,
}

/// One node of a [`GraphPicture`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PictureNode {
    /// The name in the graph.
    pub name: String,
    /// The name of the job. `None` for a gate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<String>,
    /// The state, after submission.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<RunState>,
    /// The reason of the state: the failure, the reason of a cancel, the number of open
    /// dependencies, or who decided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// One edge of a [`GraphPicture`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PictureEdge {
    /// The name of the dependency.
    pub from: String,
    /// The name of the dependent node.
    pub to: String,
    /// The outcome that the dependent node needs.
    pub on: EdgeKind,
    /// The parameters of `to` that take the output of `from`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parameters: Vec<String>,
}

/// The outcome that a dependent node needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum EdgeKind {
    /// Success.
    Success,
    /// Success with the output `true`. With `false`, the dependent node is skipped.
    Condition,
    /// Any outcome.
    Terminal,
}

/// An error of reading or writing the JSON of a picture.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PictureError {
    /// The text is not the JSON of a picture.
    #[error("this is not the JSON of the picture of a graph")]
    Json(#[from] serde_json::Error),
    /// The picture has another format.
    #[error(
        "this picture has format {found}, and this program reads format {FORMAT}; export it again with this version"
    )]
    Format {
        /// The format of the picture.
        found: u32,
    },
    /// No graph can have this picture.
    #[error("no graph has this picture: {0}; export it again, and leave it as it is")]
    Malformed(String),
}

impl GraphPicture {
    pub(crate) fn new(graph: String, mut nodes: Vec<PictureNode>, mut edges: Vec<PictureEdge>) -> Self {
        // Sorting makes the picture independent of the order of the declaration and of the
        // database's collation.
        nodes.sort_by(|one, other| one.name.cmp(&other.name));
        edges.sort_by(|one, other| (&one.to, &one.from).cmp(&(&other.to, &other.from)));
        Self { format: FORMAT, graph, run_id: None, state: None, result: None, nodes, edges }
    }

    /// Sets the result node.
    pub(crate) fn with_result(self, result: Option<String>) -> Self {
        Self { result, ..self }
    }

    /// Sets the run and the state of a submitted graph.
    pub(crate) fn of_run(self, run_id: Uuid, state: GraphState) -> Self {
        Self { run_id: Some(run_id), state: Some(state), ..self }
    }

    /// Reads a picture from JSON.
    ///
    /// # Errors
    /// [`PictureError`] if the text is not a picture of this format, or contradicts itself.
    pub fn from_json(text: &str) -> Result<Self, PictureError> {
        #[derive(Deserialize)]
        struct Head {
            format: u32,
        }
        let Head { format } = serde_json::from_str(text)?;
        if format != FORMAT {
            return Err(PictureError::Format { found: format });
        }
        let picture: Self = serde_json::from_str(text)?;
        picture.check().map_err(PictureError::Malformed)?;
        Ok(picture)
    }

    /// Writes the picture as JSON with the fields `format`, `graph`, `run_id`, `state`, `result`,
    /// `nodes` and `edges`. Equal pictures give equal texts.
    ///
    /// # Errors
    /// [`PictureError::Json`]; no cause is known.
    pub fn to_json(&self) -> Result<String, PictureError> {
        Ok(serde_json::to_string_pretty(self)? + "\n")
    }

    /// Writes the picture in the DOT language of Graphviz, for `dot -Tsvg`.
    ///
    /// Gates are octagons, and the result has a second outline. Edges that accept any outcome are
    /// dashed and labelled. States are words with a colour.
    #[must_use]
    pub fn to_dot(&self) -> String {
        dot::written(self)
    }

    /// Writes an SVG document with layers from left to right: each node follows all its
    /// dependencies.
    ///
    /// The document needs no external font, script or style sheet. States are words with a colour.
    /// Titles contain the texts that were cut or do not fit into a box. Time and space are
    /// proportional to the graph.
    #[must_use]
    pub fn to_svg(&self) -> String {
        svg::written(self)
    }

    fn check(&self) -> Result<(), String> {
        let mut names = HashSet::with_capacity(self.nodes.len());
        if let Some(twin) = self.nodes.iter().find(|node| !names.insert(node.name.as_str())) {
            return Err(format!("two nodes are called `{}`", twin.name));
        }
        let ends = self.edges.iter().flat_map(|edge| [&edge.from, &edge.to]);
        match ends.chain(&self.result).find(|name| !names.contains(name.as_str())) {
            Some(absent) => Err(format!("there is no node `{absent}`")),
            None => Ok(()),
        }
    }

    fn is_result(&self, node: &PictureNode) -> bool {
        self.result.as_ref() == Some(&node.name)
    }
}

impl PictureNode {
    pub(crate) fn new(name: String, job: Option<String>) -> Self {
        Self { name, job, state: None, reason: None }
    }

    pub(crate) fn standing(self, state: RunState, reason: Option<String>) -> Self {
        Self { state: Some(state), reason, ..self }
    }
}

impl PictureEdge {
    pub(crate) fn new(from: String, to: String, on_terminal: bool, parameters: Vec<String>) -> Self {
        let (conditions, parameters): (Vec<_>, Vec<_>) =
            parameters.into_iter().partition(|parameter| parameter.starts_with(CONDITION));
        let on = match on_terminal {
            true => EdgeKind::Terminal,
            false if !conditions.is_empty() => EdgeKind::Condition,
            false => EdgeKind::Success,
        };
        Self { from, to, on, parameters }
    }
}

#[cfg(test)]
mod tests;
