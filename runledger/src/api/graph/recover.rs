//! Another go at a whole graph that has ended.

use sqlx::PgConnection;
use uuid::Uuid;

use super::GraphHandle;
use super::submit::submit_on_pool;
use crate::api::client_error::ClientError;
use crate::api::db::connection;
use crate::api::job::Payload;
use crate::model::name::check_key;
use crate::model::payload::{PayloadError, PayloadKind, Place, Sealer};
use crate::model::request::{child_run_id, recovered_run_id};
use crate::model::state::RunState;
use crate::store::enqueue::NewRun;
use crate::store::graph::{self, NewEdge, NewGraph, NewNode};

impl<T: Payload> GraphHandle<T> {
    /// Submits a graph that has ended once more: a new run with the same nodes, edges, inputs and options, without the idempotency key, linked to this one as its
    /// origin. Everything in it runs anew, and its gates are to be decided about anew. Once for each `key`: the same again gives the same graph.
    ///
    /// Costs a query and a statement.
    ///
    /// # Errors
    /// [`ClientError::WrongState`] where the graph goes on, [`NoSuchRun`](ClientError::NoSuchRun), [`Unreadable`](ClientError::Unreadable) where a sealed input
    /// does not open, or a failure of the database.
    ///
    /// # Cancel safety
    /// A dropped future may or may not have submitted the graph. It can be repeated.
    pub async fn recover(&self, key: &str) -> Result<Self, ClientError> {
        check_key("request key", key)?;
        let (sealer, run_id) = (self.sealer(), recovered_run_id(self.id(), key));
        let mut connection = connection(self.pool()?).await?;
        let copied = copy_of(&mut connection, self.id(), run_id, &sealer).await?;
        drop(connection);
        let Some((state, again)) = copied else { return Err(ClientError::NoSuchRun { run_id: self.id() }) };
        if !state.is_terminal() {
            return Err(ClientError::WrongState { run_id: self.id(), state, verb: "recovered" });
        }
        let created = submit_on_pool(self.pool()?, &again, &sealer, true).await?;
        Ok(Self::new(run_id, created, self.home()))
    }
}

/// A graph to be written that is made as another was, with the state of that one. None where there is no such graph.
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
        Ok(NewNode { run, name: node.name, n_waits, hopeless: None, accepts: node.accepts })
    });
    let nodes = nodes.collect::<Result<Vec<_>, ClientError>>()?;
    let (state, name) = (of_graph.state, of_graph.name);
    let run = moved(of_graph.run, run_id)?;
    Ok(Some((state, NewGraph { run, name, nodes, edges, origin_id: Some(origin_id) })))
}

/// The same request as that of another run. What is sealed is sealed for its run.
fn moved(run: NewRun, to: Uuid, sealer: &Sealer) -> Result<NewRun, PayloadError> {
    let place = |run_id| Place::new(run_id, PayloadKind::Input, "");
    let input = sealer.reseal(&place(run.run_id), &place(to), run.input)?;
    Ok(NewRun { run_id: to, input, ..run })
}
