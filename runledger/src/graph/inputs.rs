//! Inputs of nodes: typed if the graph is written in Rust, named if it is built from data.

use std::fmt;
use std::marker::PhantomData;

use crate::definition::job::Payload;
use crate::model::graph::Target;
use crate::model::graph::dependency_inputs::Outcome;
use crate::model::json::ErasedValue;

/// A node of a graph whose output is a `T`. Any number of other nodes can depend on it.
pub struct Node<T> {
    pub(super) tag: u64,
    pub(super) place: usize,
    marker: PhantomData<fn() -> T>,
}

/// A dependency on a node with any outcome, made by [`Node::on_any_outcome`].
#[derive(Clone, Copy, Debug)]
pub struct OnAnyOutcome<T>(Node<T>);

/// A constant among the inputs of a node, made by [`value`].
#[derive(Clone, Copy, Debug)]
pub struct Value<T>(T);

/// Passes a constant as an input of [`Graph::then`](super::Graph::then).
pub fn value<T: Payload>(value: T) -> Value<T> {
    Value(value)
}

impl<T> Node<T> {
    pub(super) fn new(tag: u64, place: usize) -> Self {
        Self { tag, place, marker: PhantomData }
    }

    /// Accepts any outcome of this node.
    ///
    /// A dependent also starts if the node failed or was cancelled. It receives an [`Outcome`].
    #[must_use]
    pub fn on_any_outcome(self) -> OnAnyOutcome<T> {
        OnAnyOutcome(self)
    }
}

impl<T> Clone for Node<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Node<T> {}

impl<T> fmt::Debug for Node<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Node({})", self.place)
    }
}

/// An input for a parameter of type `T`: a node whose output is a `T`, an outcome of a node if `T`
/// is an [`Outcome`], a list of nodes if `T` is a `Vec`, or a constant made by [`value`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not give the `{T}` that this parameter takes",
    label = "gives something else than `{T}`",
    note = "a `Node<T>` gives a `T`, `node.on_any_outcome()` an `Outcome<T>`, a `Vec<Node<T>>` a `Vec<T>`, and `value(value)` the value"
)]
pub trait Input<T> {
    #[doc(hidden)]
    fn wire(self) -> Wire;
}

/// The source of a parameter.
#[doc(hidden)]
pub enum Wire {
    /// Another node.
    Node(NodeWire),
    /// Nodes that provide one item each.
    List(Vec<NodeWire>),
    /// A constant.
    Value(Box<dyn ErasedValue + Send>),
}

/// A reference to a node.
#[doc(hidden)]
#[derive(Debug)]
pub struct NodeWire {
    /// The tag of its graph.
    pub(super) tag: u64,
    /// Its index in the graph.
    pub(super) place: usize,
    /// Whether any outcome of the node suffices.
    pub(super) on_terminal: bool,
}

impl fmt::Debug for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Wire")
    }
}

impl<T> From<Node<T>> for NodeWire {
    fn from(node: Node<T>) -> Self {
        Self { tag: node.tag, place: node.place, on_terminal: false }
    }
}

impl<T> From<OnAnyOutcome<T>> for NodeWire {
    fn from(OnAnyOutcome(node): OnAnyOutcome<T>) -> Self {
        Self { on_terminal: true, ..node.into() }
    }
}

impl<T> Input<T> for Node<T> {
    fn wire(self) -> Wire {
        Wire::Node(self.into())
    }
}

impl<T> Input<Outcome<T>> for OnAnyOutcome<T> {
    fn wire(self) -> Wire {
        Wire::Node(self.into())
    }
}

// Not for a `Vec` of any input: a constant or a list among the items would not be an edge.
impl<T> Input<Vec<T>> for Vec<Node<T>> {
    fn wire(self) -> Wire {
        Wire::List(self.into_iter().map(NodeWire::from).collect())
    }
}

impl<T> Input<Vec<Outcome<T>>> for Vec<OnAnyOutcome<T>> {
    fn wire(self) -> Wire {
        Wire::List(self.into_iter().map(NodeWire::from).collect())
    }
}

impl<T: Payload> Input<T> for Value<T> {
    fn wire(self) -> Wire {
        Wire::Value(Box::new(self.0))
    }
}

/// Inputs for the parameters `P`, in their order.
#[diagnostic::on_unimplemented(
    message = "these inputs do not fit the parameters of the job",
    label = "the job takes `{P}`",
    note = "give one input for each parameter, in their order, as a tuple: `graph.then(merge, (eu, us))`; of one it is `(eu,)`"
)]
pub trait Inputs<P> {
    #[doc(hidden)]
    fn wires(self) -> Vec<Wire>;
}

macro_rules! inputs {
    ($($parameter:ident $input:ident)*) => {
        impl<$($parameter, $input: Input<$parameter>),*> Inputs<($($parameter,)*)> for ($($input,)*) {
            #[allow(non_snake_case, reason = "the names of the types name their values")]
            fn wires(self) -> Vec<Wire> {
                let ($($input,)*) = self;
                vec![$($input.wire()),*]
            }
        }
    };
}

inputs!(P1 I1);
inputs!(P1 I1 P2 I2);
inputs!(P1 I1 P2 I2 P3 I3);
inputs!(P1 I1 P2 I2 P3 I3 P4 I4);
inputs!(P1 I1 P2 I2 P3 I3 P4 I4 P5 I5);
inputs!(P1 I1 P2 I2 P3 I3 P4 I4 P5 I5 P6 I6);
inputs!(P1 I1 P2 I2 P3 I3 P4 I4 P5 I5 P6 I6 P7 I7);
inputs!(P1 I1 P2 I2 P3 I3 P4 I4 P5 I5 P6 I6 P7 I7 P8 I8);

/// A dependency that passes no value: a node, its outcome, or the name of a node.
#[derive(Clone, Debug)]
pub struct Need {
    pub(super) target: Target,
    /// The tag of its graph. `None` for a name.
    pub(super) tag: Option<u64>,
    pub(super) on_terminal: bool,
}

/// The condition of a node: a node whose output is a `bool`, or the name of a node.
#[derive(Clone, Debug)]
pub struct Condition(pub(super) Need);

impl From<Node<bool>> for Condition {
    fn from(node: Node<bool>) -> Self {
        Self(node.into())
    }
}

impl From<&str> for Condition {
    fn from(name: &str) -> Self {
        Self(name.into())
    }
}

impl From<String> for Condition {
    fn from(name: String) -> Self {
        Self(name.into())
    }
}

impl<T> From<Node<T>> for Need {
    fn from(node: Node<T>) -> Self {
        Self { target: Target::At(node.place), tag: Some(node.tag), on_terminal: false }
    }
}

impl<T> From<OnAnyOutcome<T>> for Need {
    fn from(OnAnyOutcome(node): OnAnyOutcome<T>) -> Self {
        Self { on_terminal: true, ..node.into() }
    }
}

impl From<&str> for Need {
    fn from(name: &str) -> Self {
        Self { target: Target::Named(name.to_owned()), tag: None, on_terminal: false }
    }
}

impl From<String> for Need {
    fn from(name: String) -> Self {
        Self { target: Target::Named(name), tag: None, on_terminal: false }
    }
}

impl Need {
    /// Accepts any outcome of the node, including a failure.
    #[must_use]
    pub fn on_any_outcome(self) -> Self {
        Self { on_terminal: true, ..self }
    }
}
