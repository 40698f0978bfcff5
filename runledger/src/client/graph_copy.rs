//! Copies of graphs that replace other graphs.

use sqlx::PgConnection;
use uuid::Uuid;

use crate::connection::client_error::ClientError;
use crate::model::payload::{PayloadError, PayloadKind, Place, Sealer};
use crate::model::run::request::child_run_id;
use crate::model::run::state::RunState;
use crate::store::graph::{self, NewEdge, NewGraph, NewNode};
use crate::store::run::enqueue::NewRun;

/// Returns a copy of a graph to submit, and the state of the original. `None` if there is no such
/// graph.
pub(crate) async fn copy_of(
    connection: &mut PgConnection,
    origin_id: Uuid,
    run_id: Uuid,
    sealer: &Sealer,
) -> Result<Option<(RunState, NewGraph)>, ClientError> {
    let Some((of_graph, of_nodes)) = graph::parts_of(connection, origin_id).await? else { return Ok(None) };
    let id_of = |name: &str| child_run_id(run_id, name);
    let moved = |run: NewRun, to: Uuid| {
        let from = run.run_id;
        moved(run, to, sealer).map_err(|source| ClientError::Unreadable { run_id: from, source })
    };
    let edges = of_nodes.iter().flat_map(|node| {
        node.needs.iter().map(|(needed, on_terminal, parameters)| NewEdge {
            dependant_id: id_of(&node.name),
            run_id: id_of(needed),
            on_terminal: *on_terminal,
            parameters: parameters.clone(),
        })
    });
    let edges = edges.collect();
    let nodes = of_nodes.into_iter().map(|node| {
        let n_waits = i32::try_from(node.needs.len()).unwrap_or(i32::MAX);
        let run = moved(node.run, id_of(&node.name))?;
        Ok(NewNode { run, name: node.name, n_waits, unreachable: None, accepts: node.accepts })
    });
    let nodes = nodes.collect::<Result<Vec<_>, ClientError>>()?;
    let (state, name) = (of_graph.state, of_graph.name);
    let run = moved(of_graph.run, run_id)?;
    Ok(Some((state, NewGraph { run, name, nodes, edges, origin_id: Some(origin_id) })))
}

/// The same request for another run. A sealed payload is bound to its run, so it is sealed again.
fn moved(run: NewRun, to: Uuid, sealer: &Sealer) -> Result<NewRun, PayloadError> {
    let place = |run_id| Place::new(run_id, PayloadKind::Input, "");
    let input = sealer.reseal(&place(run.run_id), &place(to), run.input)?;
    Ok(NewRun { run_id: to, input, ..run })
}
