//! Assigns each node of a picture to a layer after all its dependencies.

use std::collections::HashMap;

use super::GraphPicture;

/// The layers of a picture.
#[derive(Debug)]
pub(super) struct Layers {
    /// The layer of each node, from 0.
    pub(super) of: Vec<usize>,
    /// The edges between two existing nodes.
    pub(super) edges: Vec<Link>,
}

/// An edge, by the places of its nodes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Link {
    /// The dependency.
    pub(super) from: usize,
    /// The dependent node.
    pub(super) to: usize,
    /// The place of the edge in the picture.
    pub(super) at: usize,
}

impl Layers {
    /// Takes time and space proportional to nodes and edges. Nodes in a cycle also get a layer,
    /// although no submitted graph has cycles.
    pub(super) fn new(picture: &GraphPicture) -> Self {
        let mut places: HashMap<&str, usize> = HashMap::with_capacity(picture.nodes.len());
        for (place, node) in picture.nodes.iter().enumerate() {
            places.entry(&node.name).or_insert(place);
        }
        let edges: Vec<Link> = picture
            .edges
            .iter()
            .enumerate()
            .filter_map(|(at, edge)| {
                let (from, to) = (*places.get(edge.from.as_str())?, *places.get(edge.to.as_str())?);
                (from != to).then_some(Link { from, to, at })
            })
            .collect();
        let of = layers(picture.nodes.len(), &edges);
        Self { of, edges }
    }

    /// The number of layers.
    pub(super) fn n(&self) -> usize {
        self.of.iter().max().map_or(0, |last| last + 1)
    }
}

fn layers(n_nodes: usize, edges: &[Link]) -> Vec<usize> {
    let mut dependants: Vec<Vec<usize>> = vec![Vec::new(); n_nodes];
    let mut n_needs = vec![0_usize; n_nodes];
    for edge in edges {
        dependants[edge.from].push(edge.to);
        n_needs[edge.to] += 1;
    }
    let mut layers = vec![0_usize; n_nodes];
    let mut n_left = n_needs.clone();
    let mut free: Vec<usize> = (0..n_nodes).filter(|node| n_needs[*node] == 0).collect();
    while let Some(node) = free.pop() {
        for dependant in &dependants[node] {
            layers[*dependant] = layers[*dependant].max(layers[node] + 1);
            n_left[*dependant] -= 1;
            if n_left[*dependant] == 0 {
                free.push(*dependant);
            }
        }
    }
    // A node without dependencies moves next to the other dependencies of its dependents, and not
    // far before them.
    for node in (0..n_nodes).filter(|node| n_needs[*node] == 0) {
        if let Some(first) = dependants[node].iter().map(|dependant| layers[*dependant]).min() {
            layers[node] = first.saturating_sub(1);
        }
    }
    layers
}
