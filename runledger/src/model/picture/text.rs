//! Writes a picture as a table for a terminal: one row per node with its dependencies, layer by
//! layer.

use std::fmt;

use super::layers::Layers;
use super::words::{carried, cells, cut, heading, kind, reason, shown};
use super::{GraphPicture, PictureNode};

/// The maximum width of a column, in cells.
const WIDEST: usize = 40;

/// The maximum number of dependencies that a row names. The others are only counted.
const MAX_NEEDS: usize = 3;

impl fmt::Display for GraphPicture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", heading(self))?;
        let layers = Layers::new(self);
        let mut needs: Vec<Vec<usize>> = vec![Vec::new(); self.nodes.len()];
        for link in &layers.edges {
            needs[link.to].push(link.at);
        }
        let mut order: Vec<usize> = (0..self.nodes.len()).collect();
        order.sort_by_key(|place| layers.of[*place]);
        let rows: Vec<[String; 5]> = order
            .iter()
            .enumerate()
            .map(|(at, place)| {
                let layer = layers.of[*place];
                let is_first = at == 0 || layers.of[order[at - 1]] != layer;
                let node = &self.nodes[*place];
                let number = if is_first { (layer + 1).to_string() } else { String::new() };
                let state = node.state.map(|state| state.to_string()).unwrap_or_default();
                [number, self.named(node), kind(node), state, self.remarks(node, &needs[*place])]
            })
            .collect();
        let mut widths = [0; 4];
        for row in &rows {
            for (width, column) in widths.iter_mut().zip(row) {
                *width = (*width).max(cells(column).min(WIDEST));
            }
        }
        for row in &rows {
            let mut line = format!("{:>1$}", row[0], widths[0]);
            for (column, width) in row[1..4].iter().zip(&widths[1..]).filter(|(_, width)| **width > 0) {
                let column = cut(column, *width);
                let space = width.saturating_sub(cells(&column));
                line = line + "  " + &column + &" ".repeat(space);
            }
            writeln!(f, "{}", (line + "  " + &row[4]).trim_end())?;
        }
        Ok(())
    }
}

impl GraphPicture {
    fn named(&self, node: &PictureNode) -> String {
        // Only the name is cut, so the word stays visible.
        let word = if self.is_result(node) { " (result)" } else { "" };
        cut(&shown(&node.name), WIDEST - word.len()) + word
    }

    /// The dependencies of a node, and the reason of its state.
    fn remarks(&self, node: &PictureNode, needs: &[usize]) -> String {
        let mut named: Vec<String> = needs
            .iter()
            .take(MAX_NEEDS)
            .map(|at| {
                let edge = &self.edges[*at];
                let (from, carried) = (cut(&shown(&edge.from), WIDEST), carried(edge));
                if carried.is_empty() { from } else { format!("{from} ({})", cut(&carried, WIDEST)) }
            })
            .collect();
        match needs.len().saturating_sub(MAX_NEEDS) {
            0 => {}
            1 => named.push("1 other".to_owned()),
            n => named.push(format!("{n} others")),
        }
        let needs = if named.is_empty() { String::new() } else { format!("← {}", named.join(", ")) };
        let parts: Vec<String> =
            [Some(needs).filter(|needs| !needs.is_empty()), reason(node)].into_iter().flatten().collect();
        parts.join("; ")
    }
}
