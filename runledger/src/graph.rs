//! Declared graphs: nodes are calls or gates, edges carry outputs, and a graph is submitted as one
//! run.

mod append;
mod child;
mod configure;
mod gate;
mod handle;
mod inputs;
pub(crate) mod map;
mod picture;
mod prepare;
pub(crate) mod recover;
mod submit;

use std::fmt;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

pub use self::append::{AppendReceipt, GraphExtension};
pub use self::configure::Configure;
use self::configure::Said;
pub use self::gate::{GateHandle, GateLink};
pub use self::handle::GraphHandle;
pub use self::inputs::{Condition, Input, Inputs, Need, Node, OnAnyOutcome, Value, value};
use self::inputs::{NodeWire, Wire};
use crate::definition::call::{AnyCall, Call, Request};
use crate::definition::job::{Arguments, Job, Payload};
use crate::definition::jobs::DefinitionOf;
use crate::definition::{DEFAULT_QUEUE, Param};
use crate::model::graph::dependency_inputs::{CONDITION, item};
use crate::model::graph::{
    GATE, GraphProblem, MAX_NODES, Plan, PlannedEdge, PlannedKind, PlannedNode, Target,
};
use crate::model::json::ErasedValue;
use crate::model::payload::Plain;
use crate::model::run::request::{Metadata, RequestOptions, identity_said};
use crate::model::shape::GateType;

/// A graph of calls and gates that is submitted as one run.
///
/// Each node starts when all its dependencies have ended. `T` is the result of the graph: the
/// output of its [result](Self::result) node, or `()` without one.
///
/// ```
/// # use runledger::{Call, Graph, Result, job};
/// #[job]
/// async fn extract(region: String) -> Result<u64> {
///     Ok(region.len() as u64)
/// }
/// #[job]
/// async fn merge(eu: u64, us: u64) -> Result<u64> {
///     Ok(eu + us)
/// }
/// #[job]
/// async fn publish(total: u64, approved: bool) -> Result<String> {
///     Ok(format!("{total} {approved}"))
/// }
///
/// let mut graph = Graph::new("nightly");
/// let eu = graph.call(extract("eu".to_owned()).key("eu"));
/// let us = graph.call(extract("us".to_owned()).key("us"));
/// let total = graph.then(merge, (eu, us));
/// let approved = graph.gate::<bool>("approved");
/// let published = graph.then(publish, (total, approved));
/// let graph = graph.result(published); // then: graph.enqueue(&db).await?
/// # drop(graph);
/// ```
#[must_use = "a graph does nothing until it is enqueued"]
pub struct Graph<T = ()> {
    /// Distinguishes its nodes from the nodes of other graphs.
    tag: u64,
    plan: Plan,
    /// The requests and options of the nodes, in the order of the nodes in `plan`.
    nodes: Vec<Declared>,
    tenant: Option<String>,
    queue: Option<String>,
    priority: i16,
    deadline: Option<Duration>,
    idempotency_key: Option<String>,
    active_key: Option<String>,
    metadata: Metadata,
    marker: PhantomData<fn() -> T>,
}

/// A node as the program declared it.
struct Declared {
    request: Request,
    /// Values of parameters that come from neither the call nor another node.
    values: Vec<(&'static str, Box<dyn ErasedValue + Send>)>,
    said: Vec<Said>,
    /// The values that a gate accepts. `None` for a call.
    accepts: Option<GateType>,
}

impl Graph {
    /// Creates an empty graph. Its name follows the rules for job names.
    pub fn new(name: impl Into<String>) -> Self {
        static TAGS: AtomicU64 = AtomicU64::new(0);
        Self {
            tag: TAGS.fetch_add(1, Ordering::Relaxed),
            plan: Plan { name: name.into(), ..Plan::default() },
            nodes: Vec::new(),
            tenant: None,
            queue: None,
            priority: 0,
            deadline: None,
            idempotency_key: None,
            active_key: None,
            metadata: Metadata::new(),
            marker: PhantomData,
        }
    }
}

impl<T> Graph<T> {
    /// Adds a call without dependencies.
    ///
    /// The node is named after the job, plus the key of the call: `extract[eu]`. Further calls of
    /// one job without keys are counted: `extract#2`. For a renamed job, the oldest name counts.
    pub fn call<J: Job>(&mut self, call: Call<J>) -> Node<J::Output> {
        let (base, key) = (J::DEFINITION.oldest_name(), call.key);
        self.add(base, call.request, key)
    }

    /// Adds a call whose arguments come from other nodes: `graph.then(merge, (eu, us))`.
    ///
    /// It starts when the last of these nodes has ended. Each must complete, unless
    /// [`on_any_outcome`](Node::on_any_outcome) allows other outcomes. An input whose type differs
    /// from its parameter's type does not compile.
    pub fn then<A, F, I>(&mut self, function: F, inputs: I) -> Node<<F::Job as Job>::Output>
    where
        F: DefinitionOf<A>,
        F::Job: Arguments,
        I: Inputs<<F::Job as Arguments>::Types>,
    {
        drop(function);
        let definition = F::DEFINITION;
        let request = Request::of(definition, Plain::of_object(&[]));
        let names = definition.params.iter().map(Param::name);
        let node = self.add(definition.oldest_name(), request, None);
        for (name, wire) in names.zip(inputs.wires()) {
            self.connect(node.place, name, wire);
        }
        node
    }

    /// Adds a gate: a node that completes when somebody outside provides a `V`. Its dependents
    /// receive the value. See [`GraphHandle::gate`].
    ///
    /// The submission stores the JSON shape of `V` with the gate. Every program checks a value
    /// against the shape before it completes the gate: see [`GateType`](crate::GateType).
    pub fn gate<V: Payload>(&mut self, name: impl Into<String>) -> Node<V> {
        let node = self.declare(name.into(), PlannedKind::Gate(Vec::new()), no_call());
        self.nodes[node].accepts = Some(GateType::of::<V>());
        Node::new(self.tag, node)
    }

    /// Refers to a node that the graph already has, for an addition to that graph.
    ///
    /// The node has this name and its output is a `V`. The compiler cannot check this type. See
    /// [`GraphHandle::extend_from`].
    pub fn existing_node<V: Payload>(&mut self, name: impl Into<String>) -> Node<V> {
        let node = self.declare(name.into(), PlannedKind::Existing(Vec::new()), no_call());
        Node::new(self.tag, node)
    }

    /// Adds a call with an explicit node name, for graphs built from data.
    ///
    /// The compiler does not know the type of its output.
    pub fn node(&mut self, name: impl Into<String>, call: impl Into<AnyCall>) -> Node<serde_json::Value> {
        let request = call.into().request;
        let job = request.oldest_name().to_owned();
        let place = self.declare(name.into(), PlannedKind::Job(job), request);
        Node::new(self.tag, place)
    }

    /// Makes a node depend on another node, given by handle or name. The node starts after the
    /// other completes, or with `on_any_outcome()` after any outcome. Both must be nodes of this
    /// graph.
    pub fn after<V>(&mut self, node: Node<V>, need: impl Into<Need>) -> &mut Self {
        self.edge_of("after", node, need.into(), Vec::new())
    }

    /// Passes the output of another node to a parameter of a node, without a check by the compiler.
    ///
    /// Otherwise it works like [`then`](Self::then). The node must belong to this graph. If this
    /// program has the code of the job, the job must have the parameter. `parts[0]`, `parts[1]` and
    /// so on set the items of the list `parts`, ordered by number.
    pub fn feed<V>(
        &mut self,
        node: Node<V>,
        parameter: impl Into<String>,
        need: impl Into<Need>,
    ) -> &mut Self {
        let (parameter, need) = (parameter.into(), need.into());
        if parameter.starts_with(CONDITION) {
            if let Some(place) = self.own(node, "feed") {
                let node = self.plan.nodes[place].name.clone();
                let why = format!("and no parameter begins with `{CONDITION}`");
                self.plan.refused.push(GraphProblem::Parameter { node, parameter, why });
            }
            return self;
        }
        self.edge_of("feed", node, need, vec![parameter])
    }

    /// Executes a node only if another node, its condition, returned `true`. Otherwise the node is
    /// skipped.
    ///
    /// Nodes that need the success of a skipped node are skipped too. A skipped node does not make
    /// the graph fail. If you name the condition by text, its type is not checked here. The node
    /// fails if its condition returned neither `true` nor `false`.
    pub fn only_if<V>(&mut self, node: Node<V>, condition: impl Into<Condition>) -> &mut Self {
        self.edge_of("only_if", node, condition.into().0, vec![CONDITION.to_string()])
    }

    /// Sets options of a node: `graph.configure(merged).priority(5).max_attempts(2)`.
    pub fn configure<V>(&mut self, node: Node<V>) -> Configure<'_> {
        match self.own(node, "configure") {
            Some(place) => Configure::new(self.nodes.get_mut(place), self.plan.nodes.get_mut(place)),
            None => Configure::new(None, None),
        }
    }

    /// Makes the output of a node the result of the graph, which `result()` of the handle returns.
    ///
    /// The graph then completes if this node completes and fails if it does not. The outcomes of
    /// the other nodes do not matter.
    pub fn result<R>(mut self, node: Node<R>) -> Graph<R> {
        self.plan.result = Some(self.target(Need::from(node)));
        let Self {
            tag,
            plan,
            nodes,
            tenant,
            queue,
            priority,
            deadline,
            idempotency_key,
            active_key,
            metadata,
            marker: _,
        } = self;
        let marker = PhantomData;
        Graph {
            tag,
            plan,
            nodes,
            tenant,
            queue,
            priority,
            deadline,
            idempotency_key,
            active_key,
            metadata,
            marker,
        }
    }

    /// Allows at most one graph with this name, tenant and key. 1 to 256 bytes.
    ///
    /// Submitting the same graph again returns the same run, also if the nodes are in another
    /// order. A different graph with the same key is refused.
    pub fn idempotency_key(mut self, key: impl Into<String>) -> Self {
        self.idempotency_key = Some(key.into());
        self
    }

    /// Allows at most one live graph with this name, tenant and key. 1 to 256 bytes.
    ///
    /// While one is live, another is refused with
    /// [`ClientError::Active`](crate::ClientError::Active), which names the live one.
    ///
    /// # Cost
    /// One more statement, in a transaction with the submission.
    pub fn active_key(mut self, key: impl Into<String>) -> Self {
        self.active_key = Some(key.into());
        self
    }

    /// Adds information for people and tools to the graph, like
    /// [`Call::metadata`](crate::Call::metadata).
    pub fn metadata(mut self, name: impl Into<String>, value: impl Into<serde_json::Value>) -> Self {
        self.metadata.insert(name.into(), value.into());
        self
    }

    /// The organisation that the graph belongs to. 1 to 256 bytes; none by default.
    ///
    /// It also applies to the nodes, except those with their own tenant.
    pub fn tenant(mut self, tenant: impl Into<String>) -> Self {
        self.tenant = Some(tenant.into());
        self
    }

    /// The queue whose workers conclude the graph after its last node has ended. The default is the
    /// queue of the first node that is a job.
    pub fn queue(mut self, queue: impl Into<String>) -> Self {
        self.queue = Some(queue.into());
        self
    }

    /// The priority of the conclusion; default 0. Nodes have their own priority.
    pub fn priority(mut self, priority: i16) -> Self {
        self.priority = priority;
        self
    }

    /// Cancels the graph and all its nodes if the graph has not ended this long after its
    /// submission.
    ///
    /// At most 100 years; none by default.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }

    pub(crate) fn name(&self) -> &str {
        &self.plan.name
    }

    /// Returns the first option that identifies a run, if one is set: tenant, active key or
    /// idempotency key.
    pub(crate) fn identity_said(&self) -> Option<&'static str> {
        identity_said(self.tenant.as_deref(), self.active_key.as_deref(), self.idempotency_key.as_deref())
    }

    fn add<V>(&mut self, base: &str, request: Request, key: Option<String>) -> Node<V> {
        let job = request.oldest_name().to_owned();
        let name = match key {
            Some(key) => format!("{base}[{key}]"),
            None => {
                // A larger graph is refused anyway. Counting all its nodes for each node would be
                // quadratic.
                let n_same = match self.plan.nodes.len() {
                    0..MAX_NODES => {
                        self.plan.nodes.iter().filter(|node| is_counted(&node.name, base)).count()
                    }
                    n_nodes => n_nodes,
                };
                if n_same == 0 { base.to_owned() } else { format!("{base}#{}", n_same + 1) }
            }
        };
        let place = self.declare(name, PlannedKind::Job(job), request);
        Node::new(self.tag, place)
    }

    fn declare(&mut self, name: String, kind: PlannedKind, request: Request) -> usize {
        self.plan.nodes.push(PlannedNode { name, kind });
        self.nodes.push(Declared { request, values: Vec::new(), said: Vec::new(), accepts: None });
        self.nodes.len() - 1
    }

    fn connect(&mut self, place: usize, parameter: &'static str, wire: Wire) {
        match wire {
            Wire::Value(value) => self.nodes[place].values.push((parameter, value)),
            Wire::Node(node) => self.wire(place, parameter.to_owned(), &node),
            Wire::List(wires) if wires.is_empty() => {
                self.nodes[place].values.push((parameter, Box::new(Vec::<()>::new())));
            }
            Wire::List(wires) => {
                for (at, node) in wires.iter().enumerate() {
                    self.wire(place, item(parameter, at), node);
                }
            }
        }
    }

    fn wire(&mut self, place: usize, parameter: String, from: &NodeWire) {
        let NodeWire { tag, place: other, on_terminal } = *from;
        let need = Need { target: Target::At(other), tag: Some(tag), on_terminal };
        self.edge(place, need, vec![parameter]);
    }

    /// The index of the node that a method changes. Returns `None`, and the graph refuses its
    /// submission, if another graph made the node.
    fn own<V>(&mut self, node: Node<V>, method: &'static str) -> Option<usize> {
        if node.tag == self.tag {
            return Some(node.place);
        }
        self.plan.foreign.insert(method);
        None
    }

    fn edge_of<V>(
        &mut self,
        method: &'static str,
        node: Node<V>,
        need: Need,
        parameters: Vec<String>,
    ) -> &mut Self {
        if let Some(place) = self.own(node, method) {
            self.edge(place, need, parameters);
        }
        self
    }

    fn edge(&mut self, dependant: usize, need: Need, parameters: Vec<String>) {
        let on_terminal = need.on_terminal;
        let needs = self.target(need);
        self.plan.edges.push(PlannedEdge { dependant, needs, on_terminal, parameters });
    }

    fn target(&self, need: Need) -> Target {
        if need.tag.is_some_and(|tag| tag != self.tag) { Target::Elsewhere } else { need.target }
    }
}

/// The request of a node that no worker executes.
fn no_call() -> Request {
    Request {
        job: GATE.into(),
        queue: DEFAULT_QUEUE.into(),
        priority: 0,
        input: Plain::of_object(&[]),
        options: RequestOptions::default(),
        tenant: None,
        idempotency_key: None,
        active_key: None,
        version: None,
        definition: None,
    }
}

/// Whether a node has a name that counts the calls of its job.
fn is_counted(name: &str, base: &str) -> bool {
    name.strip_prefix(base).is_some_and(|rest| rest.is_empty() || rest.starts_with('#'))
}

impl fmt::Debug for Declared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Declared").field("job", &self.request.job).finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for Graph<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without inputs: payloads stay out of logs.
        let (nodes, edges) = (self.plan.nodes.len(), self.plan.edges.len());
        f.debug_struct("Graph")
            .field("name", &self.plan.name)
            .field("nodes", &nodes)
            .field("edges", &edges)
            .finish_non_exhaustive()
    }
}
