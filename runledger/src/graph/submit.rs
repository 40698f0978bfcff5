//! Submits a graph: checks everything, then writes everything with one statement.

use sqlx::{Connection, PgConnection, PgPool};
use uuid::Uuid;

use super::prepare::{NotSealed, Prepared, prepare, undefined, unnamed};
use super::{Graph, GraphHandle};
use crate::client::enqueue::{Tries, activate, home_of, input_difference, stored_difference};
use crate::connection::client_error::ClientError;
use crate::connection::db::{EnqueueTarget, Target, connection, not_between_steps};
use crate::definition::DEFAULT_QUEUE;
use crate::definition::call::{active_key, check_metadata};
use crate::definition::job::Payload;
use crate::model::graph::{GRAPH, GraphProblem, GraphRequest, PlannedKind, unordered};
use crate::model::payload::{PayloadError, Plain, Sealer};
use crate::model::run::name::{check_key, check_name};
use crate::model::run::request::{RequestOptions, keyed_run_id};
use crate::store::graph::{self, NewGraph};
use crate::store::run::enqueue::{NewRun, existing};
use crate::store::session::{BEGIN, is_read_committed};
use crate::store::write::commit;

impl<T: Payload> Graph<T> {
    /// Submits the graph as one run.
    ///
    /// On a pool, the submission has its own transaction. In the caller's open transaction, the
    /// graph exists if and only if that transaction commits. Nodes without dependencies start at
    /// once.
    ///
    /// # Errors
    /// [`ClientError::Graph`] with every problem of the graph. Otherwise as for
    /// [`Call::enqueue`](crate::Call::enqueue). In all these cases nothing is written.
    ///
    /// # Cost
    /// One statement, whatever the size of the graph. One more if the idempotency key exists, and
    /// one if a node calls a job by a name that this program does not have.
    ///
    /// # Cancel safety
    /// Not cancel safe: a dropped call may still submit the graph. Repeating it is safe with an
    /// idempotency key.
    pub fn enqueue<'c, V: EnqueueTarget<'c>>(
        self,
        target: V,
    ) -> impl Future<Output = Result<GraphHandle<T>, ClientError>> + Send + use<'c, T, V> {
        let mut route = target.target();
        async move {
            not_between_steps()?;
            let home = home_of(&route);
            let sealer = route.sealer()?;
            let run_id = self.run_id();
            let unnamed = unnamed(&self.plan, &self.nodes);
            route.check_path().await?;
            let problems = undefined(&unnamed, &mut route).await?;
            let graph = self.draft(&sealer, problems)?.into_new_graph(run_id, &sealer)?;
            let created = match route {
                Target::Tx(connection, _) | Target::Connection(connection, _) => {
                    submit(connection, &graph, &sealer).await?
                }
                Target::Db(db) => submit_on_pool(db.pool(), &graph, &sealer, true).await?,
                Target::Pool(pool) => submit_on_pool(pool, &graph, &sealer, false).await?,
            };
            Ok(GraphHandle::new(graph.run.run_id, created, home))
        }
    }

    /// The id of the graph's run, for a graph that no workflow starts.
    fn run_id(&self) -> Uuid {
        match &self.idempotency_key {
            None => Uuid::now_v7(),
            Some(key) => keyed_run_id(self.tenant.as_deref().unwrap_or_default(), &self.key_scope(), key),
        }
    }

    /// The scope of its keys, like the name of a job.
    fn key_scope(&self) -> String {
        format!("{GRAPH}:{}", self.plan.name)
    }

    /// Checks everything and adds the problems to the known ones. The request identifies the inputs
    /// of nodes by fingerprints of this sealer.
    pub(crate) fn draft(
        mut self,
        sealer: &Sealer,
        mut problems: Vec<GraphProblem>,
    ) -> Result<Draft, ClientError> {
        if let Some(key) = &self.idempotency_key {
            check_key("idempotency key", key)?;
        }
        if let Some(tenant) = &self.tenant {
            check_key("tenant", tenant)?;
        }
        let active_key =
            self.active_key.as_ref().map(|key| active_key(&self.key_scope(), key)).transpose()?;
        let there = self.plan.nodes.iter().filter(|node| matches!(node.kind, PlannedKind::Existing(_)));
        problems.extend(there.map(|node| GraphProblem::NotThere { node: node.name.clone() }));
        let prepared = prepare(&mut self.plan, self.nodes, problems)?;
        let encode = |source: PayloadError| ClientError::Encode { job: GRAPH.to_owned(), source };
        let nodes = prepared.request(sealer).map_err(encode)?;
        let request = GraphRequest { graph: &self.plan.name, result: prepared.result(), nodes };
        let input = Plain::of(&request).map_err(|source| encode(source.into()))?;
        check_metadata(&self.metadata)?;
        let mut options = RequestOptions {
            active_key,
            metadata: self.metadata,
            queue: self.queue.clone(),
            priority: (self.priority != 0).then_some(self.priority),
            ..RequestOptions::default()
        };
        if let Some(deadline) = self.deadline {
            options.set_deadline(deadline);
        }
        let first_queue = prepared.nodes.iter().find(|node| node.job.is_some()).map(|node| &node.run.queue);
        let queue = self.queue.or_else(|| first_queue.cloned()).unwrap_or_else(|| DEFAULT_QUEUE.to_owned());
        check_name("queue", &queue)?;
        let run = NewRun {
            run_id: Uuid::nil(),
            job: GRAPH.to_owned(),
            tenant: self.tenant.unwrap_or_default(),
            queue,
            priority: self.priority,
            input,
            options,
            idempotency_key: self.idempotency_key,
        };
        Ok(Draft { name: self.plan.name, run, prepared })
    }
}

/// A valid graph without an id.
pub(crate) struct Draft {
    name: String,
    run: NewRun<Plain>,
    prepared: Prepared,
}

impl Draft {
    /// The canonical form.
    pub(crate) fn request(&self) -> &Plain {
        &self.run.input
    }

    /// The rows to write.
    ///
    /// # Errors
    /// [`NotSealed`] if the request or an input cannot be sealed.
    pub(crate) fn into_new_graph(self, run_id: Uuid, sealer: &Sealer) -> Result<NewGraph, NotSealed> {
        let Self { name, run, prepared } = self;
        let run = NewRun { run_id, ..run };
        let run = run.sealed_whole(sealer).map_err(|source| NotSealed { job: GRAPH.to_owned(), source })?;
        let edges = prepared.edges(run_id);
        let standings = prepared.standings(|_| None);
        let nodes = prepared.rows(run_id, sealer, &standings)?;
        Ok(NewGraph { run, name, nodes, edges, origin_id: None })
    }
}

/// Submits on a connection of a pool. Repeating is safe, because the client creates the ids.
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
    // As for a call: a transaction that the application forgot must not include the graph.
    let mut tx = connection.begin_with(BEGIN).await?;
    let created = submit(&mut tx, graph, sealer).await?;
    commit("graph_on_pool", tx.commit()).await?;
    Ok(created)
}

/// Writes a graph and its active key. False if the graph already existed.
async fn submit(
    connection: &mut PgConnection,
    graph: &NewGraph,
    sealer: &Sealer,
) -> Result<bool, ClientError> {
    if graph.run.options.active_key.is_none() {
        return write(connection, graph, sealer).await;
    }
    let mut tx = connection.begin().await?;
    let created = write(&mut tx, graph, sealer).await?;
    if created {
        activate(&mut tx, &[graph.run.run_id]).await?;
    }
    commit("active_graph", tx.commit()).await?;
    Ok(created)
}

async fn write(
    connection: &mut PgConnection,
    graph: &NewGraph,
    sealer: &Sealer,
) -> Result<bool, ClientError> {
    let submission = graph::submit(&mut *connection, graph, None).await?;
    // A recovery creates one graph per key. Any later call is a repetition and needs no comparison.
    if submission.created || graph.origin_id.is_some() {
        return Ok(submission.created);
    }
    let run = &graph.run;
    let Some(key) = &run.idempotency_key else {
        // An id without a key is unique to this submission.
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
        if let Some(difference) = stored_difference(sealer, run, &found.input, request_difference)? {
            return Err(conflict(difference));
        }
    }
    Ok(false)
}

/// Returns the difference between two requests of a graph or of an addition. Ignores the order of
/// edges.
pub(super) fn request_difference(one: &str, other: &str) -> Option<String> {
    let difference = input_difference(&unordered(one), &unordered(other))?;
    Some(difference.replacen("input `", "`", 1))
}
