//! Exports of recorded histories.

use crate::client::handle::RunHandle;
use crate::connection::client_error::ClientError;
use crate::connection::db::connection;
use crate::model::graph::dependency_inputs;
use crate::model::payload::{PayloadKind, Place};
use crate::model::replay::history::History;
use crate::model::replay::recorded;
use crate::store::run::history::{self, Record};

impl<T> RunHandle<T> {
    /// Exports the history of the run for a file that a test replays: its input and the results of
    /// its steps.
    ///
    /// Sealed payloads are opened, so the file contains plain text. One query.
    ///
    /// # Errors
    /// [`ClientError::NoSuchRun`], [`ClientError::Unreadable`], or a database error.
    pub async fn export(&self) -> Result<History, ClientError> {
        let (run_id, sealer) = (self.id(), self.sealer());
        let record = history::history(&mut *connection(self.pool()?).await?, run_id).await?;
        let record = record.ok_or(ClientError::NoSuchRun { run_id })?;
        let Record { job, tenant, graph_id, state, attempt, input, given, steps } = record;
        let input = sealer.open(&Place::new(run_id, PayloadKind::Input, ""), input);
        let input = input.and_then(|input| dependency_inputs::bind(input, given, &sealer));
        let opened = input.and_then(|input| Ok((input, recorded::open(steps, run_id, &sealer)?)));
        let (input, steps) = opened.map_err(|source| self.unreadable(source))?;
        let history = History::new(run_id, &job, tenant, state, attempt, input, steps);
        Ok(history.in_graph(graph_id).keyed(sealer.opens()))
    }
}
