//! The submission of a graph: everything checked, then everything written by one statement.

use std::collections::{BTreeMap, HashMap};

use sqlx::{Connection, PgConnection, PgPool};
use uuid::Uuid;

use super::{Declared, Graph, GraphHandle};
use crate::api::client_error::ClientError;
use crate::api::db::{Route, Via, connection};
use crate::api::definition::{DEFAULT_QUEUE, Param};
use crate::api::enqueue::{Tries, home_of, stored_difference};
use crate::api::handle::Handle;
use crate::api::job::Payload;
use crate::api::registry;
use crate::model::failure::{Failure, FailureKind};
use crate::model::graph::{
    GRAPH, GraphError, GraphProblem, GraphRequest, Need, NeedRequest, NodeRequest, PlannedKind,
};
use crate::model::json::{ErasedValue, Fields};
use crate::model::name::{check_key, check_name, hint};
use crate::model::payload::{PayloadError, Plain, Sealer};
use crate::model::request::{RequestOptions, child_run_id, keyed_run_id};
use crate::store::enqueue::{NewRun, existing};
use crate::store::graph::{self, NewEdge, NewGraph, NewNode};
use crate::store::session::{BEGIN, is_read_committed};
use crate::store::write::commit;

impl<T: Payload> Graph<T> {
    /// Submits the graph as one run: on a pool in a transaction of its own, or in the caller's open transaction. What needs no other node starts at once.
    ///
    /// Costs one statement, whatever the size; one more where the key exists.
    ///
    /// # Errors
    /// [`ClientError::Graph`] with everything that is wrong with the graph; as [`Call::enqueue`](crate::Call::enqueue). Nothing is written then.
    ///
    /// # Cancel safety
    /// A dropped future may or may not have submitted the graph. With an idempotency key it can be repeated.
    pub fn enqueue<'c, V: Via<'c>>(
        self,
        via: V,
    ) -> impl Future<Output = Result<GraphHandle<T>, ClientError>> + Send + use<'c, T, V> {
        let route = via.via();
        async move {
            let home = home_of(&route);
            let sealer = route.sealer()?;
            let graph = self.into_new_graph(&sealer)?;
            let created = match route {
                Route::Connection(connection, _) => submit(connection, &graph, &sealer).await?,
                Route::Db(db) => submit_on_pool(db.pool(), &graph, &sealer, true).await?,
                Route::Pool(pool) => submit_on_pool(pool, &graph, &sealer, false).await?,
            };
            Ok(Handle::new(graph.run.run_id, created, home))
        }
    }

    /// Checks everything, and gives the rows to be written.
    fn into_new_graph(mut self, sealer: &Sealer) -> Result<NewGraph, ClientError> {
        for (planned, declared) in self.plan.nodes.iter_mut().zip(&mut self.nodes) {
            let request = &mut declared.request;
            match &mut planned.kind {
                PlannedKind::Gate(said) => said.clone_from(&declared.said),
                PlannedKind::Job(_) if request.definition.is_none() => {
                    if let Some((definition, stored)) = registry::named(&request.job, request.version) {
                        request.adopt(definition, stored);
                    }
                }
                PlannedKind::Job(_) => {}
            }
        }
        let mut problems = Vec::new();
        let checked =
            self.plan.check().map_err(|error| problems.extend(error.problems().iter().cloned())).ok();
        let run_id = match &self.idempotency_key {
            None => Uuid::now_v7(),
            Some(key) => {
                check_key("idempotency key", key)?;
                keyed_run_id(&self.tenant, &format!("{GRAPH}:{}", self.plan.name), key)
            }
        };
        if !self.tenant.is_empty() {
            check_key("tenant", &self.tenant)?;
        }
        let mut fed: Vec<Vec<&str>> = vec![Vec::new(); self.nodes.len()];
        for edge in &self.plan.edges {
            if let Some(fed) = fed.get_mut(edge.dependant) {
                fed.extend(edge.parameters.iter().map(String::as_str));
            }
        }
        let mut runs = Vec::with_capacity(self.nodes.len());
        for ((declared, planned), fed) in self.nodes.into_iter().zip(&self.plan.nodes).zip(&fed) {
            let refused = |why: String| GraphProblem::Refused { node: planned.name.clone(), why };
            problems.extend(wrong_parameters(&planned.name, &declared, fed));
            match run_of(declared) {
                Ok((run, input)) => runs.push((run, input)),
                Err(error) => problems.push(refused(chain(&error))),
            }
        }
        GraphError::of(&self.plan.name, problems)?;
        // Without problems there is a check.
        let Some(checked) = checked else {
            return Err(ClientError::Setup("a graph was not checked".to_owned()));
        };
        let name_of = |place: usize| self.plan.nodes[place].name.as_str();
        let id_of = |place: usize| child_run_id(run_id, name_of(place));
        let needs = |place: usize| {
            let one = |(other, need): (&usize, &'_ Need)| (*other, need.clone());
            checked.needs[place].iter().map(one).collect::<Vec<_>>()
        };
        let encode = |source: PayloadError| ClientError::Encode { job: GRAPH.to_owned(), source };
        let nodes: BTreeMap<&str, NodeRequest<'_>> = runs
            .iter()
            .enumerate()
            .map(|(place, (run, input))| {
                let planned = &self.plan.nodes[place];
                let (job, input) = match &planned.kind {
                    PlannedKind::Job(job) => {
                        (Some(job.as_str()), Some(fingerprint(sealer, &planned.name, input)?))
                    }
                    PlannedKind::Gate(_) => (None, None),
                };
                let needs = checked.needs[place].iter().map(|(other, need)| {
                    let request = NeedRequest { on_terminal: need.on_terminal, parameters: &need.parameters };
                    (name_of(*other), request)
                });
                let request = NodeRequest {
                    job,
                    input,
                    tenant: &run.tenant,
                    options: &run.options,
                    needs: needs.collect(),
                };
                Ok((planned.name.as_str(), request))
            })
            .collect::<Result<_, PayloadError>>()
            .map_err(encode)?;
        let request = GraphRequest { graph: &self.plan.name, result: checked.result.map(name_of), nodes };
        let input = Plain::of(&request).map_err(|source| encode(source.into()))?;
        let mut options = RequestOptions::default();
        if let Some(deadline) = self.deadline {
            options.set_deadline(deadline);
        }
        let is_job = |(place, _): &(usize, &(NewRun<Plain>, Plain))| {
            matches!(self.plan.nodes[*place].kind, PlannedKind::Job(_))
        };
        let first_queue = runs.iter().enumerate().find(is_job).map(|(_, (run, _))| run.queue.clone());
        let queue = self.queue.or(first_queue).unwrap_or_else(|| DEFAULT_QUEUE.to_owned());
        check_name("queue", &queue)?;
        let run = NewRun {
            run_id,
            job: GRAPH.to_owned(),
            tenant: self.tenant,
            queue,
            priority: self.priority,
            input,
            options,
            idempotency_key: self.idempotency_key,
        };
        let run = run.sealed(sealer).map_err(encode)?;
        let mut edges = Vec::with_capacity(self.plan.edges.len());
        let mut written = Vec::with_capacity(runs.len());
        for (place, (node, _)) in runs.into_iter().enumerate() {
            let its_needs = needs(place);
            let job = node.job.clone();
            let node = NewRun { run_id: id_of(place), ..node };
            let node = node.sealed(sealer).map_err(|source| ClientError::Encode { job, source })?;
            written.push(NewNode {
                run: node,
                name: name_of(place).to_owned(),
                n_needs: i32::try_from(its_needs.len()).unwrap_or(i32::MAX),
            });
            edges.extend(its_needs.into_iter().map(|(other, need)| NewEdge {
                dependant_id: id_of(place),
                run_id: id_of(other),
                on_terminal: need.on_terminal,
                parameters: need.parameters,
            }));
        }
        Ok(NewGraph { run, name: self.plan.name, nodes: written, edges, origin_id: None })
    }
}

/// The run of a node, and its input once more, for the request.
fn run_of(declared: Declared) -> Result<(NewRun<Plain>, Plain), ClientError> {
    let Declared { mut request, values, said: _ } = declared;
    if let Some(option) = request.idempotency_key.as_ref() {
        let rule = "a node is known by its name in the graph; give the key to the graph";
        return Err(ClientError::Setup(format!("it has the idempotency key `{option}`: {rule}")));
    }
    if !values.is_empty() {
        let fields: Vec<(&'static str, &dyn ErasedValue)> =
            values.iter().map(|(name, value)| (*name, &**value as &dyn ErasedValue)).collect();
        request.input = Plain::of_object(&fields);
    }
    let run = request.into_new_run()?;
    let input = run.input.clone();
    Ok((run, input))
}

/// Parameters that a node is given and its job does not have, or that it is given twice; and those that nobody gives it.
fn wrong_parameters(node: &str, declared: &Declared, fed: &[&str]) -> Vec<GraphProblem> {
    let problem = |parameter: &str, why: String| GraphProblem::Parameter {
        node: node.to_owned(),
        parameter: parameter.to_owned(),
        why,
    };
    let list = |parameter: &str| parameter.split_once('[').map_or(parameter, |(list, _)| list).to_owned();
    let mut problems = Vec::new();
    let mut seen: HashMap<&str, usize> = HashMap::new();
    for parameter in fed {
        *seen.entry(parameter).or_default() += 1;
    }
    problems.extend(
        seen.iter()
            .filter(|(_, n)| **n > 1)
            .map(|(parameter, _)| problem(parameter, "and more than once".to_owned())),
    );
    let Some(definition) = declared.request.definition else { return problems };
    let own = declared.request.input.as_ref().ok().and_then(|input| Fields::parse(input).ok());
    let is_given = |name: &str| {
        own.as_ref().is_none_or(|own| own.has(name))
            || declared.values.iter().any(|(value, _)| *value == name)
            || fed.iter().any(|parameter| list(parameter) == name)
    };
    let missing = definition.params.iter().filter(|param| param.is_required() && !is_given(param.name()));
    problems.extend(missing.map(|param| GraphProblem::Missing {
        node: node.to_owned(),
        parameter: param.name().to_owned(),
        job: definition.name.to_owned(),
    }));
    let names: Vec<&str> = definition.params.iter().map(Param::name).collect();
    for parameter in fed {
        let name = list(parameter);
        if !names.contains(&name.as_str()) {
            let hint = hint(&name, names.iter().copied());
            problems
                .push(problem(parameter, format!("which its job `{}` does not have{hint}", definition.name)));
        }
    }
    problems
}

/// What identifies the input of a node in the request.
fn fingerprint(sealer: &Sealer, node: &str, input: &Plain) -> Result<String, PayloadError> {
    let fingerprints = sealer.fingerprints(input, || format!("the input of node `{node}`"))?;
    Ok(format!("{:016x}", fingerprints.first().copied().unwrap_or_default()))
}

fn chain(error: &ClientError) -> String {
    let failure = Failure::from_chain(FailureKind::Error, error);
    std::iter::once(failure.message).chain(failure.causes).collect::<Vec<_>>().join(": ")
}

/// On a connection of a pool. Repeating it is safe: the ids are made here.
pub(super) async fn submit_on_pool(
    pool: &PgPool,
    graph: &NewGraph,
    sealer: &Sealer,
    is_clean: bool,
) -> Result<bool, ClientError> {
    let mut tries = Tries::new();
    loop {
        match submit_once(pool, graph, sealer, is_clean).await {
            Err(error) if tries.again(&error).await => {}
            answer => return answer,
        }
    }
}

async fn submit_once(
    pool: &PgPool,
    graph: &NewGraph,
    sealer: &Sealer,
    is_clean: bool,
) -> Result<bool, ClientError> {
    let mut connection = connection(pool).await?;
    if is_clean {
        return submit(&mut connection, graph, sealer).await;
    }
    // As for a call: a forgotten transaction of the application must not take it along.
    let mut tx = connection.begin_with(BEGIN).await?;
    let created = submit(&mut tx, graph, sealer).await?;
    commit("graph_on_pool", tx.commit()).await?;
    Ok(created)
}

/// Writes a graph. False where it was there before.
async fn submit(
    connection: &mut PgConnection,
    graph: &NewGraph,
    sealer: &Sealer,
) -> Result<bool, ClientError> {
    let submission = graph::submit(&mut *connection, graph).await?;
    // Another go at a graph is made once, and is the same whoever asks.
    if submission.created || graph.origin_id.is_some() {
        return Ok(submission.created);
    }
    let run = &graph.run;
    let Some(key) = &run.idempotency_key else {
        // An id without a key is made for this submission alone.
        return Ok(true);
    };
    if !is_read_committed(&submission.isolation) {
        return Err(ClientError::Isolation { what: "a keyed graph", level: submission.isolation });
    }
    let conflict = |difference: String| ClientError::Conflict {
        job: graph.name.clone(),
        key: key.clone(),
        run_id: run.run_id,
        difference,
    };
    for found in existing(connection, &[run.run_id]).await? {
        if let Some(part) = run.options.first_difference(&found.options) {
            return Err(conflict(part.to_owned()));
        }
        if let Some(difference) = stored_difference(sealer, run, &found.input)? {
            return Err(conflict(difference.replacen("input `", "`", 1)));
        }
    }
    Ok(false)
}
