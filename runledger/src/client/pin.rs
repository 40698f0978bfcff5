//! Moving runs between versions of their code.

use uuid::Uuid;

use super::handle::RunHandle;
use crate::connection::client_error::ClientError;
use crate::connection::db::{Db, connection};
use crate::definition::job::Job;
use crate::model::state::RunState;
use crate::model::version::FIRST;
use crate::store::pin::{self, PinInfo, Pinned};

impl Db {
    /// Moves a run to another version of its job's code, newer or older, on purpose: from then on only workers that serve that version take it, and its
    /// record is replayed by that code. True where it was of another version before. [`pins`](Self::pins) tells of it.
    ///
    /// Whether the code of that version follows what the run has on record is not asked here: [`App::verify`](crate::App::verify) of a program with that
    /// version says so before, and where it does not, the run is blocked and can be moved back. A blocked or paused run stays so until it is resumed.
    ///
    /// Costs a transaction of three statements.
    ///
    /// # Errors
    /// [`ClientError::RunIsRunning`] where a worker holds the run: pause it before. [`ClientError::WrongState`] where it has ended,
    /// [`ClientError::PartHasNoVersions`] of a graph, a gate or a map node, [`ClientError::NoSuchRun`], or a failure of the database.
    ///
    /// # Cancel safety
    /// A dropped future may or may not have moved the run. It can be repeated.
    pub async fn pin(&self, run_id: Uuid, version: u32) -> Result<bool, ClientError> {
        let mut connection = connection(self.pool()).await?;
        moved(run_id, pin::pin(&mut connection, run_id, version.max(FIRST)).await?)
    }

    /// When a run was moved to another version of its code, the first time first. One query.
    ///
    /// # Errors
    /// A failure of the database.
    pub async fn pins(&self, run_id: Uuid) -> Result<Vec<PinInfo>, ClientError> {
        Ok(pin::pins(&mut *connection(self.pool()).await?, run_id).await?)
    }
}

impl<J: Job> RunHandle<J> {
    /// As [`Db::pin`].
    ///
    /// # Errors
    /// As [`Db::pin`].
    pub async fn pin(&self, version: u32) -> Result<bool, ClientError> {
        let mut connection = connection(self.pool()?).await?;
        moved(self.id(), pin::pin(&mut connection, self.id(), version.max(FIRST)).await?)
    }

    /// As [`Db::pins`].
    ///
    /// # Errors
    /// As [`Db::pins`].
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
