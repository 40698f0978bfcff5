//! Pictures of graphs: declared graphs, and submitted graphs with the states of their nodes.

use super::gate::standing;
use super::{Declared, Graph, GraphHandle};
use crate::connection::client_error::ClientError;
use crate::connection::db::connection;
use crate::definition::registry;
use crate::model::graph::{GraphError, PlannedKind, PlannedNode};
use crate::model::json::Fields;
use crate::model::payload::{PayloadKind, Place};
use crate::model::picture::{GraphPicture, PictureEdge, PictureNode};
use crate::model::run::state::RunState;
use crate::model::run::version::parts;
use crate::store::graph::{self, NodeInfo};

impl<T> Graph<T> {
    /// Returns the picture of the graph as declared so far, to inspect it before the submission.
    ///
    /// Print it with `println!("{}", graph.picture()?)`, or convert it to
    /// [JSON](GraphPicture::to_json), [DOT](GraphPicture::to_dot) or [SVG](GraphPicture::to_svg).
    /// This call sends no query.
    ///
    /// ```
    /// # use runledger::{Graph, Result, job};
    /// #[job]
    /// async fn extract(region: String) -> Result<u64> {
    ///     Ok(region.len() as u64)
    /// }
    /// #[job]
    /// async fn publish(total: u64, approved: bool) -> Result<()> {
    ///     println!("{total} {approved}");
    ///     Ok(())
    /// }
    ///
    /// let mut graph = Graph::new("nightly");
    /// let total = graph.call(extract("eu".to_owned()));
    /// let approved = graph.gate::<bool>("approved");
    /// graph.then(publish, (total, approved));
    /// let table = "\
    /// nightly: 3 nodes and 2 edges
    /// 1  approved  gate
    ///    extract   job extract
    /// 2  publish   job publish  ← approved (approved), extract (total)
    /// ";
    /// assert_eq!(graph.picture()?.to_string(), table);
    /// # Ok::<(), runledger::GraphError>(())
    /// ```
    ///
    /// # Errors
    /// [`GraphError`] with every problem of its shape: names, edges, cycles, sizes. The submission
    /// checks the calls of the nodes.
    pub fn picture(&self) -> Result<GraphPicture, GraphError> {
        let checked = self.plan.check()?;
        let nodes = self.plan.nodes.iter().zip(&self.nodes);
        let nodes =
            nodes.map(|(planned, declared)| PictureNode::new(planned.name.clone(), job(planned, declared)));
        let name_of = |place: usize| self.plan.nodes[place].name.clone();
        let edges = checked.needs.iter().enumerate().flat_map(|(dependant, needs)| {
            needs.iter().map(move |(needed, need)| {
                PictureEdge::new(
                    name_of(*needed),
                    name_of(dependant),
                    need.on_terminal,
                    need.parameters.clone(),
                )
            })
        });
        let picture = GraphPicture::new(self.plan.name.clone(), nodes.collect(), edges.collect());
        Ok(picture.with_result(checked.result.map(name_of)))
    }
}

/// The name of the node's job. `None` for a gate.
fn job(planned: &PlannedNode, declared: &Declared) -> Option<String> {
    let request = &declared.request;
    match &planned.kind {
        PlannedKind::Gate(_) | PlannedKind::Existing(_) => None,
        PlannedKind::Job(_) if request.definition.is_none() => {
            let named = registry::named(&request.job, request.version);
            Some(named.map_or(&*request.job, |(definition, _)| definition.name).to_owned())
        }
        PlannedKind::Job(_) => Some(parts(&request.job).0.to_owned()),
    }
}

impl<T> GraphHandle<T> {
    /// Returns the picture of the graph with the current state of each node and its reason.
    ///
    /// The nodes and edges are those of [`Graph::picture`]. The states of all nodes are from one
    /// instant.
    ///
    /// # Errors
    /// [`ClientError::NoSuchRun`] if the graph does not exist,
    /// [`Unreadable`](ClientError::Unreadable) if its request is sealed and does not open, or a
    /// database error.
    ///
    /// # Cost
    /// Three queries.
    pub async fn picture(&self) -> Result<GraphPicture, ClientError> {
        let (run_id, sealer) = (self.id(), self.sealer());
        let mut connection = connection(self.pool()?).await?;
        let head = graph::head(&mut connection, run_id).await?;
        let head = head.ok_or(ClientError::NoSuchRun { run_id })?;
        let nodes = graph::nodes(&mut connection, run_id, None, i64::MAX, &sealer).await?;
        let edges = graph::edges(&mut connection, run_id).await?;
        drop(connection);
        let place = Place::new(run_id, PayloadKind::Input, "");
        let request =
            sealer.open(&place, head.request).map_err(|source| ClientError::Unreadable { run_id, source })?;
        // The engine wrote the request. If somebody edited it by hand, the picture has no result.
        let result = Fields::parse(&request).and_then(|request| request.get("result")).unwrap_or_default();
        let state = standing(head.state, &nodes);
        let edges = edges
            .into_iter()
            .map(|edge| PictureEdge::new(edge.needed, edge.dependant, edge.on_terminal, edge.parameters));
        let picture =
            GraphPicture::new(head.name, nodes.into_iter().map(standing_node).collect(), edges.collect());
        Ok(picture.with_result(result).of_run(run_id, state))
    }
}

fn standing_node(node: NodeInfo) -> PictureNode {
    let reason = reason(&node);
    PictureNode::new(node.name, node.job).standing(node.state, reason)
}

/// Why a node is in its state, if there is more to say than the state.
fn reason(node: &NodeInfo) -> Option<String> {
    let mut parts: Vec<String> = node.error.iter().map(ToString::to_string).collect();
    if node.decided_at.is_some() {
        let by = node.decided_by.as_ref().map(|who| format!(" by `{who}`")).unwrap_or_default();
        let why = node.reason.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
        parts.push(format!("decided{by}{why}"));
    }
    if node.state == RunState::Waiting {
        match node.n_live_dependencies {
            0 if node.job.is_none() => parts.push("open: nobody has decided".to_owned()),
            0 => {}
            1 => parts.push("waits for 1 node".to_owned()),
            n => parts.push(format!("waits for {n} nodes")),
        }
    }
    if node.attempt > 1 && node.job.is_some() {
        parts.push(format!("attempt {}", node.attempt));
    }
    (!parts.is_empty()).then(|| parts.join("; "))
}
