//! What nodes of a graph need, and what they are given: typed where the graph is written in Rust, by names where it is made of data.

use std::fmt;
use std::marker::PhantomData;

use crate::definition::job::Payload;
use crate::model::dependency_inputs::Outcome;
use crate::model::graph::Target;
use crate::model::json::ErasedValue;

/// A node of a graph that gives a `T`. It may be given to as many others as are to have what it gives.
pub struct Node<T> {
    pub(super) tag: u64,
    pub(super) place: usize,
    marker: PhantomData<fn() -> T>,
}

/// The end of a node, whatever it is: what [`Node::on_terminal`] gives.
#[derive(Clone, Copy, Debug)]
pub struct OnAnyOutcome<T>(Node<T>);

/// A value that is known when the graph is declared, beside nodes that give the others: what [`given`] makes.
#[derive(Clone, Copy, Debug)]
pub struct Value<T>(T);

/// A value among the inputs of [`Graph::then`](super::Graph::then).
pub fn value<T: Payload>(value: T) -> Value<T> {
    Value(value)
}

impl<T> Node<T> {
    pub(super) fn new(tag: u64, place: usize) -> Self {
        Self { tag, place, marker: PhantomData }
    }

    /// The end of this node, whatever it is: what needs that starts also where the node failed or was cancelled, and is given its [`Outcome`].
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

/// What a parameter of the type `T` can be given: a node that gives a `T`, its end where `T` is an [`Outcome`], nodes that give the items where `T` is a `Vec`, or a
/// value that is [`given`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not give the `{T}` that this parameter takes",
    label = "gives something else than `{T}`",
    note = "a `Node<T>` gives a `T`, `node.on_any_outcome()` an `Outcome<T>`, a `Vec<Node<T>>` a `Vec<T>`, and `value(value)` the value"
)]
pub trait Input<T> {
    #[doc(hidden)]
    fn wire(self) -> Wire;
}

/// What a parameter is connected with.
#[doc(hidden)]
pub enum Wire {
    /// Another node.
    Node(NodeWire),
    /// Nodes that give an item each.
    List(Vec<NodeWire>),
    /// A value.
    Value(Box<dyn ErasedValue + Send>),
}

/// A node that something is connected with.
#[doc(hidden)]
#[derive(Debug)]
pub struct NodeWire {
    /// The tag of its graph.
    pub(super) tag: u64,
    /// Its place in the graph.
    pub(super) place: usize,
    /// Whether any end of the node will do.
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

// Not for a `Vec` of any input: a value or a list among the items would be no edge.
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

/// What a node needs, where nothing of it is given to the node: a node, its end, or the name of one.
#[derive(Clone, Debug)]
pub struct Need {
    pub(super) target: Target,
    /// Of which graph, where it is known by its place.
    pub(super) tag: Option<u64>,
    pub(super) on_terminal: bool,
}

/// What decides whether a node runs: a node that gives a `bool`, or in graphs that are made of data the name of one.
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
    /// Any end of it, also a failure.
    #[must_use]
    pub fn on_any_outcome(self) -> Self {
        Self { on_terminal: true, ..self }
    }
}
