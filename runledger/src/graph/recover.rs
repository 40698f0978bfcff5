//! Another go at a whole graph that has ended.

use super::GraphHandle;
use super::submit::submit_on_pool;
use crate::client::graph_copy::copy_of;
use crate::connection::client_error::ClientError;
use crate::connection::db::connection;
use crate::definition::job::Payload;
use crate::model::name::check_key;
use crate::model::request::recovered_run_id;

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
