//! The submission of a graph: everything checked, then everything written by one statement.

use sqlx::{Connection, PgConnection, PgPool};
use uuid::Uuid;

use super::prepare::{NotSealed, Prepared, prepare, undefined, unnamed};
use super::{Graph, GraphHandle};
use crate::client::enqueue::{Tries, activate, home_of, input_difference, stored_difference};
use crate::client::handle::RunHandle;
use crate::connection::client_error::ClientError;
use crate::connection::db::{EnqueueTarget, Target, connection, not_between_steps};
use crate::definition::DEFAULT_QUEUE;
use crate::definition::call::{active_key, check_metadata};
use crate::definition::job::Payload;
use crate::model::graph::{GRAPH, GraphProblem, GraphRequest, PlannedKind, unordered};
use crate::model::name::{check_key, check_name};
use crate::model::payload::{PayloadError, Plain, Sealer};
use crate::model::request::{RequestOptions, keyed_run_id};
use crate::store::enqueue::{NewRun, existing};
use crate::store::graph::{self, NewGraph};
use crate::store::session::{BEGIN, is_read_committed};
use crate::store::write::commit;

impl<T: Payload> Graph<T> {
    /// Submits the graph as one run: on a pool in a transaction of its own, or in the caller's open transaction. What needs no other node starts at once.
    ///
    /// Costs one statement, whatever the size; one more where the key exists, and where a node calls a job by a name that this program does not have.
    ///
    /// # Errors
    /// [`ClientError::Graph`] with everything that is wrong with the graph; as [`Call::enqueue`](crate::Call::enqueue). Nothing is written then.
    ///
    /// # Cancel safety
    /// A dropped future may or may not have submitted the graph. With an idempotency key it can be repeated.
    pub fn enqueue<'c, V: EnqueueTarget<'c>>(
        self,
        via: V,
    ) -> impl Future<Output = Result<GraphHandle<T>, ClientError>> + Send + use<'c, T, V> {
        let mut route = via.via();
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
            Ok(RunHandle::new(graph.run.run_id, created, home))
        }
    }

    /// The id of a graph that is submitted by itself.
    fn run_id(&self) -> Uuid {
        match &self.idempotency_key {
            None => Uuid::now_v7(),
            Some(key) => keyed_run_id(self.tenant.as_deref().unwrap_or_default(), &self.key_scope(), key),
        }
    }

    /// What its keys belong to, in the place of a job's name.
    fn key_scope(&self) -> String {
        format!("{GRAPH}:{}", self.plan.name)
    }

    /// Checks everything, beside the problems that are known. The request has the inputs of nodes by what this sealer says that identifies them.
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

/// A graph without a fault, which has no id yet.
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

    /// The rows to be written.
    ///
    /// # Errors
    /// [`NotSealed`], where the request or an input of a node cannot be sealed.
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

/// Writes a graph, and gives it its active key where it has one. False where it was there before.
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
        if let Some(difference) = stored_difference(sealer, run, &found.input, request_difference)? {
            return Err(conflict(difference));
        }
    }
    Ok(false)
}

/// Where the request of a graph, or of an addition to one, differs from another. The order of edges is no difference.
pub(super) fn request_difference(one: &str, other: &str) -> Option<String> {
    let difference = input_difference(&unordered(one), &unordered(other))?;
    Some(difference.replacen("input `", "`", 1))
}
