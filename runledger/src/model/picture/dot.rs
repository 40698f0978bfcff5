//! Writes a picture in the DOT language. Grammar: <https://graphviz.org/doc/info/lang.html>.
//! Escapes in labels: <https://graphviz.org/docs/attr-types/escString/>.

use std::collections::HashMap;
use std::fmt::Write as _;

use super::words::{carried, colours, heading, kind, reason, shown};
use super::{EdgeKind, GraphPicture, PictureNode};

pub(super) fn written(picture: &GraphPicture) -> String {
    let mut dot = String::new();
    let _ = writeln!(dot, "digraph {} {{", quoted(&[&shown(&picture.graph)]));
    let _ = writeln!(dot, "  graph [rankdir=LR, label={}, labelloc=t];", quoted(&[&heading(picture)]));
    dot.push_str("  node [shape=box, style=filled, fillcolor=\"#ffffff\", fontname=Helvetica];\n");
    dot.push_str("  edge [color=\"#57606a\", fontname=Helvetica, fontsize=10];\n");
    let mut places: HashMap<&str, usize> = HashMap::with_capacity(picture.nodes.len());
    for (place, node) in picture.nodes.iter().enumerate() {
        places.entry(&node.name).or_insert(place);
        let _ = writeln!(dot, "  n{place} [{}];", attributes(picture, node));
    }
    for edge in &picture.edges {
        let (Some(from), Some(to)) = (places.get(edge.from.as_str()), places.get(edge.to.as_str())) else {
            continue;
        };
        let mut attributes = Vec::new();
        let carried = carried(edge);
        if !carried.is_empty() {
            attributes.push(format!("label={}", quoted(&[&carried])));
        }
        match edge.on {
            EdgeKind::Success | EdgeKind::Condition => {}
            EdgeKind::Terminal => attributes.push("style=dashed".to_owned()),
        }
        let attributes =
            if attributes.is_empty() { String::new() } else { format!(" [{}]", attributes.join(", ")) };
        let _ = writeln!(dot, "  n{from} -> n{to}{attributes};");
    }
    dot.push_str("}\n");
    dot
}

fn attributes(picture: &GraphPicture, node: &PictureNode) -> String {
    let kind = kind(node) + if picture.is_result(node) { ", the result" } else { "" };
    let mut lines = vec![shown(&node.name), kind];
    lines.extend(node.state.map(|state| state.to_string()));
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    let mut attributes = format!("label={}", quoted(&lines));
    if node.job.is_none() {
        attributes.push_str(", shape=octagon");
    }
    if picture.is_result(node) {
        attributes.push_str(", peripheries=2");
    }
    if node.state.is_some() {
        let (inside, outline) = colours(node.state);
        let _ = write!(attributes, ", fillcolor=\"{inside}\", color=\"{outline}\"");
    }
    if let Some(reason) = reason(node) {
        let _ = write!(attributes, ", tooltip={}", quoted(&[&reason]));
    }
    attributes
}

/// Quotes lines literally. In labels, a backslash begins an escape, and an ampersand begins an
/// entity.
fn quoted(lines: &[&str]) -> String {
    let mut quoted = String::from("\"");
    for (at, line) in lines.iter().enumerate() {
        if at > 0 {
            quoted.push_str("\\n");
        }
        for c in line.chars() {
            match c {
                '"' => quoted.push_str("\\\""),
                '\\' => quoted.push_str("\\\\"),
                '&' => quoted.push_str("&amp;"),
                c => quoted.push(c),
            }
        }
    }
    quoted.push('"');
    quoted
}
