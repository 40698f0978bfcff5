//! Declared graphs: what they are made of, everything that can be wrong with one, and the canonical form of its request.

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
use super::name::{NameError, check_key, check_name, hint};
use super::request::RequestOptions;

/// The job under which graphs are stored: its code concludes them.
pub const GRAPH: &str = "runledger.graph";

/// The job of map nodes: its code starts a run for each item.
pub const MAP: &str = "runledger.map";

/// The job under which gates are stored. No worker runs it.
pub const GATE: &str = "runledger.gate";

/// The most nodes of one graph. All of them are written by one statement, and shown by some.
pub const MAX_NODES: usize = 10_000;

/// The most edges of one graph.
pub const MAX_EDGES: usize = 100_000;

/// How many problems of one kind are named; of the others their number.
const MAX_NAMED: usize = 20;

/// One node of a graph.
#[derive(Clone, Debug)]
pub struct PlannedNode {
    /// Its name in the graph.
    pub name: String,
    /// What it is.
    pub kind: PlannedKind,
}

/// What a node is.
#[derive(Clone, Debug)]
pub enum PlannedKind {
    /// A job, by the name under which it is known longest.
    Job(String),
    /// A gate, and the options of a job that were said of it all the same.
    Gate(Vec<&'static str>),
    /// A node that the graph has already: of an addition, and the options that were said of it all the same.
    Existing(Vec<&'static str>),
}

/// One edge of a graph.
#[derive(Clone, Debug)]
pub struct PlannedEdge {
    /// The place of the node that needs the other.
    pub dependant: usize,
    /// The node that it needs.
    pub needs: Target,
    /// Whether any end of it will do.
    pub on_terminal: bool,
    /// The parameters that are given what it gave.
    pub parameters: Vec<String>,
}

/// A node that another needs, or that is the result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// By its place.
    At(usize),
    /// By its name.
    Named(String),
    /// A node of another graph.
    Elsewhere,
}

/// The shape of a graph.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// Its name.
    pub name: String,
    /// Its nodes.
    pub nodes: Vec<PlannedNode>,
    /// Its edges.
    pub edges: Vec<PlannedEdge>,
    /// The node whose output is its result.
    pub result: Option<Target>,
    /// The methods that should change a node but received a node of another graph.
    pub foreign: BTreeSet<&'static str>,
    /// Problems that were found as the graph was declared.
    pub refused: Vec<GraphProblem>,
}

/// A checked graph: every edge leads from one place to another.
#[derive(Clone, Debug)]
pub struct Checked {
    /// Of each node the places of those that it needs, each once.
    pub needs: Vec<BTreeMap<usize, Need>>,
    /// The place of the result.
    pub result: Option<usize>,
}

/// In what way one node needs another.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Need {
    /// Whether any end of it will do. Of several edges between two nodes the strictest counts.
    pub on_terminal: bool,
    /// The parameters that are given what it gave. They take its outcome if any end will do, and its output otherwise.
    pub parameters: Vec<String>,
}

/// Everything that is wrong with a graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GraphError {
    graph: String,
    problems: Vec<GraphProblem>,
}

/// One thing that is wrong with a graph.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum GraphProblem {
    /// It has no node.
    #[error("it has no nodes; give it a call or a gate")]
    Empty,
    /// It has too many nodes or edges.
    #[error(
        "it has {n} {what}, and {most} is the most; let a node start the rest as runs of their own, or use several graphs"
    )]
    TooLarge {
        /// `nodes` or `edges`.
        what: &'static str,
        /// How many it has.
        n: usize,
        /// How many it may have.
        most: usize,
    },
    /// A name breaks a rule.
    #[error(transparent)]
    Name(#[from] NameError),
    /// Several nodes have one name.
    #[error("{n} nodes are called `{name}`; tell them apart with `.key(…)`")]
    Duplicate {
        /// The name.
        name: String,
        /// How many have it.
        n: usize,
    },
    /// A node needs one that is not there.
    #[error("`{node}` needs `{needs}`, which is not in it{hint}")]
    Unknown {
        /// The node.
        node: String,
        /// What it needs.
        needs: String,
        /// A name that is near, or nothing.
        hint: String,
    },
    /// A node needs one of another graph.
    #[error("`{node}` needs a node of another graph; nodes are known only to the graph that made them")]
    Elsewhere {
        /// The node.
        node: String,
    },
    /// A method should change a node but received a node of another graph.
    #[error(
        "`{method}` is given a node of another graph; use a node that this graph made, and in an addition name a node of the graph with `existing`"
    )]
    ForeignNode {
        /// The method.
        method: &'static str,
    },
    /// A node needs itself.
    #[error("`{node}` needs itself")]
    SelfDependency {
        /// The node.
        node: String,
    },
    /// Nodes need one another in a circle.
    #[error("these need one another in a circle: {path}")]
    Cycle {
        /// The names, the first once more at the end.
        path: String,
    },
    /// A gate has an option of jobs.
    #[error("the gate `{gate}` has `{option}`, which only jobs have: no worker runs a gate")]
    GateOption {
        /// The gate.
        gate: String,
        /// The option.
        option: &'static str,
    },
    /// A new graph has a node that is said to be there.
    #[error(
        "`{node}` is said to be there already, and the graph is new; only what `handle.extend_from(…).append(…)` is given has such nodes"
    )]
    NotThere {
        /// The node.
        node: String,
    },
    /// An addition says something of a node that is there.
    #[error("`{node}` is there already, so that it cannot be given {what} any more")]
    There {
        /// The node.
        node: String,
        /// `another node to wait for` or the name of an option.
        what: String,
    },
    /// An addition has a node with a name that the graph has.
    #[error(
        "the graph has a node `{name}` already; tell them apart with `.key(…)`, or say `existing_node` where that one is meant"
    )]
    Taken {
        /// The name.
        name: String,
    },
    /// An addition names a node that the graph does not have.
    #[error("`{name}` is said to be there already, and the graph has no such node{hint}")]
    NoSuchNode {
        /// The name.
        name: String,
        /// A name that is near, or nothing.
        hint: String,
    },
    /// An addition is called otherwise than the graph.
    #[error("it is an addition to `{name}`, and the graph is called `{whole}`")]
    OtherGraph {
        /// What the addition is called.
        name: String,
        /// What the graph is called.
        whole: String,
    },
    /// An addition has an option of whole graphs.
    #[error(
        "it has {option}, which only a whole graph has: an addition becomes a part of the one that is there"
    )]
    AdditionOption {
        /// The option.
        option: &'static str,
    },
    /// A gate is given something.
    #[error(
        "the gate `{gate}` is given {what}, and nobody would read it: no worker runs a gate; say so of a node before or after it"
    )]
    GateInput {
        /// The gate.
        gate: String,
        /// `a condition`, or the parameter.
        what: String,
    },
    /// The result is a node that is not there.
    #[error("its result is to be that of `{name}`, which is not in it{hint}")]
    UnknownResult {
        /// What was named.
        name: String,
        /// A name that is near, or nothing.
        hint: String,
    },
    /// A parameter is given what another node gives, and the job has no such parameter, or is given it twice; or it
    /// takes any end of a node whose success another edge needs.
    #[error("`{node}` is given the parameter `{parameter}`, {why}")]
    Parameter {
        /// The node.
        node: String,
        /// The parameter.
        parameter: String,
        /// What is wrong.
        why: String,
    },
    /// A parameter that its job needs and nothing gives it.
    #[error("nothing gives `{node}` the parameter `{parameter}`, which its job `{job}` needs")]
    Missing {
        /// The node.
        node: String,
        /// The parameter.
        parameter: String,
        /// The job.
        job: String,
    },
    /// Its call is refused.
    #[error("the call of `{node}` is refused: {why}")]
    Refused {
        /// The node.
        node: String,
        /// Why.
        why: String,
    },
}

impl GraphError {
    /// An error of these problems, or none.
    ///
    /// # Errors
    /// Where there are any.
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
    /// Every problem at once; of circles one for each knot.
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
                    // The others are counted, and a hint costs a look at every node.
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

    /// Parameters that take any end of a node whose success another edge needs: they would be given its bare output.
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

    /// One circle of each knot: nodes are taken away as long as one needs none that is left, and from the others the needs are followed.
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
            // Each of these needs one that is not free either, so that the walk ends where it has been.
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

/// The canonical form of a request for a graph: what a repeated keyed submission is compared with, by `unordered`. Nodes have no order in it.
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

/// The canonical form of a request for an addition to a graph.
#[derive(Debug, Serialize)]
pub struct AdditionRequest<'r> {
    /// The name of the node that had to go on.
    pub window: &'r str,
    /// The nodes by name.
    pub nodes: BTreeMap<&'r str, NodeRequest<'r>>,
}

/// One node of it.
#[derive(Debug, Serialize)]
pub struct NodeRequest<'r> {
    /// The job by its oldest name; none for a gate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job: Option<&'r str>,
    /// What it is given beside what other nodes give, as a fingerprint: the node has the text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input: Option<String>,
    /// Its tenant, where it is not the graph's.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub tenant: &'r str,
    /// The options that were said.
    #[serde(flatten)]
    pub options: Cow<'r, RequestOptions>,
    /// What it needs, by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub needs: BTreeMap<&'r str, NeedRequest<'r>>,
}

/// One edge of it.
#[derive(Debug, Serialize)]
pub struct NeedRequest<'r> {
    /// Whether any end will do.
    pub on_terminal: bool,
    /// The parameters that are given what it gave.
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    pub parameters: &'r [String],
}
