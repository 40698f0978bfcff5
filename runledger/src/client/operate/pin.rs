//! Moves runs between versions of their code.

use uuid::Uuid;

use crate::client::handle::RunHandle;
use crate::connection::client_error::ClientError;
use crate::connection::db::connection;
use crate::model::run::state::RunState;
use crate::model::run::version::FIRST;
use crate::store::run::pin::{self, PinInfo, Pinned};

impl<T> RunHandle<T> {
    /// Moves the run to another version of its job's code, newer or older.
    ///
    /// From then on only workers that serve that version claim the run, and that version replays
    /// its history. Returns true if the run had another version before. [`pins`](Self::pins) lists
    /// the moves. A blocked or paused run stays so until you resume it.
    ///
    /// This call does not check whether that version fits the recorded history.
    /// [`App::verify`](crate::App::verify), in a program with that version, checks it beforehand.
    /// If it does not fit, the run is blocked, and you can move it back.
    ///
    /// # Errors
    /// [`ClientError::RunIsRunning`] if a worker holds the run: pause it first.
    /// [`ClientError::WrongState`] if the run has ended, [`ClientError::PartHasNoVersions`] for a
    /// graph, a gate or a map node, [`ClientError::NoSuchRun`], or a database error.
    ///
    /// # Cost
    /// One transaction of three statements.
    ///
    /// # Cancel safety
    /// Not cancel safe: a dropped call may still move the run. Repeating it is safe.
    pub async fn pin(&self, version: u32) -> Result<bool, ClientError> {
        let mut connection = connection(self.pool()?).await?;
        moved(self.id(), pin::pin(&mut connection, self.id(), version.max(FIRST)).await?)
    }

    /// Returns the moves of the run between versions of its code, oldest first. Empty if the run
    /// does not exist. One query.
    ///
    /// # Errors
    /// A database error.
    pub async fn pins(&self) -> Result<Vec<PinInfo>, ClientError> {
        Ok(pin::pins(&mut *connection(self.pool()?).await?, self.id()).await?)
    }
}

fn moved(run_id: Uuid, pinned: Option<Pinned>) -> Result<bool, ClientError> {
    match pinned {
        Some(Pinned::Moved) => Ok(true),
        Some(Pinned::Already) => Ok(false),
        Some(Pinned::OfEngine) => Err(ClientError::PartHasNoVersions { run_id }),
        Some(Pinned::Refused(RunState::Running)) => Err(ClientError::RunIsRunning { run_id }),
        Some(Pinned::Refused(state)) => {
            Err(ClientError::WrongState { run_id, state, verb: "moved to another version of its code" })
        }
        None => Err(ClientError::NoSuchRun { run_id }),
    }
}
