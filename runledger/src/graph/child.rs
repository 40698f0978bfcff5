//! Graphs started by a workflow.

use std::panic::Location;
use std::sync::Arc;

use super::Graph;
use crate::connection::client_error::ClientError;
use crate::definition::job::Payload;
use crate::engine::attempt::stop::StopReason;
use crate::engine::step::waiting;
use crate::model::payload::Sealer;
use crate::model::run::failure::{Failure, FailureKind};
use crate::model::run::request::child_run_id;
use crate::store::attempt::wait::NewChild;
use crate::workflow::child::{Child, not_for_a_child, of_child};
use crate::workflow::step::{Step, decode_output};
use crate::workflow::{Wf, never, refused};

impl Wf {
    /// Starts a graph as a child run. Its nodes execute on their own queues.
    ///
    /// The step is named after the graph. Its start and its record are one commit. Like every
    /// child, the graph is cancelled, with all its nodes, if this run is cancelled or fails. Its
    /// result is the output of its [result](Graph::result) node. The graph fails if that node does
    /// not complete. Without a result node, it fails if any node fails.
    ///
    /// ```
    /// # use runledger::{Error, Graph, Result, Wf, job, workflow};
    /// # #[job] async fn extract(region: &str) -> Result<u64> { Ok(region.len() as u64) }
    /// # #[job] async fn merge(eu: u64, us: u64) -> Result<u64> { Ok(eu + us) }
    /// #[workflow]
    /// async fn nightly(wf: &Wf) -> Result<u64> {
    ///     let mut graph = Graph::new("totals");
    ///     let eu = graph.call(extract("eu").key("eu"));
    ///     let us = graph.call(extract("us").key("us"));
    ///     let total = graph.then(merge, (eu, us));
    ///     let totals = wf.start_graph(graph.result(total)).await?;
    ///     Ok(totals.result().await?)
    /// }
    /// ```
    ///
    /// # Errors
    /// - The graph is invalid. The error names every problem.
    /// - The graph has a tenant, an active key or an idempotency key. A child has the tenant of its
    ///   parent, and its step identifies it.
    /// - An input cannot be stored.
    /// - The run already has 99 ancestors.
    ///
    /// # Cost
    /// One transaction of two statements, whatever the size of the graph.
    #[track_caller]
    pub fn start_graph<T: Payload>(&self, graph: Graph<T>) -> Step<'_, Child<'_, T>> {
        let line = Location::caller();
        let name = graph.name().to_owned();
        if let Some(option) = graph.identity_said() {
            return refused(&name, not_for_a_child("graph", &name, option));
        }
        // Without a codec: a change of the codec's keys would change the request.
        let draft = match graph.draft(&Sealer::default(), Vec::new()) {
            Ok(draft) => draft,
            Err(ClientError::Encode { source, .. }) if source.is_of_codec() => {
                self.attempt().stop(StopReason::of_payload(&source));
                return never(&name);
            }
            Err(error) => return refused(&name, Failure::from_chain(FailureKind::Setup, &error)),
        };
        let fingerprints = match self.fingerprints(&name, draft.request()) {
            Ok(fingerprints) => of_child(&fingerprints),
            Err(step) => return step,
        };
        let fingerprint = fingerprints.first().copied().unwrap_or(0);
        let claim = match self.claim_at(&name, None, &fingerprints, line) {
            Ok(claim) => claim,
            Err(step) => return step,
        };
        let attempt = Arc::clone(self.attempt());
        let run_id = child_run_id(attempt.fence.run_id, &attempt.key_of_slice(claim.key.as_str()));
        let key = claim.key.as_str().to_owned();
        Step::without_tries(
            key,
            move || {
                let child = move |sealer: &Sealer| {
                    let graph = draft.into_new_graph(run_id, sealer).map_err(|error| error.source)?;
                    Ok(NewChild::Graph(graph))
                };
                Box::pin(async move { waiting::start(&attempt, &claim, fingerprint, child).await })
            },
            move |recorded| Ok(Child::new(self, name.clone(), decode_output(recorded)?)),
        )
        .of_own_output(self.attempt())
    }
}
