//! Methods of graph handles: gates and the states of nodes.

mod link;

use serde::Serialize;
use uuid::Uuid;

pub use self::link::GateLink;

use super::GraphHandle;
use crate::client::enqueue::input_difference;
use crate::connection::client_error::ClientError;
use crate::connection::db::{Db, connection};
use crate::definition::job::Payload;
use crate::model::graph::graph_state::GraphState;
use crate::model::graph::link::{Link, LinkDecision};
use crate::model::payload::{PayloadError, PayloadKind, Place, Plain, Stored};
use crate::model::replay::recorded::place_of_error;
use crate::model::run::failure::{Failure, FailureKind, words};
use crate::model::run::name::hint;
use crate::model::run::request::child_run_id;
use crate::model::run::state::RunState;
use crate::model::shape::GateType;
use crate::store::graph::{self, Decided, Decision, GateTerms, NodeInfo};
use crate::store::run::inspect;

/// How many nodes one query reads.
const AT_ONCE: i64 = 1000;

/// A gate of a graph, made by [`GraphHandle::gate`].
#[must_use = "a gate stays as it is until it is decided about"]
#[derive(Debug)]
pub struct GateHandle<'h, T> {
    graph: &'h GraphHandle<T>,
    name: String,
    by: Option<String>,
    reason: Option<String>,
    /// The link that created this handle.
    by_link: Option<&'h Link>,
}

impl Db {
    /// Returns a handle of the graph with this id: `db.graph::<String>(id).gate("approved")`.
    ///
    /// Use it in a process other than the one that submitted the graph. `T` is the type of the
    /// result, `()` for none. This call sends no query. If the graph does not exist, the first
    /// query of the handle fails.
    #[must_use]
    pub fn graph<T: Payload>(&self, run_id: Uuid) -> GraphHandle<T> {
        GraphHandle::new(run_id, false, Some(self.home()))
    }
}

impl<T> GraphHandle<T> {
    /// Returns a gate of this graph.
    ///
    /// `handle.gate("approved").by("ann").reason("looks good").complete(&true).await?`
    pub fn gate(&self, name: impl Into<String>) -> GateHandle<'_, T> {
        GateHandle { graph: self, name: name.into(), by: None, reason: None, by_link: None }
    }

    /// Returns the states of the nodes, by name. One query per 1,000 nodes.
    ///
    /// # Errors
    /// A database error.
    pub async fn nodes(&self) -> Result<Vec<NodeInfo>, ClientError> {
        let mut connection = connection(self.pool()?).await?;
        let mut nodes: Vec<NodeInfo> = Vec::new();
        loop {
            let after = nodes.last().map(|node| node.name.clone());
            let more =
                graph::nodes(&mut connection, self.id(), after.as_deref(), AT_ONCE, &self.sealer()).await?;
            let is_last = i64::try_from(more.len()).unwrap_or(AT_ONCE) < AT_ONCE;
            nodes.extend(more);
            if is_last {
                return Ok(nodes);
            }
        }
    }

    /// Returns the state of the graph, derived from the states of its nodes.
    ///
    /// One query more than [`nodes`](Self::nodes).
    ///
    /// # Errors
    /// [`ClientError::NoSuchRun`], or a database error.
    pub async fn graph_state(&self) -> Result<GraphState, ClientError> {
        let state = self.state().await?;
        Ok(standing(state, &self.nodes().await?))
    }
}

/// The state of a graph whose run and nodes have these states.
pub(super) fn standing(state: RunState, nodes: &[NodeInfo]) -> GraphState {
    match state {
        RunState::Failed => GraphState::Failed,
        RunState::Cancelled => GraphState::Cancelled,
        RunState::Completed
            if nodes.iter().all(|node| node.state == RunState::Completed || node.is_skipped()) =>
        {
            GraphState::Completed
        }
        RunState::Completed => GraphState::CompletedWithErrors,
        // All nodes may be terminal here, if the last one ended between the two queries.
        RunState::Waiting
            if nodes.iter().all(waits_for_the_outside)
                && !nodes.iter().all(|node| node.state.is_terminal()) =>
        {
            GraphState::Waiting
        }
        _ => GraphState::Running,
    }
}

/// Whether a node can only continue after a gate decision.
fn waits_for_the_outside(node: &NodeInfo) -> bool {
    node.state.is_terminal()
        || (node.state == RunState::Waiting && (node.job.is_none() || node.n_live_dependencies > 0))
}

impl<T> GateHandle<'_, T> {
    /// Sets who decides. The name is stored and shown, but not verified.
    ///
    /// A [link](Self::link) that was signed for a person keeps that name.
    pub fn by(mut self, who: impl Into<String>) -> Self {
        if self.by_link.is_none() || self.by.is_none() {
            self.by = Some(words(&who.into()));
        }
        self
    }

    /// Sets the reason of the decision. It is stored and shown.
    pub fn reason(mut self, why: impl Into<String>) -> Self {
        self.reason = Some(words(&why.into()));
        self
    }

    /// Returns the values that the gate accepts, as declared by the program that submitted the
    /// graph. One query.
    ///
    /// `None` if the gate does not exist, or if that program predates gate types. A gate without a
    /// type accepts any value.
    ///
    /// # Errors
    /// A database error.
    pub async fn value_type(&self) -> Result<Option<GateType>, ClientError> {
        Ok(self.terms().await?.and_then(|terms| terms.accepts))
    }

    async fn terms(&self) -> Result<Option<GateTerms>, ClientError> {
        Ok(graph::gate_terms(&mut *connection(self.graph.pool()?).await?, self.run_id()).await?)
    }

    /// Returns the terms of an existing gate. A decision requires them: an addition can create the
    /// gate before the decision is written, and then nothing would check the value.
    async fn known_terms(&self) -> Result<GateTerms, ClientError> {
        if let Some(terms) = self.terms().await? {
            return Ok(terms);
        }
        let nodes = self.graph.nodes().await?;
        // An addition can have created the gate after the first query.
        self.terms().await?.ok_or_else(|| self.no_such_gate(&nodes))
    }

    /// Completes the gate: its dependents start and receive this value.
    ///
    /// Completing it again with the same value has no effect. A value that does not fit the gate's
    /// type is refused, and the gate stays open.
    ///
    /// # Errors
    /// - [`ClientError::GateValue`]: the value cannot be stored or does not fit the gate's type.
    /// - [`GateEncrypted`](ClientError::GateEncrypted): the graph's payloads are encrypted and this
    ///   `Db` has no codec.
    /// - [`GateDecided`](ClientError::GateDecided): the gate ended with another decision.
    /// - [`GateNotOpen`](ClientError::GateNotOpen): the gate still waits for its dependencies.
    /// - [`NoSuchGate`](ClientError::NoSuchGate), or a database error.
    /// - Through a link also [`LinkExpired`](ClientError::LinkExpired),
    ///   [`LinkRevoked`](ClientError::LinkRevoked), and [`LinkBound`](ClientError::LinkBound) if
    ///   the link is bound to another decision.
    ///
    /// # Cost
    /// One query and one transaction of five statements.
    ///
    /// # Cancel safety
    /// Not cancel safe: a dropped call may still complete the gate. Repeating it is safe.
    pub async fn complete<V: Serialize + ?Sized>(self, value: &V) -> Result<(), ClientError> {
        let plain = self.encode(value)?;
        let text = plain.to_string();
        self.check_bound(
            |bound| matches!(bound, LinkDecision::Complete { value } if input_difference(value, &text).is_none()),
        )?;
        let terms = self.known_terms().await?;
        self.check(&text, terms.accepts)?;
        self.refuse_plain_payload(terms.is_encrypted)?;
        let output = self.seal(plain)?;
        let decision = self.decision(RunState::Completed, Some(&output), None);
        if self.decide(&decision).await? {
            return Ok(());
        }
        self.decided_otherwise(RunState::Completed, |end, sealer_opens| {
            end.as_ref().is_some_and(|end| input_difference(&sealer_opens(end.clone()), &text).is_none())
        })
        .await
    }

    fn encode<V: Serialize + ?Sized>(&self, value: &V) -> Result<Plain, ClientError> {
        Plain::of(value).map_err(|source| self.encode_error(&source.into()))
    }

    fn seal(&self, plain: Plain) -> Result<Stored, ClientError> {
        let place = Place::new(self.run_id(), PayloadKind::Output, "");
        self.graph.sealer().seal(&place, plain).map_err(|source| self.encode_error(&source))
    }

    fn encode_error(&self, source: &PayloadError) -> ClientError {
        let advice = if source.is_of_codec() {
            "repeat the call when the codec works"
        } else {
            "give a value that can be stored"
        };
        ClientError::GateValue {
            run_id: self.graph.id(),
            gate: self.name.clone(),
            why: format!("its value cannot be stored: {}", Failure::from_chain(FailureKind::Encode, source)),
            advice: advice.to_owned(),
        }
    }

    /// Refuses a decision if the link of this handle is bound to another one.
    fn check_bound(&self, is_same: impl FnOnce(&LinkDecision) -> bool) -> Result<(), ClientError> {
        match self.by_link.and_then(|link| link.decision.as_ref()) {
            Some(bound) if !is_same(bound) => {
                Err(ClientError::LinkBound { run_id: self.graph.id(), gate: self.name.clone() })
            }
            _ => Ok(()),
        }
    }

    /// Refuses a value that does not fit the gate's type. A gate never changes its type, so the
    /// check and the decision need not share a transaction.
    fn check(&self, text: &str, accepts: Option<GateType>) -> Result<(), ClientError> {
        let Some(accepts) = accepts else { return Ok(()) };
        // The encoder has already refused invalid JSON.
        let Ok(value) = serde_json::from_str(text) else { return Ok(()) };
        accepts.check(&value).map_err(|mismatch| ClientError::GateValue {
            run_id: self.graph.id(),
            gate: self.name.clone(),
            why: format!("the value does not fit: {mismatch}"),
            advice: accepts.advice(),
        })
    }

    /// A program without the codec would store a plain value or message beside encrypted ones.
    fn refuse_plain_payload(&self, is_encrypted: bool) -> Result<(), ClientError> {
        if is_encrypted && !self.graph.sealer().opens() {
            return Err(ClientError::GateEncrypted { run_id: self.graph.id(), gate: self.name.clone() });
        }
        Ok(())
    }

    /// Fails the gate. Nodes that need its success are cancelled.
    ///
    /// # Errors
    /// As for [`complete`](Self::complete).
    pub async fn fail(self, message: &str) -> Result<(), ClientError> {
        self.check_bound(
            |bound| matches!(bound, LinkDecision::Fail { message: allowed } if allowed == message),
        )?;
        self.refuse_plain_payload(self.known_terms().await?.is_encrypted)?;
        self.end_without(RunState::Failed, &Failure::new(FailureKind::Error, message)).await
    }

    /// Cancels the gate. Nodes that need its success are cancelled.
    ///
    /// # Errors
    /// As for [`complete`](Self::complete).
    pub async fn cancel(self, message: &str) -> Result<(), ClientError> {
        self.check_bound(|_| false)?;
        self.end_without(RunState::Cancelled, &crate::store::operator::cancel::failure(Some(message))).await
    }

    async fn end_without(self, state: RunState, failure: &Failure) -> Result<(), ClientError> {
        let place = place_of_error(self.run_id(), "");
        let error = self.graph.sealer().seal_failure(&place, failure);
        let decision = self.decision(state, None, Some(&error));
        if self.decide(&decision).await? {
            return Ok(());
        }
        let sealer = self.graph.sealer();
        let (run_id, failure) = (self.run_id(), sealer.storable(failure));
        self.decided_otherwise(state, |end, _| {
            end.as_ref().is_some_and(|end| sealer.show_failure(&place_of_error(run_id, ""), end) == failure)
        })
        .await
    }

    fn run_id(&self) -> Uuid {
        child_run_id(self.graph.id(), &self.name)
    }

    fn decision<'d>(
        &'d self,
        state: RunState,
        output: Option<&'d Stored>,
        error: Option<&'d Stored>,
    ) -> Decision<'d> {
        let (by, reason) = (self.by.as_deref(), self.reason.as_deref());
        Decision { state, output, error, by, reason, by_link: self.by_link }
    }

    async fn decide(&self, decision: &Decision<'_>) -> Result<bool, ClientError> {
        let mut connection = connection(self.graph.pool()?).await?;
        match graph::decide(&mut connection, self.run_id(), decision).await? {
            Decided::Yes => Ok(true),
            Decided::No => Ok(false),
            Decided::Late => {
                Err(ClientError::LinkExpired { run_id: self.graph.id(), gate: self.name.clone() })
            }
            Decided::Revoked => {
                Err(ClientError::LinkRevoked { run_id: self.graph.id(), gate: self.name.clone() })
            }
        }
    }

    /// The error for a gate that does not exist.
    fn no_such_gate(&self, nodes: &[NodeInfo]) -> ClientError {
        let gates = nodes.iter().filter(|node| node.job.is_none());
        let hint = hint(&self.name, gates.map(|node| node.name.as_str()));
        ClientError::NoSuchGate { run_id: self.graph.id(), gate: self.name.clone(), hint }
    }

    /// Returns why the decision was refused, or `Ok` if the gate already has this decision.
    async fn decided_otherwise(
        &self,
        state: RunState,
        is_same: impl FnOnce(&Option<Stored>, &dyn Fn(Stored) -> String) -> bool,
    ) -> Result<(), ClientError> {
        let nodes = self.graph.nodes().await?;
        let Some(gate) = nodes.iter().find(|node| node.job.is_none() && node.name == self.name) else {
            return Err(self.no_such_gate(&nodes));
        };
        if !gate.state.is_terminal() {
            // Cancelling a graph ends its run first and then its nodes one by one.
            let ended = self.graph.state().await?;
            if ended.is_terminal() {
                let (run_id, gate) = (self.graph.id(), self.name.clone());
                return Err(ClientError::GateDecided { run_id, gate, ended, by: String::new() });
            }
            return Err(ClientError::GateNotOpen {
                run_id: self.graph.id(),
                gate: self.name.clone(),
                n_live_dependencies: gate.n_live_dependencies,
            });
        }
        let mut connection = connection(self.graph.pool()?).await?;
        let end = inspect::end_of_run(&mut connection, self.run_id()).await?;
        let sealer = self.graph.sealer();
        let place = Place::new(self.run_id(), PayloadKind::Output, "");
        let open = |stored: Stored| sealer.show(&place, stored);
        let stored = end.and_then(|end| if state == RunState::Completed { end.output } else { end.failure });
        if gate.state == state && is_same(&stored, &open) {
            return Ok(());
        }
        Err(ClientError::GateDecided {
            run_id: self.graph.id(),
            gate: self.name.clone(),
            ended: gate.state,
            by: gate.decided_by.as_ref().map(|who| format!(" by `{who}`")).unwrap_or_default(),
        })
    }
}
