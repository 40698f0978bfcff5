//! Declared graphs: nodes that are calls or gates, edges that carry outputs, submitted as one run.

mod append;
mod child;
mod configure;
mod gate;
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
pub use self::inputs::{Condition, Input, Inputs, Need, Node, OnAnyOutcome, Value, value};
use self::inputs::{NodeWire, Wire};
use crate::client::handle::RunHandle;
use crate::definition::call::{AnyCall, Call, Request};
use crate::definition::job::{Arguments, Job, Payload};
use crate::definition::jobs::DefinitionOf;
use crate::definition::{DEFAULT_QUEUE, Definition, Param};
use crate::engine::builtin::CONCLUDE;
use crate::model::dependency_inputs::{CONDITION, item};
use crate::model::graph::{
    GATE, GraphProblem, MAX_NODES, Plan, PlannedEdge, PlannedKind, PlannedNode, Target,
};
use crate::model::json::ErasedValue;
use crate::model::payload::Plain;
use crate::model::request::{Metadata, RequestOptions, identity_said};
use crate::model::shape::GateType;

/// The job of a graph with the result `T`: what `RunHandle` says of its run.
#[derive(Debug)]
pub struct GraphOf<T>(PhantomData<fn() -> T>);

impl<T: Payload> Job for GraphOf<T> {
    type Output = T;
    const DEFINITION: &'static Definition = &CONCLUDE;
}

/// A handle of a graph with the result `T`.
pub type GraphHandle<T> = RunHandle<GraphOf<T>>;

/// A graph of calls and gates that is submitted as one run: each node starts when the last of those that it needs has ended. `T` is what the graph gives:
/// the output of its [result](Self::result) node, or nothing.
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
    /// Tells its nodes from those of other graphs.
    tag: u64,
    plan: Plan,
    /// What its nodes are, beside the plan.
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

/// A node as it was declared.
struct Declared {
    request: Request,
    /// The values of parameters that neither the call has nor another node gives.
    values: Vec<(&'static str, Box<dyn ErasedValue + Send>)>,
    said: Vec<Said>,
    /// For a gate: the values that it accepts.
    accepts: Option<GateType>,
}

impl Graph {
    /// A graph without nodes. Its name follows the rule of the names of jobs.
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
    /// Adds a call that needs no other node. Its name is that of the job (of a renamed one the oldest), with the call's key where it has one: `extract[eu]`; calls of one job without keys
    /// are counted, `extract#2`.
    pub fn call<J: Job>(&mut self, call: Call<J>) -> Node<J::Output> {
        let (base, key) = (J::DEFINITION.oldest_name(), call.key);
        self.add(base, call.request, key)
    }

    /// Adds a call of a job whose arguments other nodes give: `graph.then(merge, (eu, us))`. It starts when the last of them has ended, with success unless
    /// [`on_any_outcome`](Node::on_any_outcome) says otherwise. An input of another type than its parameter's does not compile.
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

    /// Adds a gate: a node that completes when somebody outside provides a `V`, which its dependents receive.
    /// See [`RunHandle::gate`](crate::RunHandle::gate).
    ///
    /// The submission stores the JSON shape of `V` with the gate. Every program checks a value against the
    /// shape before it completes the gate: see [`GateType`](crate::GateType).
    pub fn gate<V: Payload>(&mut self, name: impl Into<String>) -> Node<V> {
        let node = self.declare(name.into(), PlannedKind::Gate(Vec::new()), no_call());
        self.nodes[node].accepts = Some(GateType::of::<V>());
        Node::new(self.tag, node)
    }

    /// In an addition, the node of this name that the graph has already, and that gives a `V`. The compiler cannot check this type. See
    /// [`RunHandle::extend_from`](crate::RunHandle::extend_from).
    pub fn existing_node<V: Payload>(&mut self, name: impl Into<String>) -> Node<V> {
        let node = self.declare(name.into(), PlannedKind::Existing(Vec::new()), no_call());
        Node::new(self.tag, node)
    }

    /// Adds a call under a name of its own: for graphs that are made of data. Of what it gives nothing is known to the compiler.
    pub fn node(&mut self, name: impl Into<String>, call: impl Into<AnyCall>) -> Node<serde_json::Value> {
        let request = call.into().request;
        let job = request.oldest_name().to_owned();
        let place = self.declare(name.into(), PlannedKind::Job(job), request);
        Node::new(self.tag, place)
    }

    /// Makes a node depend on another node, given by handle or name: the node starts after the other
    /// completes, or with `on_any_outcome()` after any outcome. Both must be nodes of this graph.
    pub fn after<V>(&mut self, node: Node<V>, need: impl Into<Need>) -> &mut Self {
        self.edge_of("after", node, need.into(), Vec::new())
    }

    /// Gives a parameter of a node what another gives, as [`then`](Self::then) does, without the compiler: the node must be of this graph, and the job must have
    /// the parameter, where this program has its code. `parts[0]`, `parts[1]` and so on give the items of the list `parts`, in the order of the numbers.
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

    /// Lets a node run only if another, before it, gave `true`. Otherwise it is skipped, and so is what needs its success; a skipped node does not make the graph fail.
    /// If the condition is a node that was looked up by its name, its type is not checked here. The node that depends on it fails if the condition gives neither `true` nor `false`.
    pub fn only_if<V>(&mut self, node: Node<V>, condition: impl Into<Condition>) -> &mut Self {
        self.edge_of("only_if", node, condition.into().0, vec![CONDITION.to_string()])
    }

    /// The options of a node: `graph.configure(merged).priority(5).max_attempts(2)`.
    pub fn configure<V>(&mut self, node: Node<V>) -> Configure<'_> {
        match self.own(node, "configure") {
            Some(place) => Configure::new(self.nodes.get_mut(place), self.plan.nodes.get_mut(place)),
            None => Configure::new(None, None),
        }
    }

    /// Makes what a node gives the result of the graph: what its handle's `result()` gives. The graph fails where this node does not complete, and completes
    /// where it does, whatever became of the others.
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

    /// At most one graph of this name, tenant and key exists. The same graph again gives the same run, whatever the order of its nodes; another one under
    /// the same key is refused. 1 to 256 bytes.
    pub fn idempotency_key(mut self, key: impl Into<String>) -> Self {
        self.idempotency_key = Some(key.into());
        self
    }

    /// At most one graph of this name, tenant and key goes on: while there is one that has not ended, another is refused with
    /// [`ClientError::Active`](crate::ClientError::Active), which names it. 1 to 256 bytes. Costs one statement more, in a transaction with the submission.
    pub fn active_key(mut self, key: impl Into<String>) -> Self {
        self.active_key = Some(key.into());
        self
    }

    /// Says something of the graph for whoever looks at it, as [`Call::metadata`](crate::Call::metadata).
    pub fn metadata(mut self, name: impl Into<String>, value: impl Into<serde_json::Value>) -> Self {
        self.metadata.insert(name.into(), value.into());
        self
    }

    /// The organisation that the graph belongs to, and each of its nodes that does not say otherwise. 1 to 256 bytes; none by default.
    pub fn tenant(mut self, tenant: impl Into<String>) -> Self {
        self.tenant = Some(tenant.into());
        self
    }

    /// The queue whose workers conclude the graph once its last node has ended. The default is that of its first node that is a job.
    pub fn queue(mut self, queue: impl Into<String>) -> Self {
        self.queue = Some(queue.into());
        self
    }

    /// The priority with which it is concluded; default 0. Its nodes have their own.
    pub fn priority(mut self, priority: i16) -> Self {
        self.priority = priority;
        self
    }

    /// The graph must end within this time of its submission, or it is cancelled with all its nodes. At most 100 years; none by default.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }

    pub(crate) fn name(&self) -> &str {
        &self.plan.name
    }

    /// The part of a run's identity that was said, if one was.
    pub(crate) fn identity_said(&self) -> Option<&'static str> {
        identity_said(self.tenant.as_deref(), self.active_key.as_deref(), self.idempotency_key.as_deref())
    }

    fn add<V>(&mut self, base: &str, request: Request, key: Option<String>) -> Node<V> {
        let job = request.oldest_name().to_owned();
        let name = match key {
            Some(key) => format!("{base}[{key}]"),
            None => {
                // A graph with more is refused, and need not be counted through for each of them.
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

    /// The index of the node that a method changes. Returns `None`, and the graph refuses its submission, if
    /// another graph made the node.
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

/// The request of a node that no worker runs.
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

/// Whether a node was named by counting the calls of its job.
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
        // Not the inputs: payloads stay out of logs.
        let (nodes, edges) = (self.plan.nodes.len(), self.plan.edges.len());
        f.debug_struct("Graph")
            .field("name", &self.plan.name)
            .field("nodes", &nodes)
            .field("edges", &edges)
            .finish_non_exhaustive()
    }
}
