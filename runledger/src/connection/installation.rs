//! Installations and their copies. No worker serves a copy of a database before an operator adopts
//! it.

use sqlx::PgConnection;
use uuid::Uuid;

use super::client_error::ClientError;
use super::db::{Db, connection};
use crate::store::session::installation::{Adopt, adopt, recorded};

/// The result of [`Db::adopt`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Adopted {
    /// The id of the installation. The adoption of a copy assigns a new one.
    pub id: Uuid,
    /// Whether the database was a copy. If false, it was adopted before, and this call wrote
    /// nothing.
    pub was_copy: bool,
}

impl Db {
    /// Confirms that workers may serve this database although it is a copy of another one.
    ///
    /// The engine's tables record their cluster and database. A worker that finds them in another
    /// cluster or database refuses to start ([`ClientError::Copy`]), because the unfinished runs of
    /// the copy would repeat external effects of the original. Before you adopt a copy, cancel the
    /// runs that must not repeat.
    ///
    /// Costs at most two statements. You can repeat the call.
    ///
    /// # Errors
    /// The database failed.
    ///
    /// # Cancel safety
    /// A dropped future may or may not have adopted the database.
    pub async fn adopt(&self) -> Result<Adopted, ClientError> {
        let mut connection = connection(self.pool()).await?;
        if let Some(id) = adopt(&mut connection, Adopt::Always).await? {
            return Ok(Adopted { id, was_copy: true });
        }
        let id = recorded(&mut connection).await?.id;
        Ok(Adopted { id: id.unwrap_or_default(), was_copy: false })
    }
}

/// Adopts a copy that a template of the same cluster has made and that has no unfinished runs,
/// because nothing in it can repeat. This makes copies of empty databases, such as those in tests,
/// work without an operator.
///
/// Clients ignore a failure here: a worker checks again before it starts.
pub(crate) async fn adopt_if_idle(connection: &mut PgConnection) {
    let adopting = async {
        if !recorded(connection).await?.is_home && adopt(connection, Adopt::IfIdle).await?.is_some() {
            tracing::info!(
                "this database is a copy without unfinished runs; it is an installation of its own now"
            );
        }
        Ok::<_, sqlx::Error>(())
    };
    if let Err(error) = adopting.await {
        tracing::debug!(%error, "whether this database is a copy could not be found out");
    }
}

/// Refuses to serve a copy that was not adopted.
#[cfg(feature = "worker")]
pub(crate) async fn check_home(connection: &mut PgConnection) -> Result<(), ClientError> {
    let recorded = recorded(connection).await?;
    if recorded.is_home {
        return Ok(());
    }
    let of = recorded.id.map_or_else(
        || "of an installation without a record".to_owned(),
        |id| format!("of installation `{id}`, which lives in {}", recorded.made_in),
    );
    Err(ClientError::Copy { of, here: recorded.here })
}
