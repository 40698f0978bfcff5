//! Links to gates: a person without access to the database decides a gate by a link.

use std::time::{Duration, SystemTime};

use serde::Serialize;
use serde_json::value::RawValue;
use uuid::Uuid;

use super::GateHandle;
use crate::connection::client_error::ClientError;
use crate::connection::db::{Db, connection};
use crate::definition::job::Payload;
use crate::graph::GraphHandle;
use crate::model::graph::link::{GateLinkKey, Link, LinkDecision};
use crate::store::graph::{self, LinkTerms};

/// A link to a gate, opened with the key that signed it. [`Db::gate_link`] returns it.
#[derive(Debug)]
pub struct GateLink {
    graph: GraphHandle<()>,
    link: Link,
}

impl<T: Payload> GateHandle<'_, T> {
    /// Signs a link to this gate that allows every decision: text for a URL.
    ///
    /// The holder of the link can decide until it expires. With [`by`](Self::by), the decision is
    /// in that name. The program that answers the URL opens the text with [`Db::gate_link`].
    ///
    /// - The link is valid for at most 100 years, by the database's clock.
    /// - Without the key, nobody can make or change a link. The holder can read the id of the graph
    ///   and the names.
    /// - A gate is decided once. After the decision, a link can only repeat it, which has no
    ///   effect. A different decision is refused.
    /// - [`revoke_links`](Self::revoke_links) revokes the link.
    ///   [`link_to_complete`](Self::link_to_complete) signs a link that allows only one decision.
    ///
    /// # Errors
    /// [`ClientError::NoSuchGate`], or a database error.
    ///
    /// # Cost
    /// One query.
    pub async fn link(&self, key: &GateLinkKey, valid_for: Duration) -> Result<String, ClientError> {
        self.sign(key, valid_for, None).await
    }

    /// Signs a link to this gate that only completes it, with this value. [`GateLink::decide`]
    /// carries out the decision. Otherwise it is like [`link`](Self::link).
    ///
    /// **The holder of the link can read the value**: a link is signed, not encrypted. So a `Db`
    /// with an encrypting codec refuses to sign this link, and every `Db` refuses a value with a
    /// [`Secret`](crate::Secret). The text has 4 characters for each 3 bytes of the value.
    ///
    /// # Errors
    /// [`ClientError::GateValue`] if the value cannot be stored or does not fit the gate's type,
    /// [`LinkShowsSealed`](ClientError::LinkShowsSealed), [`NoSuchGate`](ClientError::NoSuchGate),
    /// or a database error.
    ///
    /// # Cost
    /// Two queries.
    pub async fn link_to_complete<V: Serialize + ?Sized>(
        &self,
        key: &GateLinkKey,
        valid_for: Duration,
        value: &V,
    ) -> Result<String, ClientError> {
        let plain = self.encode(value)?;
        self.check_shown(plain.has_secret())?;
        let value = plain.to_string();
        self.check(&value, self.known_terms().await?.accepts)?;
        // Sealing checks the size. The decision seals the value again.
        self.seal(plain)?;
        self.sign(key, valid_for, Some(LinkDecision::Complete { value })).await
    }

    /// Signs a link to this gate that only fails it, with this message. The holder can read the
    /// message. Otherwise it is like [`link_to_complete`](Self::link_to_complete).
    ///
    /// # Errors
    /// [`ClientError::LinkShowsSealed`] if the `Db` has an encrypting codec,
    /// [`NoSuchGate`](ClientError::NoSuchGate), or a database error.
    ///
    /// # Cost
    /// One query.
    pub async fn link_to_fail(
        &self,
        key: &GateLinkKey,
        valid_for: Duration,
        message: impl Into<String>,
    ) -> Result<String, ClientError> {
        self.check_shown(false)?;
        self.sign(key, valid_for, Some(LinkDecision::Fail { message: message.into() })).await
    }

    /// Revokes every link to this gate that was signed before. The gate stays open, and links
    /// signed later are valid.
    ///
    /// A decision by a revoked link fails with [`ClientError::LinkRevoked`] and writes nothing. A
    /// decision that races with the revocation either commits before it or is refused. The database
    /// orders signatures and revocations; no clock is involved.
    ///
    /// # Errors
    /// [`ClientError::NoSuchGate`], or a database error.
    ///
    /// # Cost
    /// One transaction of two statements.
    ///
    /// # Cancel safety
    /// Not cancel safe: a dropped call may still revoke the links. Repeating it is safe; the
    /// repetition also revokes links that were signed in between.
    pub async fn revoke_links(&self) -> Result<(), ClientError> {
        let mut connection = connection(self.graph.pool()?).await?;
        if graph::revoke_links(&mut connection, self.run_id()).await? {
            return Ok(());
        }
        drop(connection);
        Err(self.no_such_gate(&self.graph.nodes().await?))
    }

    async fn sign(
        &self,
        key: &GateLinkKey,
        valid_for: Duration,
        decision: Option<LinkDecision>,
    ) -> Result<String, ClientError> {
        let mut connection = connection(self.graph.pool()?).await?;
        let terms = graph::gate_link(&mut connection, self.run_id(), valid_for).await?;
        drop(connection);
        let Some(LinkTerms { expires_at, epoch }) = terms else {
            return Err(self.no_such_gate(&self.graph.nodes().await?));
        };
        let (graph_id, gate, by) = (self.graph.id(), self.name.clone(), self.by.clone());
        Ok(key.sign(&Link { graph_id, gate, by, expires_at, epoch, decision }))
    }

    /// Refuses a link that would show a payload that must be sealed.
    fn check_shown(&self, has_secret: bool) -> Result<(), ClientError> {
        if has_secret || self.graph.sealer().seals() {
            return Err(ClientError::LinkShowsSealed { run_id: self.graph.id(), gate: self.name.clone() });
        }
        Ok(())
    }
}

impl Db {
    /// Opens a [link](GateHandle::link) to a gate: `db.gate_link(&key,
    /// text)?.gate().complete(&true).await?`.
    ///
    /// It sends no query. The decision fails if the link has expired or was revoked.
    ///
    /// # Errors
    /// [`ClientError::LinkInvalid`] if the link was not signed with this key.
    pub fn gate_link(&self, key: &GateLinkKey, text: &str) -> Result<GateLink, ClientError> {
        let link = key.open(text).ok_or(ClientError::LinkInvalid)?;
        Ok(GateLink { graph: self.graph(link.graph_id), link })
    }
}

impl GateLink {
    /// Returns the gate.
    ///
    /// A decision through it fails with [`ClientError::LinkExpired`] after the link has expired,
    /// with [`LinkRevoked`](ClientError::LinkRevoked) after a revocation, and with
    /// [`LinkBound`](ClientError::LinkBound) if the link is bound to another
    /// [`decision`](Self::decision).
    pub fn gate(&self) -> GateHandle<'_, ()> {
        let gate = self.graph.gate(&self.link.gate);
        GateHandle { by: self.link.by.clone(), by_link: Some(&self.link), ..gate }
    }

    /// Carries out the decision that the link is bound to. A repetition has no effect.
    ///
    /// # Errors
    /// [`ClientError::LinkUnbound`] if the link is bound to no decision. Otherwise as for
    /// [`complete`](GateHandle::complete) and [`fail`](GateHandle::fail).
    ///
    /// # Cancel safety
    /// Not cancel safe: a dropped call may still decide the gate. Repeating it is safe.
    pub async fn decide(&self) -> Result<(), ClientError> {
        match &self.link.decision {
            Some(LinkDecision::Complete { value }) => {
                // The key opens no link with a value that is not JSON.
                let value: &RawValue = serde_json::from_str(value).map_err(|_| ClientError::LinkInvalid)?;
                self.gate().complete(value).await
            }
            Some(LinkDecision::Fail { message }) => self.gate().fail(message).await,
            None => Err(ClientError::LinkUnbound { run_id: self.graph_id(), gate: self.link.gate.clone() }),
        }
    }

    /// Returns the only decision that the link allows. `None` if it allows every decision.
    #[must_use]
    pub fn decision(&self) -> Option<&LinkDecision> {
        self.link.decision.as_ref()
    }

    /// Returns the id of the graph.
    #[must_use]
    pub fn graph_id(&self) -> Uuid {
        self.link.graph_id
    }

    /// Returns the name of the gate.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.link.gate
    }

    /// Returns the name in which the link decides, if it has one.
    #[must_use]
    pub fn by(&self) -> Option<&str> {
        self.link.by.as_deref()
    }

    /// Returns when the link expires, by the database's clock.
    #[must_use]
    pub fn expires_at(&self) -> SystemTime {
        self.link.expires_at.into()
    }
}
