//! Declared graphs: their parts, all checks, and the canonical form of a request.

pub mod dependency_inputs;
pub mod graph_state;
pub mod link;

mod addition;
#[cfg(test)]
mod tests;
mod unordered;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::{self, Write as _};

use serde::Serialize;
use thiserror::Error;

pub use self::addition::{NodeEnding, NodeStatus, Unreachable, standings};
pub use self::unordered::unordered;
use crate::model::run::name::{NameError, check_key, check_name, hint};
use crate::model::run::request::RequestOptions;

/// The job of graphs. Its code concludes a graph.
pub const GRAPH: &str = "runledger.graph";

/// The job of map nodes. Its code starts a run for each item.
pub const MAP: &str = "runledger.map";

/// The job of gates. No worker runs it.
pub const GATE: &str = "runledger.gate";

/// The maximum number of nodes in a graph. One statement writes all of them, and some statements
/// show all.
pub const MAX_NODES: usize = 10_000;

/// The maximum number of edges in a graph.
pub const MAX_EDGES: usize = 100_000;

/// The maximum number of problems of one kind that are listed. The others are only counted.
const MAX_NAMED: usize = 20;

/// One node of a graph.
#[derive(Clone, Debug)]
pub struct PlannedNode {
    /// The name in the graph.
    pub name: String,
    /// The job, gate or existing node.
    pub kind: PlannedKind,
}

/// The kind of a node.
#[derive(Clone, Debug)]
pub enum PlannedKind {
    /// A job, by its oldest name.
    Job(String),
    /// A gate, and the job options that the caller set on it in error.
    Gate(Vec<&'static str>),
    /// An existing node of the extended graph, and the options that the caller set on it in error.
    Existing(Vec<&'static str>),
}

/// One edge of a graph.
#[derive(Clone, Debug)]
pub struct PlannedEdge {
    /// The place of the dependent node.
    pub dependant: usize,
    /// The dependency.
    pub needs: Target,
    /// Whether any outcome of the dependency is enough.
    pub on_terminal: bool,
    /// The parameters that take the dependency's output.
    pub parameters: Vec<String>,
}

/// A dependency, or the result node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A node by its place.
    At(usize),
    /// A node by its name.
    Named(String),
    /// A node of another graph.
    Elsewhere,
}

/// A graph before it is checked.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// The name.
    pub name: String,
    /// The nodes.
    pub nodes: Vec<PlannedNode>,
    /// The edges.
    pub edges: Vec<PlannedEdge>,
    /// The node whose output is the result.
    pub result: Option<Target>,
    /// The methods that should change a node but received a node of another graph.
    pub foreign: BTreeSet<&'static str>,
    /// Problems that the declaration found.
    pub refused: Vec<GraphProblem>,
}

/// A checked graph: every edge has two valid ends.
#[derive(Clone, Debug)]
pub struct Checked {
    /// The dependencies of each node by place, without duplicates.
    pub needs: Vec<BTreeMap<usize, Need>>,
    /// The place of the result node.
    pub result: Option<usize>,
}

/// How one node depends on another.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Need {
    /// Whether any outcome is enough. If two nodes have several edges, the strictest counts.
    pub on_terminal: bool,
    /// The parameters that take the dependency's value: its outcome if any outcome is enough,
    /// otherwise its output.
    pub parameters: Vec<String>,
}

/// All problems of a graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GraphError {
    graph: String,
    problems: Vec<GraphProblem>,
}

/// One problem of a graph.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum GraphProblem {
    /// The graph has no nodes.
    #[error("it has no nodes; give it a call or a gate")]
    Empty,
    /// The graph has too many nodes or edges.
    #[error(
        "it has {n} {what}, and {most} is the most; let a node start the rest as runs of their own, or use several graphs"
    )]
    TooLarge {
        /// `nodes` or `edges`.
        what: &'static str,
        /// How many the graph has.
        n: usize,
        /// The maximum.
        most: usize,
    },
    /// A name breaks a rule.
    #[error(transparent)]
    Name(#[from] NameError),
    /// Several nodes have the same name.
    #[error("{n} nodes are called `{name}`; tell them apart with `.key(…)`")]
    Duplicate {
        /// The name.
        name: String,
        /// The number of nodes with this name.
        n: usize,
    },
    /// A dependency does not exist.
    #[error("`{node}` needs `{needs}`, which is not in it{hint}")]
    Unknown {
        /// The node.
        node: String,
        /// The dependency.
        needs: String,
        /// The advice if a similar name exists, otherwise empty.
        hint: String,
    },
    /// A dependency belongs to another graph.
    #[error("`{node}` needs a node of another graph; nodes are known only to the graph that made them")]
    Elsewhere {
        /// The node.
        node: String,
    },
    /// A method should change a node but received a node of another graph.
    #[error(
        "`{method}` is given a node of another graph; use a node that this graph made, and in an addition name a node of the graph with `existing_node`"
    )]
    ForeignNode {
        /// The method.
        method: &'static str,
    },
    /// A node depends on itself.
    #[error("`{node}` needs itself")]
    SelfDependency {
        /// The node.
        node: String,
    },
    /// Nodes depend on one another in a cycle.
    #[error("these need one another in a circle: {path}")]
    Cycle {
        /// The names along the cycle. The last name equals the first.
        path: String,
    },
    /// A gate has an option that only jobs have.
    #[error("the gate `{gate}` has `{option}`, which only jobs have: no worker runs a gate")]
    GateOption {
        /// The gate.
        gate: String,
        /// The option.
        option: &'static str,
    },
    /// A new graph refers to an existing node.
    #[error(
        "`{node}` is said to be there already, and the graph is new; only what `handle.extend_from(…).append(…)` is given has such nodes"
    )]
    NotThere {
        /// The node.
        node: String,
    },
    /// An extension changes an existing node.
    #[error("`{node}` is there already, so that it cannot be given {what} any more")]
    There {
        /// The node.
        node: String,
        /// `another node to wait for` or the name of an option.
        what: String,
    },
    /// An extension adds a node whose name exists in the graph.
    #[error(
        "the graph has a node `{name}` already; tell them apart with `.key(…)`, or say `existing_node` where that one is meant"
    )]
    Taken {
        /// The name.
        name: String,
    },
    /// An extension refers to a node that does not exist in the graph.
    #[error("`{name}` is said to be there already, and the graph has no such node{hint}")]
    NoSuchNode {
        /// The name.
        name: String,
        /// The advice if a similar name exists, otherwise empty.
        hint: String,
    },
    /// An extension has another name than the graph.
    #[error("it is an addition to `{name}`, and the graph is called `{whole}`")]
    OtherGraph {
        /// The name of the extension.
        name: String,
        /// The name of the graph.
        whole: String,
    },
    /// An extension has an option that only whole graphs have.
    #[error(
        "it has {option}, which only a whole graph has: an addition becomes a part of the one that is there"
    )]
    AdditionOption {
        /// The option.
        option: &'static str,
    },
    /// A gate has an input or a condition.
    #[error(
        "the gate `{gate}` is given {what}, and nobody would read it: no worker runs a gate; say so of a node before or after it"
    )]
    GateInput {
        /// The gate.
        gate: String,
        /// `a condition`, or the parameter.
        what: String,
    },
    /// The result node does not exist.
    #[error("its result is to be that of `{name}`, which is not in it{hint}")]
    UnknownResult {
        /// The name of the result node.
        name: String,
        /// The advice if a similar name exists, otherwise empty.
        hint: String,
    },
    /// A dependency fills a parameter that the job does not have, or that is filled twice. Or the
    /// parameter takes any outcome of a node whose success another edge needs.
    #[error("`{node}` is given the parameter `{parameter}`, {why}")]
    Parameter {
        /// The node.
        node: String,
        /// The parameter.
        parameter: String,
        /// The problem.
        why: String,
    },
    /// Nothing fills a required parameter.
    #[error("nothing gives `{node}` the parameter `{parameter}`, which its job `{job}` needs")]
    Missing {
        /// The node.
        node: String,
        /// The parameter.
        parameter: String,
        /// The job.
        job: String,
    },
    /// The call of a node is refused.
    #[error("the call of `{node}` is refused: {why}")]
    Refused {
        /// The node.
        node: String,
        /// Why.
        why: String,
    },
}

impl GraphError {
    /// Returns an error if there are problems.
    ///
    /// # Errors
    /// At least one problem exists.
    pub fn of(graph: &str, problems: Vec<GraphProblem>) -> Result<(), Self> {
        if problems.is_empty() { Ok(()) } else { Err(Self { graph: graph.to_owned(), problems }) }
    }

    /// The problems.
    #[must_use]
    pub fn problems(&self) -> &[GraphProblem] {
        &self.problems
    }
}

impl fmt::Display for GraphError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the graph `{}` cannot be submitted, and nothing was written: ", self.graph)?;
        for (at, problem) in self.problems.iter().take(MAX_NAMED).enumerate() {
            write!(f, "{}{problem}", if at == 0 { "" } else { "; " })?;
        }
        match self.problems.len().saturating_sub(MAX_NAMED) {
            0 => Ok(()),
            more => write!(f, "; and {more} problems more"),
        }
    }
}

impl std::error::Error for GraphError {}

impl Plan {
    /// Checks the whole graph.
    ///
    /// # Errors
    /// All problems at once. If cycles overlap, only some of them are listed.
    pub fn check(&self) -> Result<Checked, GraphError> {
        let mut problems = Vec::new();
        if let Err(error) = check_name("graph", &self.name) {
            problems.push(error.into());
        }
        self.check_sizes(&mut problems);
        problems.extend(self.foreign.iter().map(|method| GraphProblem::ForeignNode { method }));
        problems.extend(self.refused.iter().cloned());
        let places = self.check_nodes(&mut problems);
        let mut needs: Vec<BTreeMap<usize, Need>> = vec![BTreeMap::new(); self.nodes.len()];
        for edge in &self.edges {
            let node = self.name_at(edge.dependant);
            match self.place(&edge.needs, &places) {
                Err(name) => problems.push(match &edge.needs {
                    Target::Elsewhere => GraphProblem::Elsewhere { node },
                    // The error only counts further problems, and a hint compares the name with
                    // every node.
                    _ if problems.len() >= MAX_NAMED => {
                        GraphProblem::Unknown { node, hint: String::new(), needs: name }
                    }
                    _ => GraphProblem::Unknown { node, hint: self.hint(&name), needs: name },
                }),
                Ok(place) if place == edge.dependant => problems.push(GraphProblem::SelfDependency { node }),
                Ok(_) if self.is_existing(edge.dependant) => {
                    problems.push(GraphProblem::There { node, what: "another node to wait for".to_owned() });
                }
                Ok(place) => {
                    let Some(needs) = needs.get_mut(edge.dependant) else { continue };
                    match needs.get_mut(&place) {
                        None => {
                            let need =
                                Need { on_terminal: edge.on_terminal, parameters: edge.parameters.clone() };
                            needs.insert(place, need);
                        }
                        Some(need) => {
                            need.on_terminal &= edge.on_terminal;
                            need.parameters.extend(edge.parameters.iter().cloned());
                        }
                    }
                }
            }
        }
        problems.extend(self.contradictions(&needs, &places));
        let result = self.result.as_ref().and_then(|target| match self.place(target, &places) {
            Ok(place) => Some(place),
            Err(name) => {
                problems.push(match target {
                    Target::Elsewhere => GraphProblem::ForeignNode { method: "result" },
                    _ => GraphProblem::UnknownResult { hint: self.hint(&name), name },
                });
                None
            }
        });
        problems.extend(self.cycles(&needs));
        GraphError::of(&self.name, problems)?;
        Ok(Checked { needs, result })
    }

    /// Parameters that take any outcome of a node whose success another edge needs. They would
    /// receive the plain output.
    fn contradictions(
        &self,
        needs: &[BTreeMap<usize, Need>],
        places: &HashMap<&str, usize>,
    ) -> Vec<GraphProblem> {
        let strict = |edge: &&PlannedEdge| {
            let place = self.place(&edge.needs, places).ok()?;
            needs.get(edge.dependant)?.get(&place).filter(|need| !need.on_terminal)
        };
        let of_outcomes = self.edges.iter().filter(|edge| edge.on_terminal);
        let contradicting = of_outcomes.filter(|edge| strict(edge).is_some());
        let problem = |edge: &PlannedEdge, parameter: &String| {
            let needed = match &edge.needs {
                Target::At(place) => self.name_at(*place),
                Target::Named(name) => name.clone(),
                Target::Elsewhere => String::new(),
            };
            GraphProblem::Parameter {
                node: self.name_at(edge.dependant),
                parameter: parameter.clone(),
                why: format!(
                    "which takes any end of `{needed}`, and another edge needs the success of `{needed}`; \
                     use `on_any_outcome()` on all edges from `{needed}`, or on none"
                ),
            }
        };
        contradicting
            .flat_map(|edge| edge.parameters.iter().map(move |parameter| problem(edge, parameter)))
            .collect()
    }

    fn check_sizes(&self, problems: &mut Vec<GraphProblem>) {
        if self.nodes.is_empty() {
            problems.push(GraphProblem::Empty);
        }
        for (what, n, most) in
            [("nodes", self.nodes.len(), MAX_NODES), ("edges", self.edges.len(), MAX_EDGES)]
        {
            if n > most {
                problems.push(GraphProblem::TooLarge { what, n, most });
            }
        }
    }

    /// The places of the nodes by name.
    fn check_nodes(&self, problems: &mut Vec<GraphProblem>) -> HashMap<&str, usize> {
        let mut places: HashMap<&str, usize> = HashMap::with_capacity(self.nodes.len());
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for (place, node) in self.nodes.iter().enumerate() {
            *counts.entry(&node.name).or_default() += 1;
            places.entry(&node.name).or_insert(place);
            if let Err(error) = check_key("node", &node.name) {
                problems.push(error.into());
            }
            match &node.kind {
                PlannedKind::Job(_) => {}
                PlannedKind::Gate(options) => problems.extend(
                    options.iter().map(|option| GraphProblem::GateOption { gate: node.name.clone(), option }),
                ),
                PlannedKind::Existing(options) => problems.extend(options.iter().map(|option| {
                    GraphProblem::There { node: node.name.clone(), what: format!("`{option}`") }
                })),
            }
        }
        for (name, n) in counts.into_iter().filter(|(_, n)| *n > 1) {
            problems.push(GraphProblem::Duplicate { name: name.to_owned(), n });
        }
        places
    }

    fn place(&self, target: &Target, places: &HashMap<&str, usize>) -> Result<usize, String> {
        match target {
            Target::At(place) if *place < self.nodes.len() => Ok(*place),
            Target::At(place) => Err(format!("#{place}")),
            Target::Named(name) => places.get(name.as_str()).copied().ok_or_else(|| name.clone()),
            Target::Elsewhere => Err("a node of another graph".to_owned()),
        }
    }

    fn is_existing(&self, place: usize) -> bool {
        self.nodes.get(place).is_some_and(|node| matches!(node.kind, PlannedKind::Existing(_)))
    }

    fn name_at(&self, place: usize) -> String {
        self.nodes.get(place).map_or_else(String::new, |node| node.name.clone())
    }

    fn hint(&self, name: &str) -> String {
        hint(name, self.nodes.iter().map(|node| node.name.as_str()))
    }

    /// Finds cycles. Removes nodes without remaining dependencies, then follows one dependency of
    /// each remaining node until the path meets a visited node.
    fn cycles(&self, needs: &[BTreeMap<usize, Need>]) -> Vec<GraphProblem> {
        let mut dependants: Vec<Vec<usize>> = vec![Vec::new(); needs.len()];
        let mut n_left: Vec<usize> = needs.iter().map(BTreeMap::len).collect();
        for (place, needs) in needs.iter().enumerate() {
            for needed in needs.keys() {
                dependants[*needed].push(place);
            }
        }
        let mut free: Vec<usize> = (0..needs.len()).filter(|place| n_left[*place] == 0).collect();
        let mut is_free = vec![false; needs.len()];
        while let Some(place) = free.pop() {
            is_free[place] = true;
            for dependant in &dependants[place] {
                n_left[*dependant] -= 1;
                if n_left[*dependant] == 0 {
                    free.push(*dependant);
                }
            }
        }
        let mut seen = is_free.clone();
        let mut cycles = Vec::new();
        for start in 0..needs.len() {
            let mut path = Vec::new();
            let mut place = start;
            // Each of these nodes depends on another one that is not free, so the path ends at a
            // visited node.
            while !seen[place] {
                seen[place] = true;
                path.push(place);
                match needs[place].keys().find(|needed| !is_free[**needed]) {
                    Some(next) => place = *next,
                    None => break,
                }
            }
            if let Some(from) = path.iter().position(|visited| *visited == place) {
                let mut shown = String::new();
                for visited in path[from..].iter().chain([&place]) {
                    let arrow = if shown.is_empty() { "" } else { " → " };
                    let _ = write!(shown, "{arrow}`{}`", self.name_at(*visited));
                }
                cycles.push(GraphProblem::Cycle { path: shown });
            }
        }
        cycles
    }
}

/// The canonical form of a request for a graph. A repeated keyed submission is compared with it
/// through `unordered`, because its nodes have no order.
#[derive(Debug, Serialize)]
pub struct GraphRequest<'r> {
    /// The name of the graph.
    pub graph: &'r str,
    /// The name of the result node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<&'r str>,
    /// The nodes by name.
    pub nodes: BTreeMap<&'r str, NodeRequest<'r>>,
}

/// The canonical form of a request to extend a graph.
#[derive(Debug, Serialize)]
pub struct AdditionRequest<'r> {
    /// The name of the node that must still be live.
    pub window: &'r str,
    /// The nodes by name.
    pub nodes: BTreeMap<&'r str, NodeRequest<'r>>,
}

/// One node of a [`GraphRequest`].
#[derive(Debug, Serialize)]
pub struct NodeRequest<'r> {
    /// The oldest name of the job. `None` for a gate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job: Option<&'r str>,
    /// The fingerprint of the node's own arguments. The stored node has the text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input: Option<String>,
    /// The tenant; empty if it is the graph's tenant.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub tenant: &'r str,
    /// The options that the caller set.
    #[serde(flatten)]
    pub options: Cow<'r, RequestOptions>,
    /// The dependencies by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub needs: BTreeMap<&'r str, NeedRequest<'r>>,
}

/// One edge of a [`GraphRequest`].
#[derive(Debug, Serialize)]
pub struct NeedRequest<'r> {
    /// Whether any outcome is enough.
    pub on_terminal: bool,
    /// The parameters that take the dependency's value.
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    pub parameters: &'r [String],
}
