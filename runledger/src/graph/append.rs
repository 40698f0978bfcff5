//! Adds nodes to a graph while one of its nodes, the extension node, is live.

use std::collections::HashMap;
use std::time::Duration;

use sqlx::{Connection, PgConnection};
use uuid::Uuid;

use super::prepare::{Prepared, Unnamed, prepare, undefined, unnamed};
use super::submit::request_difference;
use super::{Graph, GraphHandle};
use crate::client::enqueue::Tries;
use crate::connection::client_error::ClientError;
use crate::connection::db::{Target, connection};
use crate::model::graph::{
    AdditionRequest, GRAPH, GraphError, GraphProblem, MAX_NODES, NodeEnding, PlannedKind,
};
use crate::model::payload::{PayloadError, Plain, Sealer};
use crate::model::run::name::{check_key, hint};
use crate::model::run::request::child_run_id;
use crate::model::run::state::RunState;
use crate::store::graph::addition::{self, Standing, Whole};
use crate::store::graph::{self, NewAddition, NewEdge};
use crate::store::session::BEGIN_RESTLESS;
use crate::store::write::commit;

/// The first pause before the next try when nodes are about to end or change state. Each pause is
/// twice as long as the previous one, up to the last.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LAST_PAUSE: Duration = Duration::from_millis(100);

/// A node of a graph to which you can add nodes while it is live, made by
/// [`GraphHandle::extend_from`].
#[must_use = "nothing is added until `append` is called"]
#[derive(Debug)]
pub struct GraphExtension<'h, T> {
    graph: &'h GraphHandle<T>,
    name: String,
}

/// Whether an addition wrote nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AppendReceipt {
    /// Whether the nodes are new. False if an earlier call with this key added the same nodes.
    pub created: bool,
}

impl<T> GraphHandle<T> {
    /// Returns the extension node with this name: a gate or a call of this graph.
    ///
    /// While this node is live, the graph stays live and you can add nodes:
    /// `handle.extend_from("files").append("batch 7", more).await?`. If it is a gate, its decision
    /// ends the extension. If it is a call, its body can add nodes, and its end ends the extension.
    pub fn extend_from(&self, name: impl Into<String>) -> GraphExtension<'_, T> {
        GraphExtension { graph: self, name: name.into() }
    }
}

impl<T> GraphExtension<'_, T> {
    /// Adds the nodes of `more` to the graph. `more` must have the same name as the graph.
    ///
    /// The new nodes behave like the nodes of the submission. A node without live dependencies
    /// starts at once. A node that needs the success of a node that did not complete is cancelled
    /// at once. Refer to existing nodes by [`Graph::existing_node`]. An existing node cannot depend
    /// on a new one.
    ///
    /// Each `key` (1 to 256 bytes) works once per graph. The same addition again does nothing, even
    /// if the graph has changed since. A different addition with the same key is refused.
    ///
    /// # Errors
    /// [`ClientError::ExtensionClosed`] if the extension node or the graph has ended,
    /// [`NoSuchNode`](ClientError::NoSuchNode) if the graph has no such node,
    /// [`AdditionConflict`](ClientError::AdditionConflict), [`Graph`](ClientError::Graph) with
    /// every problem of the nodes, [`NoSuchRun`](ClientError::NoSuchRun),
    /// [`NotAGraph`](ClientError::NotAGraph), or a database error. In all these cases nothing is
    /// written.
    ///
    /// # Cost
    /// One transaction of five statements, whatever the number of nodes. If a dependency is about
    /// to end, the call waits for its end: a few milliseconds.
    ///
    /// # Cancel safety
    /// Not cancel safe: a dropped call may still add the nodes. Repeating it is safe.
    pub async fn append(self, key: &str, more: Graph) -> Result<AppendReceipt, ClientError> {
        check_key("key of the addition", key)?;
        let sealer = self.graph.sealer();
        let request = Request::new(self.graph.id(), &self.name, key, more, sealer)?;
        let (mut tries, mut pause) = (Tries::new(), FIRST_PAUSE);
        loop {
            let mut connection = connection(self.graph.pool()?).await?;
            match request.send(&mut connection).await {
                Ok(Some(appended)) => return Ok(appended),
                Ok(None) => {
                    drop(connection);
                    tokio::time::sleep(pause).await;
                    pause = LAST_PAUSE.min(pause * 2);
                }
                Err(error) if tries.again(&error).await => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// An addition, checked without reading the graph.
struct Request<'r> {
    graph_id: Uuid,
    graph_name: String,
    window: &'r str,
    key: &'r str,
    sealer: Sealer,
    /// The calls whose jobs this program does not have.
    unnamed: Vec<Unnamed>,
    prepared: Prepared,
    edges: Vec<NewEdge>,
    /// The canonical form.
    text: String,
}

impl<'r> Request<'r> {
    fn new(
        graph_id: Uuid,
        window: &'r str,
        key: &'r str,
        mut more: Graph,
        sealer: Sealer,
    ) -> Result<Self, ClientError> {
        let mut problems: Vec<GraphProblem> =
            more.said().into_iter().map(|option| GraphProblem::AdditionOption { option }).collect();
        let is_existing = |kind: &PlannedKind| matches!(kind, PlannedKind::Existing(_));
        if !more.plan.nodes.is_empty() && more.plan.nodes.iter().all(|node| is_existing(&node.kind)) {
            problems.push(GraphProblem::Empty);
        }
        let unnamed = unnamed(&more.plan, &more.nodes);
        let prepared = prepare(&mut more.plan, more.nodes, problems)?;
        let encode = |source: PayloadError| ClientError::Encode { job: GRAPH.to_owned(), source };
        let nodes = prepared.request(&sealer).map_err(encode)?;
        let text = Plain::of(&AdditionRequest { window, nodes }).map_err(|source| encode(source.into()))?;
        let text = text.to_string();
        let edges = prepared.edges(graph_id);
        Ok(Self { graph_id, graph_name: more.plan.name, window, key, sealer, unnamed, prepared, edges, text })
    }

    /// Adds the nodes in a transaction. `None` if a dependency is about to end or change state.
    async fn send(&self, connection: &mut PgConnection) -> Result<Option<AppendReceipt>, ClientError> {
        let mut tx = connection.begin_with(BEGIN_RESTLESS).await?;
        let answer = self.write(&mut tx).await;
        if let Ok(Some(AppendReceipt { created: true })) = answer {
            commit("append", tx.commit()).await?;
        } else {
            tx.rollback().await?;
        }
        answer
    }

    async fn write(&self, tx: &mut PgConnection) -> Result<Option<AppendReceipt>, ClientError> {
        let run_id = self.graph_id;
        let Some(whole) = addition::whole(tx, run_id, self.key).await? else {
            return Err(ClientError::NoSuchRun { run_id });
        };
        if whole.name.is_none() {
            return Err(ClientError::NotAGraph { run_id });
        }
        if let Some(earlier) = &whole.request {
            return match request_difference(earlier, &self.text) {
                None => Ok(Some(AppendReceipt { created: false })),
                Some(difference) => {
                    Err(ClientError::AdditionConflict { run_id, key: self.key.to_owned(), difference })
                }
            };
        }
        if let Some(ended) = whole.ended {
            return Err(self.closed(ended));
        }
        let window = child_run_id(run_id, self.window);
        let id_of = |name: &str| child_run_id(run_id, name);
        let (there, new): (Vec<_>, Vec<_>) = self.prepared.nodes.iter().partition(|node| node.is_existing);
        let needed: Vec<Uuid> = there.iter().map(|node| id_of(&node.name)).chain([window]).collect();
        let new: Vec<Uuid> = new.iter().map(|node| id_of(&node.name)).collect();
        let Some(standings) = addition::hold(tx, &needed, &new).await? else { return Ok(None) };
        let there: HashMap<Uuid, &Standing> = standings.iter().map(|node| (node.run_id, node)).collect();
        match there.get(&window) {
            None => {
                let known = self.names(tx).await?;
                let (name, hint) =
                    (self.window.to_owned(), hint(self.window, known.iter().map(String::as_str)));
                return Err(ClientError::NoSuchNode { run_id, hint, name });
            }
            Some(Standing { ended: Some(ended), .. }) => return Err(self.closed(*ended)),
            Some(_) => {}
        }
        let problems = self.problems(tx, &whole, &there).await?;
        GraphError::of(&self.graph_name, problems)?;
        let standings = self.prepared.standings(|name| there.get(&id_of(name)).and_then(|node| node.ended));
        let nodes = self.prepared.rows(run_id, &self.sealer, &standings)?;
        let edges = self.edges.clone();
        let addition = NewAddition { graph_id: run_id, key: self.key, request: &self.text, nodes, edges };
        graph::add(tx, &addition).await?;
        Ok(Some(AppendReceipt { created: true }))
    }

    /// Returns the problems of the addition that only the graph shows.
    async fn problems(
        &self,
        tx: &mut PgConnection,
        whole: &Whole,
        there: &HashMap<Uuid, &Standing>,
    ) -> Result<Vec<GraphProblem>, ClientError> {
        let mut problems = undefined(&self.unnamed, &mut Target::Tx(&mut *tx, self.sealer.clone())).await?;
        if let Some(name) = whole.name.as_ref().filter(|name| **name != self.graph_name) {
            problems.push(GraphProblem::OtherGraph { name: self.graph_name.clone(), whole: name.clone() });
        }
        let n_new = self.prepared.nodes.iter().filter(|node| !node.is_existing).count();
        let n = usize::try_from(whole.n_nodes).unwrap_or(usize::MAX).saturating_add(n_new);
        if n > MAX_NODES {
            problems.push(GraphProblem::TooLarge { what: "nodes", n, most: MAX_NODES });
        }
        let mut names = None;
        for node in &self.prepared.nodes {
            let is_there = there.contains_key(&child_run_id(self.graph_id, &node.name));
            let name = node.name.clone();
            if is_there && !node.is_existing {
                problems.push(GraphProblem::Taken { name });
            } else if !is_there && node.is_existing {
                if names.is_none() {
                    names = Some(self.names(tx).await?);
                }
                let hint = hint(&name, names.iter().flatten().map(String::as_str));
                problems.push(GraphProblem::NoSuchNode { name, hint });
            }
        }
        Ok(problems)
    }

    /// The names of the graph's nodes, for hints.
    async fn names(&self, tx: &mut PgConnection) -> Result<Vec<String>, ClientError> {
        let most = i64::try_from(MAX_NODES).unwrap_or(i64::MAX);
        let nodes = graph::nodes(tx, self.graph_id, None, most, &self.sealer).await?;
        Ok(nodes.into_iter().map(|node| node.name).collect())
    }

    fn closed(&self, ending: NodeEnding) -> ClientError {
        let ended = match ending {
            NodeEnding::Completed => RunState::Completed,
            NodeEnding::Failed => RunState::Failed,
            NodeEnding::Cancelled | NodeEnding::Skipped => RunState::Cancelled,
        };
        ClientError::ExtensionClosed { run_id: self.graph_id, node: self.window.to_owned(), ended }
    }
}

impl Graph {
    /// Returns the options set on this graph that an addition cannot have.
    fn said(&self) -> Vec<&'static str> {
        let said = [
            (self.plan.result.is_some(), "a result"),
            (self.idempotency_key.is_some(), "an idempotency key"),
            (self.active_key.is_some(), "an active key"),
            (self.tenant.is_some(), "a tenant"),
            (self.queue.is_some(), "a queue"),
            (self.priority != 0, "a priority"),
            (self.deadline.is_some(), "a deadline"),
            (!self.metadata.is_empty(), "metadata"),
        ];
        said.into_iter().filter(|(is_said, _)| *is_said).map(|(_, option)| option).collect()
    }
}
