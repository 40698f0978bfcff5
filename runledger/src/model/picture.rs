//! The picture of a graph: what it is made of, and where its nodes stand once it was submitted; as text for a terminal, JSON, DOT and SVG.
//!
//! Names and reasons come from anywhere. `words` spells out what people would not see, and each writer escapes by the rules of its form.

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

use super::graph_state::GraphState;
use super::state::RunState;
use crate::model::dependency_inputs::CONDITION;

/// The format of the JSON that this program writes, and the only one that it reads.
const FORMAT: u32 = 1;

/// The nodes and edges of a graph, for people and tools: before it is submitted ([`Graph::picture`](crate::Graph::picture)), or with where each node stands
/// ([`RunHandle::picture`](crate::RunHandle::picture)).
///
/// `Display` gives a table for a terminal. Of what nodes are given and give it shows nothing; the reasons have the messages of errors.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct GraphPicture {
    /// The version of the format.
    format: u32,
    /// The name of the graph.
    pub graph: String,
    /// Its run, once it was submitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_id: Option<Uuid>,
    /// Where it stands, once it was submitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<GraphState>,
    /// The name of its result node, where it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<String>,
    /// Its nodes, by name.
    pub nodes: Vec<PictureNode>,
    /// Its edges, by the names of the node that needs another and of that one.
    pub edges: Vec<PictureEdge>,
}

/// One node of a [`GraphPicture`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PictureNode {
    /// Its name in the graph.
    pub name: String,
    /// The name of its job; none for a gate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<String>,
    /// Where it stands, once the graph was submitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<RunState>,
    /// Why it stands there: what it failed with, what it was cancelled for, how much it waits for, who decided about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// One edge of a [`GraphPicture`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PictureEdge {
    /// The name of the node that is needed.
    pub from: String,
    /// The name of the node that needs it.
    pub to: String,
    /// Which end of it will do.
    pub on: EdgeKind,
    /// The parameters of `to` that are given what `from` gave.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parameters: Vec<String>,
}

/// Which end of a node will do for one that needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum EdgeKind {
    /// Its success.
    Success,
    /// Its success, and that it gave `true`: the other is skipped where it gave `false`.
    Condition,
    /// Any end.
    Terminal,
}

/// Why the JSON of a picture cannot be read or written.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PictureError {
    /// It is not the JSON of a picture.
    #[error("this is not the JSON of the picture of a graph")]
    Json(#[from] serde_json::Error),
    /// It is of another format.
    #[error(
        "this picture has format {found}, and this program reads format {FORMAT}; export it again with this version"
    )]
    Format {
        /// Its format.
        found: u32,
    },
    /// No graph looks like it.
    #[error("no graph has this picture: {0}; export it again, and leave it as it is")]
    Malformed(String),
}

impl GraphPicture {
    pub(crate) fn new(graph: String, mut nodes: Vec<PictureNode>, mut edges: Vec<PictureEdge>) -> Self {
        // One order, whatever the order of the declaration or the collation of the database: so the same graph has the same picture.
        nodes.sort_by(|one, other| one.name.cmp(&other.name));
        edges.sort_by(|one, other| (&one.to, &one.from).cmp(&(&other.to, &other.from)));
        Self { format: FORMAT, graph, run_id: None, state: None, result: None, nodes, edges }
    }

    /// The same with a result node.
    pub(crate) fn with_result(self, result: Option<String>) -> Self {
        Self { result, ..self }
    }

    /// The same of a graph that was submitted.
    pub(crate) fn of_run(self, run_id: Uuid, state: GraphState) -> Self {
        Self { run_id: Some(run_id), state: Some(state), ..self }
    }

    /// Reads a picture from its JSON.
    ///
    /// # Errors
    /// [`PictureError`]: it is no picture of this format, or contradicts itself.
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

    /// Its JSON: `format`, `graph`, `run_id`, `state`, `result`, `nodes` and `edges`, as the fields are named. The same picture gives the same text.
    ///
    /// # Errors
    /// [`PictureError::Json`]; none is known that happens.
    pub fn to_json(&self) -> Result<String, PictureError> {
        Ok(serde_json::to_string_pretty(self)? + "\n")
    }

    /// Its text in the DOT language, for Graphviz: `dot -Tsvg`. Gates are octagons, the result has a second outline, edges that any end will do for are dashed
    /// and say so; states are written as words, and coloured.
    #[must_use]
    pub fn to_dot(&self) -> String {
        dot::written(self)
    }

    /// An SVG document, from left to right in layers: a node stands behind all that it needs. It needs no font, script or style sheet of elsewhere. States are
    /// written as words, and coloured; what is cut or too much for a box is in the titles. Takes time and space in proportion to the graph.
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
