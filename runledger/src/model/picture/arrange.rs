//! Places the boxes and lines of a picture: layers from left to right, with few crossings, and
//! dependents next to their dependencies.
//!
//! The method follows Sugiyama, Tagawa and Toda (1981). Time and space are nearly proportional to
//! the graph. The order within a layer comes from the means of neighbours, in a fixed number of
//! sweeps. The heights come from isotonic regression (pool adjacent violators). A line across
//! several layers has a place in each layer between, unless there are too many such places.

use super::layers::{Layers, Link};

/// The number of sweeps that order the layers, each forward and backward.
const SWEEPS: usize = 6;

/// The maximum number of places of lines in layers that they only pass. The longest lines get none.
const MAX_PASSES: usize = 20_000;

/// The maximum height of a column. A higher layer continues in another column.
const MAX_HEIGHT: f64 = 4_000.0;

/// The height of a line that passes a layer.
const PASS_HEIGHT: f64 = 10.0;

/// The space around the picture.
const MARGIN: f64 = 24.0;

/// The sizes of the boxes and of the space between them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes<'s> {
    /// The width of every box.
    pub(super) width: f64,
    /// The height of each box.
    pub(super) heights: &'s [f64],
    /// The space between columns.
    pub(super) across: f64,
    /// The space between boxes of one column.
    pub(super) between: f64,
}

/// The places of all boxes and lines.
#[derive(Debug)]
pub(super) struct Arrangement {
    pub(super) width: f64,
    pub(super) height: f64,
    /// The left edge and the middle height of each node.
    pub(super) boxes: Vec<(f64, f64)>,
    /// The points of each edge's line. A curve joins the first two, a straight line the next two,
    /// and so on.
    pub(super) lines: Vec<Vec<(f64, f64)>>,
}

/// The items of the layers: first the nodes, then the places of passing lines.
struct Items {
    layers: Vec<usize>,
    heights: Vec<f64>,
    /// The neighbours of each item in the previous layer, and in the next layer.
    before: Vec<Vec<usize>>,
    behind: Vec<Vec<usize>>,
    /// The places of each edge's line.
    passes: Vec<Vec<usize>>,
}

pub(super) fn arrange(layers: &Layers, sizes: Sizes<'_>) -> Arrangement {
    let items = Items::new(layers, sizes.heights);
    let mut rows: Vec<Vec<usize>> = vec![Vec::new(); layers.n()];
    for (item, layer) in items.layers.iter().enumerate() {
        rows[*layer].push(item);
    }
    untangle(&mut rows, &items);
    let columns: Vec<Vec<Vec<usize>>> = rows.iter().map(|row| folded(row, &items, sizes.between)).collect();
    let middles = heights(&columns, &items, sizes.between);
    let mut lefts = vec![0.0; items.layers.len()];
    let mut left = MARGIN;
    for column in columns.iter().flatten() {
        for item in column {
            lefts[*item] = left;
        }
        left += sizes.width + sizes.across;
    }
    let tops = (0..middles.len()).map(|item| middles[item] - items.heights[item] / 2.0);
    let highest = tops.fold(f64::INFINITY, f64::min);
    let down = if highest.is_finite() { MARGIN - highest } else { 0.0 };
    let bottoms = (0..middles.len()).map(|item| middles[item] + items.heights[item] / 2.0 + down);
    let height = bottoms.fold(MARGIN, f64::max) + MARGIN;
    let places: Vec<(f64, f64)> =
        (0..middles.len()).map(|item| (lefts[item], middles[item] + down)).collect();
    let lines = lines(layers, &items, &places, sizes);
    let n_nodes = layers.of.len();
    let width = (left - sizes.across).max(MARGIN) + MARGIN;
    Arrangement { width, height, boxes: places[..n_nodes].to_vec(), lines }
}

impl Items {
    fn new(layers: &Layers, heights: &[f64]) -> Self {
        let n_nodes = layers.of.len();
        let mut items = Self {
            layers: layers.of.clone(),
            heights: heights.to_vec(),
            before: vec![Vec::new(); n_nodes],
            behind: vec![Vec::new(); n_nodes],
            passes: vec![Vec::new(); layers.edges.len()],
        };
        let span = |edge: &Link| layers.of[edge.to].saturating_sub(layers.of[edge.from]);
        let mut by_span: Vec<usize> = (0..layers.edges.len()).collect();
        by_span.sort_by_key(|edge| span(&layers.edges[*edge]));
        let mut n_left = MAX_PASSES;
        for at in by_span {
            let edge = &layers.edges[at];
            let n_passes = span(edge).saturating_sub(1);
            // A line backwards, in a cycle, passes no layer.
            if n_passes > n_left || span(edge) == 0 {
                continue;
            }
            n_left -= n_passes;
            let mut last = edge.from;
            for layer in layers.of[edge.from] + 1..layers.of[edge.to] {
                let pass = items.pass(layer);
                items.join(last, pass);
                items.passes[at].push(pass);
                last = pass;
            }
            items.join(last, edge.to);
        }
        items
    }

    fn pass(&mut self, layer: usize) -> usize {
        self.layers.push(layer);
        self.heights.push(PASS_HEIGHT);
        self.before.push(Vec::new());
        self.behind.push(Vec::new());
        self.layers.len() - 1
    }

    fn join(&mut self, one: usize, next: usize) {
        self.behind[one].push(next);
        self.before[next].push(one);
    }

    fn apart(&self, one: usize, next: usize, between: f64) -> f64 {
        f64::midpoint(self.heights[one], self.heights[next]) + between
    }
}

/// Orders each layer by the means of its neighbours.
fn untangle(rows: &mut [Vec<usize>], items: &Items) {
    let mut order = vec![0.0; items.layers.len()];
    for row in &mut *rows {
        number(row, &mut order);
    }
    for _ in 0..SWEEPS {
        for row in rows.iter_mut().rev() {
            sort(row, &items.behind, &mut order);
        }
        for row in &mut *rows {
            sort(row, &items.before, &mut order);
        }
    }
}

fn sort(row: &mut [usize], neighbours: &[Vec<usize>], order: &mut [f64]) {
    let mut keyed: Vec<(f64, usize)> =
        row.iter().map(|item| (mean(&neighbours[*item], order).unwrap_or(order[*item]), *item)).collect();
    keyed.sort_by(|one, other| one.0.total_cmp(&other.0));
    for (place, (_, item)) in row.iter_mut().zip(keyed) {
        *place = item;
    }
    number(row, order);
}

fn number(row: &[usize], order: &mut [f64]) {
    for (at, item) in row.iter().enumerate() {
        order[*item] = at as f64;
    }
}

fn mean(neighbours: &[usize], of: &[f64]) -> Option<f64> {
    let sum: f64 = neighbours.iter().map(|item| of[*item]).sum();
    (!neighbours.is_empty()).then(|| sum / neighbours.len() as f64)
}

/// Splits a layer into as many columns as needed.
fn folded(row: &[usize], items: &Items, between: f64) -> Vec<Vec<usize>> {
    let mut columns: Vec<Vec<usize>> = Vec::new();
    let mut height = f64::INFINITY;
    for item in row {
        height += items.heights[*item] + between;
        match columns.last_mut().filter(|_| height <= MAX_HEIGHT) {
            Some(column) => column.push(*item),
            None => {
                columns.push(vec![*item]);
                height = items.heights[*item] + between;
            }
        }
    }
    columns
}

/// The middle height of each item.
fn heights(columns: &[Vec<Vec<usize>>], items: &Items, between: f64) -> Vec<f64> {
    let mut middles = vec![0.0; items.layers.len()];
    for column in columns.iter().flatten() {
        let whole: f64 = column.iter().map(|item| items.heights[*item] + between).sum();
        let mut top = -whole / 2.0;
        for item in column {
            middles[*item] = top + items.heights[*item] / 2.0;
            top += items.heights[*item] + between;
        }
    }
    // A split layer keeps its first heights: it has no room to move.
    let movable: Vec<&[usize]> = columns
        .iter()
        .filter(|columns| columns.len() == 1)
        .filter_map(|columns| columns.first())
        .map(Vec::as_slice)
        .collect();
    for column in &movable {
        level(column, &items.before, items, between, &mut middles);
    }
    for column in movable.iter().rev() {
        level(column, &items.behind, items, between, &mut middles);
    }
    for column in &movable {
        level(column, &items.before, items, between, &mut middles);
    }
    middles
}

/// Moves the items of a column towards their neighbours, as far as the order and the space between
/// allow. Minimises the sum of the squared distances that remain.
fn level(column: &[usize], neighbours: &[Vec<usize>], items: &Items, between: f64, middles: &mut [f64]) {
    let mut offset = 0.0;
    let mut offsets = Vec::with_capacity(column.len());
    // Items that would be too close move as one block: the sum of their wanted positions less their
    // offsets, the weight, and the number of items.
    let mut blocks: Vec<(f64, f64, usize)> = Vec::new();
    for (at, item) in column.iter().enumerate() {
        if at > 0 {
            offset += items.apart(column[at - 1], *item, between);
        }
        offsets.push(offset);
        let wanted = mean(&neighbours[*item], middles).unwrap_or(middles[*item]) - offset;
        let mut block = (wanted, 1.0, 1);
        while let Some(last) = blocks.pop_if(|last| last.0 / last.1 > block.0 / block.1) {
            block = (last.0 + block.0, last.1 + block.1, last.2 + block.2);
        }
        blocks.push(block);
    }
    let placed = blocks.iter().flat_map(|(sum, weight, n)| std::iter::repeat_n(sum / weight, *n));
    for ((item, offset), base) in column.iter().zip(offsets).zip(placed) {
        middles[*item] = base + offset;
    }
}

/// The points of the lines. Lines that leave or reach the same side of a box share it, in the order
/// of their other ends.
fn lines(layers: &Layers, items: &Items, places: &[(f64, f64)], sizes: Sizes<'_>) -> Vec<Vec<(f64, f64)>> {
    let n_nodes = layers.of.len();
    let mut leaving: Vec<Vec<(f64, usize)>> = vec![Vec::new(); n_nodes];
    let mut reaching: Vec<Vec<(f64, usize)>> = vec![Vec::new(); n_nodes];
    for (at, edge) in layers.edges.iter().enumerate() {
        let first = items.passes[at].first().copied().unwrap_or(edge.to);
        let last = items.passes[at].last().copied().unwrap_or(edge.from);
        leaving[edge.from].push((places[first].1, at));
        reaching[edge.to].push((places[last].1, at));
    }
    let mut starts = vec![0.0; layers.edges.len()];
    let mut ends = vec![0.0; layers.edges.len()];
    for node in 0..n_nodes {
        share(&mut leaving[node], places[node].1, items.heights[node], &mut starts);
        share(&mut reaching[node], places[node].1, items.heights[node], &mut ends);
    }
    let one_line = |(at, edge): (usize, &Link)| {
        let mut points = vec![(places[edge.from].0 + sizes.width, starts[at])];
        for pass in &items.passes[at] {
            let (left, middle) = places[*pass];
            points.extend([(left, middle), (left + sizes.width, middle)]);
        }
        points.push((places[edge.to].0, ends[at]));
        points
    };
    layers.edges.iter().enumerate().map(one_line).collect()
}

fn share(edges: &mut [(f64, usize)], middle: f64, height: f64, at: &mut [f64]) {
    edges.sort_by(|one, other| one.0.total_cmp(&other.0));
    let step = height / (edges.len() + 1) as f64;
    for (n, (_, edge)) in edges.iter().enumerate() {
        at[*edge] = middle - height / 2.0 + step * (n + 1) as f64;
    }
}
