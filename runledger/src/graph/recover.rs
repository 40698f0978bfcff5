//! Recovery: submits a graph that has ended again.

use super::GraphHandle;
use super::submit::submit_on_pool;
use crate::client::graph_copy::copy_of;
use crate::connection::client_error::ClientError;
use crate::connection::db::connection;
use crate::model::run::name::check_key;
use crate::model::run::request::recovered_run_id;

impl<T> GraphHandle<T> {
    /// Submits a graph that has ended again, as a new run with this one as its origin.
    ///
    /// The new run has the same nodes, edges, inputs and options, but no idempotency key. All nodes
    /// execute again, and all gates need a new decision. Each `key` creates one graph: a repetition
    /// returns the same graph.
    ///
    /// # Errors
    /// [`ClientError::WrongState`] if the graph is live, [`NoSuchRun`](ClientError::NoSuchRun),
    /// [`Unreadable`](ClientError::Unreadable) if a sealed input does not open, or a database
    /// error.
    ///
    /// # Cost
    /// One query and one statement.
    ///
    /// # Cancel safety
    /// Not cancel safe: a dropped call may still submit the graph. Repeating it is safe.
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
