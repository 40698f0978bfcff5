//! The options of one node of a graph.

use std::time::{Duration, SystemTime};

use super::Declared;
use crate::definition::call::Request;
use crate::model::graph::PlannedNode;

/// Options of a node. Submitting the graph fails if a gate has an option that only a job can have.
#[derive(Debug)]
pub struct Configure<'g> {
    node: Option<&'g mut Declared>,
    planned: Option<&'g mut PlannedNode>,
}

impl<'g> Configure<'g> {
    pub(super) fn new(node: Option<&'g mut Declared>, planned: Option<&'g mut PlannedNode>) -> Self {
        Self { node, planned }
    }

    /// Replaces the name of the node. The default is the name of its job.
    pub fn name(&mut self, name: impl Into<String>) -> &mut Self {
        if let Some(planned) = &mut self.planned {
            planned.name = name.into();
        }
        self
    }

    /// The organisation that the node's run belongs to. The default is the tenant of the graph.
    pub fn tenant(&mut self, tenant: impl Into<String>) -> &mut Self {
        let tenant = Some(tenant.into());
        self.change(of_nodes("tenant"), |request| request.tenant = tenant)
    }

    /// Replaces the job's queue.
    pub fn queue(&mut self, queue: impl Into<String>) -> &mut Self {
        let queue = queue.into();
        self.change(of_jobs("queue"), |request| request.options.queue = Some(queue))
    }

    /// Replaces the job's priority.
    pub fn priority(&mut self, priority: i16) -> &mut Self {
        self.change(of_jobs("priority"), |request| request.options.priority = Some(priority))
    }

    /// Replaces the job's number of attempts. At least 1.
    pub fn max_attempts(&mut self, attempts: u32) -> &mut Self {
        self.change(of_jobs("max_attempts"), |request| request.options.set_max_attempts(attempts))
    }

    /// Replaces the job's time limit for one attempt.
    pub fn timeout(&mut self, timeout: Duration) -> &mut Self {
        self.change(of_jobs("timeout"), |request| request.options.set_timeout(timeout))
    }

    /// Starts the node at the earliest this long after its last dependency ended. Without
    /// dependencies, the delay counts from the submission.
    pub fn delay(&mut self, delay: Duration) -> &mut Self {
        self.change(of_jobs("delay"), |request| request.options.set_delay(delay))
    }

    /// Starts the node at this instant at the earliest.
    pub fn start_at(&mut self, instant: SystemTime) -> &mut Self {
        self.change(of_jobs("start_at"), |request| request.options.set_start_at(instant))
    }

    /// Requires a permit of this resource, like [`Call::resource`](crate::Call::resource).
    pub fn resource(&mut self, name: impl Into<String>) -> &mut Self {
        self.change(of_jobs("resource"), |request| request.options.resource = Some(name.into()))
    }

    /// Adds information for people and tools to the node, like
    /// [`Call::metadata`](crate::Call::metadata).
    pub fn metadata(&mut self, name: impl Into<String>, value: impl Into<serde_json::Value>) -> &mut Self {
        self.change(of_nodes("metadata"), |request| {
            request.options.metadata.insert(name.into(), value.into());
        })
    }

    /// Cancels the node if it does not end in time. At most 100 years.
    ///
    /// The time counts from the instant when the node may start. For a gate, it counts from the
    /// instant when the gate opens.
    pub fn deadline(&mut self, deadline: Duration) -> &mut Self {
        self.change(of_nodes("deadline"), |request| request.options.set_deadline(deadline))
    }

    fn change(&mut self, said: Said, change: impl FnOnce(&mut Request)) -> &mut Self {
        if let Some(node) = &mut self.node {
            change(&mut node.request);
            node.said.push(said);
        }
        self
    }
}

/// An option that the program set for a node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Said {
    pub(super) option: &'static str,
    /// Whether gates cannot have it.
    pub(super) is_of_jobs: bool,
}

fn of_jobs(option: &'static str) -> Said {
    Said { option, is_of_jobs: true }
}

fn of_nodes(option: &'static str) -> Said {
    Said { option, is_of_jobs: false }
}
