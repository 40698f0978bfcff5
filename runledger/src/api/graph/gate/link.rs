//! Links to gates: how somebody who has no access to the database decides about one, once they are given a link.

use std::time::{Duration, SystemTime};

use uuid::Uuid;

use super::super::GraphHandle;
use super::GateHandle;
use crate::api::client_error::ClientError;
use crate::api::db::{Db, connection};
use crate::api::job::Payload;
use crate::model::link::{Link, LinkKey};
use crate::store::graph;

/// A link to a gate that was signed with the key that opened it: what [`Db::gate_link`] gives.
#[derive(Debug)]
pub struct GateLink {
    graph: GraphHandle<()>,
    link: Link,
}

impl<T: Payload> GateHandle<'_, T> {
    /// A link to this gate that lets whoever has it decide for so long (at most 100 years), by the database's clock: text for a URL, signed with the key, so that nobody can make one or change it. With
    /// [`by`](Self::by) the decision is theirs. [`Db::gate_link`] takes it back in the program that answers the URL.
    ///
    /// It holds the id of the graph and the names, readable by whoever has it. A link can be used as long as it is valid; the same decision again does nothing, another one is
    /// refused. Costs one query.
    ///
    /// # Errors
    /// [`ClientError::NoSuchGate`], or a failure of the database.
    pub async fn link(&self, key: &LinkKey, valid_for: Duration) -> Result<String, ClientError> {
        let mut connection = connection(self.graph.pool()?).await?;
        let (is_gate, expires_at) = graph::gate_link(&mut connection, self.run_id(), valid_for).await?;
        if !is_gate {
            drop(connection);
            return Err(self.no_such_gate(&self.graph.nodes().await?));
        }
        let (graph_id, gate, by) = (self.graph.id(), self.name.clone(), self.by.clone());
        Ok(key.sign(&Link { graph_id, gate, by, expires_at }))
    }
}

impl Db {
    /// The gate that a [link](GateHandle::link) leads to: `db.gate_link(&key, text)?.gate().complete(&true).await?`.
    ///
    /// Asks the database nothing: whether the link has expired shows at the decision.
    ///
    /// # Errors
    /// [`ClientError::LinkInvalid`], where it was not signed with this key.
    pub fn gate_link(&self, key: &LinkKey, text: &str) -> Result<GateLink, ClientError> {
        let link = key.open(text).ok_or(ClientError::LinkInvalid)?;
        Ok(GateLink { graph: self.graph(link.graph_id), link })
    }
}

impl GateLink {
    /// The gate. A decision through it is refused with [`ClientError::LinkExpired`] once the link is over.
    pub fn gate(&self) -> GateHandle<'_, ()> {
        let gate = self.graph.gate(&self.link.gate);
        GateHandle { by: self.link.by.clone(), not_after: Some(self.link.expires_at), ..gate }
    }

    /// The graph.
    #[must_use]
    pub fn graph_id(&self) -> Uuid {
        self.link.graph_id
    }

    /// The name of the gate.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.link.gate
    }

    /// For whom it was made, if somebody was named.
    #[must_use]
    pub fn by(&self) -> Option<&str> {
        self.link.by.as_deref()
    }

    /// When it is over, by the database's clock.
    #[must_use]
    pub fn expires_at(&self) -> SystemTime {
        self.link.expires_at.into()
    }
}
