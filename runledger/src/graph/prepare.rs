//! Checks the nodes of a graph or of an addition. Reports all problems at once, or returns the rows
//! to write.

use std::collections::{BTreeMap, BTreeSet};

use uuid::Uuid;

use super::Declared;
use super::map::identity;
use crate::client::enqueue::{known_jobs, unknown_job};
use crate::connection::client_error::ClientError;
use crate::connection::db::Target;
use crate::definition::{Param, registry};
use crate::model::graph::dependency_inputs::{CONDITION, Parameter, item};
use crate::model::graph::{
    Checked, GraphError, GraphProblem, MAP, Need, NeedRequest, NodeEnding, NodeRequest, NodeStatus, Plan,
    PlannedKind, standings,
};
use crate::model::json::{ErasedValue, Fields};
use crate::model::payload::{PayloadError, Plain, Sealer};
use crate::model::run::failure::Failure;
use crate::model::run::name::hint;
use crate::model::run::request::child_run_id;
use crate::model::run::version::FIRST;
use crate::model::shape::GateType;
use crate::store::graph::{NewEdge, NewNode};
use crate::store::run::enqueue::NewRun;

/// Valid nodes.
pub(super) struct Prepared {
    pub(super) nodes: Vec<PreparedNode>,
    pub(super) checked: Checked,
}

/// One valid node.
pub(super) struct PreparedNode {
    pub(super) name: String,
    /// The oldest name of the job. `None` for a gate.
    pub(super) job: Option<String>,
    /// Whether the graph already has the node, so it is not written.
    pub(super) is_existing: bool,
    /// The values that a gate accepts. `None` for a call.
    pub(super) accepts: Option<GateType>,
    pub(super) run: NewRun<Plain>,
}

/// An input that the codec could not seal.
#[derive(Debug)]
pub(crate) struct NotSealed {
    /// The job that the input belongs to.
    pub(crate) job: String,
    pub(crate) source: PayloadError,
}

impl From<NotSealed> for ClientError {
    fn from(NotSealed { job, source }: NotSealed) -> Self {
        Self::Encode { job, source }
    }
}

/// A call of a job that this program does not have, by name.
pub(super) struct Unnamed {
    node: String,
    job: String,
    version: u32,
}

/// Returns the calls whose jobs this program does not have. Live workers may have them.
pub(super) fn unnamed(plan: &Plan, nodes: &[Declared]) -> Vec<Unnamed> {
    let of_jobs = plan.nodes.iter().zip(nodes).filter(|(node, _)| matches!(node.kind, PlannedKind::Job(_)));
    let unknown = of_jobs.filter(|(_, Declared { request, .. })| {
        request.definition.is_none() && registry::named(&request.job, request.version).is_none()
    });
    let unnamed = unknown.map(|(node, Declared { request, .. })| Unnamed {
        node: node.name.clone(),
        job: request.job.clone().into_owned(),
        version: request.version.unwrap_or(FIRST),
    });
    unnamed.collect()
}

/// Returns a problem for each call whose job no live worker has either.
pub(super) async fn undefined(
    unnamed: &[Unnamed],
    route: &mut Target<'_>,
) -> Result<Vec<GraphProblem>, ClientError> {
    if unnamed.is_empty() {
        return Ok(Vec::new());
    }
    let known = known_jobs(route).await?;
    let problems = unnamed.iter().filter_map(|Unnamed { node, job, version }| {
        let error = unknown_job(&known, job, *version)?;
        Some(GraphProblem::Refused { node: node.clone(), why: Failure::text_of_chain(&error) })
    });
    Ok(problems.collect())
}

/// Checks a plan and the declared nodes, and adds the problems to the known ones.
///
/// # Errors
/// [`ClientError::Graph`] with all problems.
pub(super) fn prepare(
    plan: &mut Plan,
    mut nodes: Vec<Declared>,
    mut problems: Vec<GraphProblem>,
) -> Result<Prepared, ClientError> {
    for (planned, declared) in plan.nodes.iter_mut().zip(&mut nodes) {
        let request = &mut declared.request;
        match &mut planned.kind {
            PlannedKind::Gate(options) => {
                let said = declared.said.iter().filter(|said| said.is_of_jobs);
                *options = said.map(|said| said.option).collect();
            }
            PlannedKind::Existing(options) => {
                *options = declared.said.iter().map(|said| said.option).collect();
            }
            PlannedKind::Job(_) if request.definition.is_none() => {
                if let Some((definition, stored)) = registry::named(&request.job, request.version) {
                    request.adopt(definition, stored);
                }
            }
            PlannedKind::Job(_) => {}
        }
    }
    let checked = plan.check();
    if let Err(error) = &checked {
        problems.extend(error.problems().iter().cloned());
    }
    let mut fed: Vec<Vec<&str>> = vec![Vec::new(); nodes.len()];
    for edge in &plan.edges {
        if let Some(fed) = fed.get_mut(edge.dependant) {
            fed.extend(edge.parameters.iter().map(String::as_str));
        }
    }
    let mut prepared = Vec::with_capacity(nodes.len());
    for ((declared, planned), fed) in nodes.into_iter().zip(&plan.nodes).zip(&fed) {
        let name = planned.name.clone();
        let (job, is_existing) = match &planned.kind {
            PlannedKind::Job(job) => (Some(job.clone()), false),
            PlannedKind::Gate(_) => (None, false),
            PlannedKind::Existing(_) => (None, true),
        };
        match &planned.kind {
            PlannedKind::Job(_) => problems.extend(wrong_parameters(&name, &declared, fed)),
            PlannedKind::Gate(_) => problems.extend(fed.iter().map(|parameter| {
                let what = if is_condition(parameter) {
                    "a condition".to_owned()
                } else {
                    format!("the parameter `{parameter}`")
                };
                GraphProblem::GateInput { gate: name.clone(), what }
            })),
            // The check of the plan refuses dependencies of existing nodes.
            PlannedKind::Existing(_) => {}
        }
        let accepts = declared.accepts.clone();
        match run_of(declared) {
            Ok(run) => prepared.push(PreparedNode { name, job, is_existing, accepts, run }),
            Err(error) => {
                problems.push(GraphProblem::Refused { node: name, why: Failure::text_of_chain(&error) });
            }
        }
    }
    GraphError::of(&plan.name, problems)?;
    Ok(Prepared { nodes: prepared, checked: checked? })
}

impl Prepared {
    /// The name of the node at this index.
    pub(super) fn name(&self, place: usize) -> &str {
        &self.nodes[place].name
    }

    /// The name of the result node.
    pub(super) fn result(&self) -> Option<&str> {
        self.checked.result.map(|place| self.name(place))
    }

    fn needs(&self, place: usize) -> impl Iterator<Item = (&str, &Need)> {
        self.checked.needs[place].iter().map(|(needed, need)| (self.name(*needed), need))
    }

    /// The new nodes in the canonical form of a request.
    pub(super) fn request(&self, sealer: &Sealer) -> Result<BTreeMap<&str, NodeRequest<'_>>, PayloadError> {
        let new = self.nodes.iter().enumerate().filter(|(_, node)| !node.is_existing);
        new.map(|(place, node)| {
            let input = match &node.job {
                Some(job) if job == MAP => Some(fingerprint(sealer, &node.name, &identity(&node.run.input))?),
                Some(_) => Some(fingerprint(sealer, &node.name, &node.run.input)?),
                None => None,
            };
            let needs = self.needs(place).map(|(needed, need)| {
                (needed, NeedRequest { on_terminal: need.on_terminal, parameters: &need.parameters })
            });
            let request = NodeRequest {
                job: node.job.as_deref(),
                input,
                tenant: &node.run.tenant,
                options: node.run.options.said(),
                needs: needs.collect(),
            };
            Ok((node.name.as_str(), request))
        })
        .collect()
    }

    /// The initial status of the nodes, by index. `ended` returns the outcome of an existing node.
    pub(super) fn standings(&self, ended: impl Fn(&str) -> Option<NodeEnding>) -> Vec<NodeStatus> {
        standings(&self.checked.needs, |place| self.name(place), |place| ended(self.name(place)))
    }

    /// The edges, in the graph with this id.
    pub(super) fn edges(&self, graph_id: Uuid) -> Vec<NewEdge> {
        let of = |place: usize| {
            self.needs(place).map(move |(needed, need)| NewEdge {
                dependant_id: child_run_id(graph_id, self.name(place)),
                run_id: child_run_id(graph_id, needed),
                on_terminal: need.on_terminal,
                parameters: need.parameters.iter().map(|parameter| named(parameter, needed)).collect(),
            })
        };
        (0..self.nodes.len()).flat_map(of).collect()
    }

    /// The rows of the new nodes, in the graph with this id. `standings` holds the status of each
    /// node, by index.
    ///
    /// # Errors
    /// [`NotSealed`] if an input cannot be sealed.
    pub(super) fn rows(
        &self,
        graph_id: Uuid,
        sealer: &Sealer,
        standings: &[NodeStatus],
    ) -> Result<Vec<NewNode>, NotSealed> {
        let new = self.nodes.iter().zip(standings).filter(|(node, _)| !node.is_existing);
        new.map(|(node, NodeStatus { n_waits, unreachable })| {
            let run = NewRun { run_id: child_run_id(graph_id, &node.name), ..node.run.clone() };
            let not_sealed = |source| NotSealed { job: node.run.job.clone(), source };
            Ok(NewNode {
                run: run.sealed(sealer).map_err(not_sealed)?,
                name: node.name.clone(),
                n_waits: i32::try_from(*n_waits).unwrap_or(i32::MAX),
                unreachable: unreachable.clone(),
                accepts: node.accepts.clone(),
            })
        })
        .collect()
    }
}

fn is_condition(parameter: &str) -> bool {
    parameter.starts_with(CONDITION)
}

/// The parameter as it is stored. For a condition, it includes the name of the deciding node, so
/// that errors can name it.
fn named(parameter: &str, needed: &str) -> String {
    if is_condition(parameter) { format!("{CONDITION}{needed}") } else { parameter.to_owned() }
}

/// The run of a node.
fn run_of(declared: Declared) -> Result<NewRun<Plain>, ClientError> {
    let Declared { mut request, values, said: _, accepts: _ } = declared;
    if let Some(option) = request.idempotency_key.as_ref() {
        let rule = "a node is known by its name in the graph; give the key to the graph";
        return Err(ClientError::Config(format!("it has the idempotency key `{option}`: {rule}")));
    }
    if let Some(key) = request.active_key.as_ref() {
        let rule =
            "a node waits for those that it needs, and would be refused too late; give the key to the graph";
        return Err(ClientError::Config(format!("it has the active key `{key}`: {rule}")));
    }
    if !values.is_empty() {
        let fields: Vec<(&'static str, &dyn ErasedValue)> =
            values.iter().map(|(name, value)| (*name, &**value as &dyn ErasedValue)).collect();
        request.input = Plain::of_object(&fields);
    }
    request.into_new_run()
}

/// Returns the invalid parameters of a node: malformed, unknown to its job, passed twice, or
/// required but missing.
fn wrong_parameters(node: &str, declared: &Declared, fed: &[&str]) -> Vec<GraphProblem> {
    let problem = |parameter: &str, why: String| GraphProblem::Parameter {
        node: node.to_owned(),
        parameter: parameter.to_owned(),
        why,
    };
    let own = declared.request.input.as_ref().ok().and_then(|input| Fields::parse(input).ok());
    let has_own = |name: &str| {
        own.as_ref().is_some_and(|own| own.has(name))
            || declared.values.iter().any(|(value, _)| *value == name)
    };
    let mut problems = Vec::new();
    let mut given = BTreeSet::new();
    let mut whole = BTreeSet::new();
    let mut lists = BTreeSet::new();
    for text in fed.iter().copied().filter(|parameter| !is_condition(parameter)) {
        let Some(parameter) = Parameter::parse(text) else {
            let why = "and a parameter is written as its name, or as `name[0]` for one item of a list";
            problems.push(problem(text, why.to_owned()));
            continue;
        };
        let name = parameter.name();
        if !given.insert(text) {
            problems.push(problem(text, "and more than once".to_owned()));
        } else if has_own(name) {
            problems.push(problem(text, format!("and its call has an argument `{name}` of its own")));
        }
        match parameter {
            Parameter::Whole(name) => whole.insert(name),
            Parameter::Item(name, _) => lists.insert(name),
        };
    }
    problems.extend(
        whole
            .intersection(&lists)
            .map(|name| problem(name, format!("and also items of it, such as `{}`", item(name, 0)))),
    );
    let Some(definition) = declared.request.definition else { return problems };
    let is_fed = |name: &str| whole.contains(name) || lists.contains(name);
    let is_given = |name: &str| own.is_none() || has_own(name) || is_fed(name);
    let missing = definition.params.iter().filter(|param| param.is_required() && !is_given(param.name()));
    problems.extend(missing.map(|param| GraphProblem::Missing {
        node: node.to_owned(),
        parameter: param.name().to_owned(),
        job: definition.name.to_owned(),
    }));
    let names: Vec<&str> = definition.params.iter().map(Param::name).collect();
    for name in whole.union(&lists).filter(|name| !names.contains(*name)) {
        let hint = hint(name, names.iter().copied());
        problems.push(problem(name, format!("which its job `{}` does not have{hint}", definition.name)));
    }
    problems
}

/// The fingerprint of a node's input in the request.
fn fingerprint(sealer: &Sealer, node: &str, input: &Plain) -> Result<String, PayloadError> {
    let fingerprints = sealer.fingerprints(input, || format!("the input of node `{node}`"))?;
    Ok(format!("{:016x}", fingerprints.first().copied().unwrap_or_default()))
}
