//! Writes a picture as an SVG document: <https://www.w3.org/TR/SVG2/>. It uses no ids and no style
//! sheet, so one page can contain several pictures.

use std::fmt::Write as _;

use super::arrange::{Arrangement, Sizes, arrange};
use super::layers::{Layers, Link};
use super::words::{carried, cells, colours, cut, heading, kind, reason, shown};
use super::{EdgeKind, GraphPicture, PictureEdge, PictureNode};

/// The font size of names, and of all other texts.
const NAME_SIZE: usize = 13;
const SMALL_SIZE: usize = 11;

/// The widths of their characters. In common monospaced fonts, the width is six tenths of the size.
const NAME_CELL: f64 = 7.9;
const SMALL_CELL: f64 = 6.7;

/// The space between a text and the outline of its box.
const PADDING: f64 = 12.0;

/// The minimum and maximum width of names in a box, in characters. The title has the whole name.
const NARROWEST: usize = 12;
const WIDEST: usize = 34;

/// The maximum width of the smaller texts below the name, in characters.
const WIDEST_SMALL: usize = WIDEST * NAME_SIZE / SMALL_SIZE;

/// The height of a box without a reason, and with one.
const HEIGHT: f64 = 44.0;
const HEIGHT_WITH_REASON: f64 = 60.0;

/// The space between boxes within a column, and between columns without the labels of lines.
const BETWEEN: f64 = 18.0;
const ACROSS: f64 = 56.0;

/// The height of the heading.
const HEADING: f64 = 30.0;

/// The maximum width of a line's label, in characters, and the maximum number of lines into a box
/// that have labels. More labels would overlap.
const WIDEST_LABEL: usize = 20;
const MAX_LABELS: usize = 3;

/// Above this number of edges, lines have no titles: these would be most of the document.
const MAX_TITLES: usize = 2_000;

const LINE: &str = "#57606a";

pub(super) fn written(picture: &GraphPicture) -> String {
    let layers = Layers::new(picture);
    let boxes: Vec<Texts> = picture.nodes.iter().map(|node| Texts::new(picture, node)).collect();
    let widest = boxes.iter().map(Texts::n_cells).max().unwrap_or(NARROWEST).clamp(NARROWEST, WIDEST);
    let heights: Vec<f64> =
        boxes.iter().map(|texts| if texts.reason.is_some() { HEIGHT_WITH_REASON } else { HEIGHT }).collect();
    let mut n_reaching = vec![0; picture.nodes.len()];
    for edge in &layers.edges {
        n_reaching[edge.to] += 1;
    }
    let label = |link: &Link| {
        let label = cut(&carried(&picture.edges[link.at]), WIDEST_LABEL);
        (n_reaching[link.to] <= MAX_LABELS && !label.is_empty()).then_some(label)
    };
    let labels: Vec<Option<String>> = layers.edges.iter().map(label).collect();
    let widest_label = labels.iter().flatten().map(|label| cells(label)).max().unwrap_or(0);
    let sizes = Sizes {
        width: NAME_CELL * number(widest) + 2.0 * PADDING,
        heights: &heights,
        across: ACROSS + SMALL_CELL * number(widest_label),
        between: BETWEEN,
    };
    let arrangement = arrange(&layers, sizes);
    let mut svg = String::new();
    open(&mut svg, picture, &arrangement);
    let has_titles = picture.edges.len() <= MAX_TITLES;
    let _ = writeln!(svg, "<g fill=\"none\" stroke=\"{LINE}\">");
    for (link, points) in layers.edges.iter().zip(&arrangement.lines) {
        line(&mut svg, &picture.edges[link.at], points, has_titles);
    }
    let _ = writeln!(
        svg,
        "</g>\n<g fill=\"#333333\" font-size=\"{SMALL_SIZE}\" text-anchor=\"end\" stroke=\"#ffffff\" stroke-width=\"3\" paint-order=\"stroke\">"
    );
    for (label, points) in labels.iter().zip(&arrangement.lines) {
        if let (Some(label), Some((x, y))) = (label, points.last()) {
            let _ =
                writeln!(svg, "<text x=\"{:.0}\" y=\"{:.0}\">{}</text>", x - 10.0, y - 5.0, escaped(label));
        }
    }
    svg.push_str("</g>\n");
    for ((node, texts), (place, height)) in
        picture.nodes.iter().zip(&boxes).zip(arrangement.boxes.iter().zip(&heights))
    {
        let outline =
            Outline { left: place.0, top: place.1 - height / 2.0, width: sizes.width, height: *height };
        node_box(&mut svg, picture, node, texts, outline);
    }
    svg.push_str("</svg>\n");
    svg
}

/// The texts in a box.
struct Texts {
    name: String,
    kind: String,
    reason: Option<String>,
}

impl Texts {
    fn new(picture: &GraphPicture, node: &PictureNode) -> Self {
        let state = node.state.map(|state| format!(" · {state}")).unwrap_or_default();
        let result = if picture.is_result(node) { " · result" } else { "" };
        // The state must be visible even if the job's name is long.
        let most = WIDEST_SMALL.saturating_sub(cells(&state) + cells(result));
        Self {
            name: cut(&shown(&node.name), WIDEST),
            kind: cut(&kind(node), most) + &state + result,
            reason: reason(node).map(|reason| cut(&reason, WIDEST_SMALL)),
        }
    }

    /// The width of the texts, in characters of a name.
    fn n_cells(&self) -> usize {
        let small = [Some(&self.kind), self.reason.as_ref()].into_iter().flatten().map(|text| cells(text));
        let widest = small.max().unwrap_or(0) * SMALL_SIZE / NAME_SIZE + 1;
        cells(&self.name).max(widest)
    }
}

#[derive(Clone, Copy)]
struct Outline {
    left: f64,
    top: f64,
    width: f64,
    height: f64,
}

fn open(svg: &mut String, picture: &GraphPicture, arrangement: &Arrangement) {
    let heading = heading(picture);
    let least = SMALL_CELL * 1.4 * number(cells(&heading)) + 48.0;
    let (width, height) = (arrangement.width.max(least), arrangement.height + HEADING);
    let _ = writeln!(
        svg,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" role=\"img\" width=\"{width:.0}\" height=\"{height:.0}\" \
         viewBox=\"0 -{HEADING:.0} {width:.0} {height:.0}\" font-family=\"ui-monospace, Menlo, Consolas, monospace\">"
    );
    let _ = writeln!(svg, "<title>{}</title>", escaped(&heading));
    let _ = writeln!(
        svg,
        "<rect x=\"0\" y=\"-{HEADING:.0}\" width=\"{width:.0}\" height=\"{height:.0}\" fill=\"#ffffff\"/>"
    );
    let _ = writeln!(
        svg,
        "<text x=\"24\" y=\"0\" font-size=\"15\" font-weight=\"bold\">{}</text>",
        escaped(&heading)
    );
}

fn line(svg: &mut String, edge: &PictureEdge, points: &[(f64, f64)], has_title: bool) {
    let [start, steps @ ..] = points else { return };
    let (to_x, to_y) = *points.last().unwrap_or(start);
    svg.push_str("<g>");
    if has_title {
        let carried = carried(edge);
        let carried = if carried.is_empty() { String::new() } else { format!(": {carried}") };
        let title = format!("{} → {}{}", shown(&edge.from), shown(&edge.to), cut(&carried, 200));
        let _ = write!(svg, "<title>{}</title>", escaped(&title));
    }
    let (mut x, mut y) = *start;
    let _ = write!(svg, "<path d=\"M{x:.0} {y:.0}");
    for step in steps.chunks(2) {
        // A curve to the end, or to the line's place in the next layer and straight through this
        // layer.
        let [(next_x, next_y), through @ ..] = step else { continue };
        let middle = f64::midpoint(x, *next_x);
        let _ = write!(svg, " C{middle:.0} {y:.0} {middle:.0} {next_y:.0} {next_x:.0} {next_y:.0}");
        (x, y) = (*next_x, *next_y);
        if let [(far_x, _)] = through {
            x = *far_x;
            let _ = write!(svg, " H{x:.0}");
        }
    }
    let dashes = match edge.on {
        EdgeKind::Success | EdgeKind::Condition => "",
        EdgeKind::Terminal => " stroke-dasharray=\"6 4\"",
    };
    let (back_x, above, below) = (to_x - 7.0, to_y - 4.0, to_y + 4.0);
    let _ = writeln!(
        svg,
        "\"{dashes}/><path d=\"M{back_x:.0} {above:.0} L{to_x:.0} {to_y:.0} L{back_x:.0} {below:.0} Z\" fill=\"{LINE}\" stroke=\"none\"/></g>"
    );
}

fn node_box(svg: &mut String, picture: &GraphPicture, node: &PictureNode, texts: &Texts, outline: Outline) {
    let (inside, colour) = colours(node.state);
    let mut title = format!("{}: {}", shown(&node.name), kind(node));
    if picture.is_result(node) {
        title.push_str(", the result");
    }
    if let Some(state) = node.state {
        let _ = write!(title, ", {state}");
    }
    if let Some(reason) = reason(node) {
        let _ = write!(title, ": {reason}");
    }
    let _ = write!(svg, "<g><title>{}</title>", escaped(&title));
    let _ = write!(
        svg,
        "<path d=\"{}\" fill=\"{inside}\" stroke=\"{colour}\" stroke-width=\"1.5\"/>",
        shape(node, outline, 0.0)
    );
    if picture.is_result(node) {
        let _ = write!(svg, "<path d=\"{}\" fill=\"none\" stroke=\"{colour}\"/>", shape(node, outline, 3.0));
    }
    let (left, top) = (outline.left + PADDING, outline.top);
    let _ = write!(
        svg,
        "<text x=\"{left:.0}\" y=\"{:.0}\" font-size=\"{NAME_SIZE}\" font-weight=\"bold\">{}</text>",
        top + 19.0,
        escaped(&texts.name)
    );
    for (text, down) in [(Some(&texts.kind), 35.0), (texts.reason.as_ref(), 51.0)] {
        if let Some(text) = text {
            let _ = write!(
                svg,
                "<text x=\"{left:.0}\" y=\"{:.0}\" font-size=\"{SMALL_SIZE}\">{}</text>",
                top + down,
                escaped(text)
            );
        }
    }
    svg.push_str("</g>\n");
}

/// The outline of a box. The corners of a gate are cut off.
fn shape(node: &PictureNode, outline: Outline, inset: f64) -> String {
    let Outline { left, top, width, height } = outline;
    let (left, top) = (left + inset, top + inset);
    let (right, bottom) = (left + width - 2.0 * inset, top + height - 2.0 * inset);
    if node.job.is_some() {
        return format!("M{left:.0} {top:.0} H{right:.0} V{bottom:.0} H{left:.0} Z");
    }
    let (in_left, in_right, in_top, in_bottom) = (left + 8.0, right - 8.0, top + 8.0, bottom - 8.0);
    format!(
        "M{in_left:.0} {top:.0} H{in_right:.0} L{right:.0} {in_top:.0} V{in_bottom:.0} L{in_right:.0} {bottom:.0} H{in_left:.0} L{left:.0} {in_bottom:.0} \
         V{in_top:.0} Z"
    )
}

/// Escapes text for XML. `shown` has already replaced characters that XML does not allow.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            c => escaped.push(c),
        }
    }
    escaped
}

fn number(n: usize) -> f64 {
    n as f64
}
