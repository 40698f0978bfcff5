//! The options of one node of a graph.

use std::time::{Duration, SystemTime};

use super::Declared;
use crate::definition::call::Request;
use crate::model::graph::PlannedNode;

/// The options of a node. Those of a job are refused for a gate when the graph is submitted.
#[derive(Debug)]
pub struct Configure<'g> {
    node: Option<&'g mut Declared>,
    planned: Option<&'g mut PlannedNode>,
}

impl<'g> Configure<'g> {
    pub(super) fn new(node: Option<&'g mut Declared>, planned: Option<&'g mut PlannedNode>) -> Self {
        Self { node, planned }
    }

    /// Another name than that of its job.
    pub fn name(&mut self, name: impl Into<String>) -> &mut Self {
        if let Some(planned) = &mut self.planned {
            planned.name = name.into();
        }
        self
    }

    /// The organisation that its run belongs to; by default that of the graph.
    pub fn tenant(&mut self, tenant: impl Into<String>) -> &mut Self {
        let tenant = Some(tenant.into());
        self.change(of_nodes("tenant"), |request| request.tenant = tenant)
    }

    /// Another queue than the job's own.
    pub fn queue(&mut self, queue: impl Into<String>) -> &mut Self {
        let queue = queue.into();
        self.change(of_jobs("queue"), |request| request.options.queue = Some(queue))
    }

    /// Another priority than the job's own.
    pub fn priority(&mut self, priority: i16) -> &mut Self {
        self.change(of_jobs("priority"), |request| request.options.priority = Some(priority))
    }

    /// Another number of attempts than the job's own; at least 1.
    pub fn max_attempts(&mut self, attempts: u32) -> &mut Self {
        self.change(of_jobs("max_attempts"), |request| request.options.set_max_attempts(attempts))
    }

    /// Another time limit for one attempt than the job's own.
    pub fn timeout(&mut self, timeout: Duration) -> &mut Self {
        self.change(of_jobs("timeout"), |request| request.options.set_timeout(timeout))
    }

    /// Starts no earlier than so long after what it needs has ended; of a node that needs nothing, after the submission.
    pub fn delay(&mut self, delay: Duration) -> &mut Self {
        self.change(of_jobs("delay"), |request| request.options.set_delay(delay))
    }

    /// Starts no earlier than this instant.
    pub fn start_at(&mut self, instant: SystemTime) -> &mut Self {
        self.change(of_jobs("start_at"), |request| request.options.set_start_at(instant))
    }

    /// The node needs a permit of this resource while a worker has it, as a call with [`resource`](crate::Call::resource).
    pub fn resource(&mut self, name: impl Into<String>) -> &mut Self {
        self.change(of_jobs("resource"), |request| request.options.resource = Some(name.into()))
    }

    /// Says something of the node for whoever looks at it, as [`Call::metadata`](crate::Call::metadata).
    pub fn metadata(&mut self, name: impl Into<String>, value: impl Into<serde_json::Value>) -> &mut Self {
        self.change(of_nodes("metadata"), |request| {
            request.options.metadata.insert(name.into(), value.into());
        })
    }

    /// The node must end within this time of the instant when it may start, or of a gate when it is open; otherwise it is cancelled. At most 100 years.
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

/// An option that was said of a node.
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
