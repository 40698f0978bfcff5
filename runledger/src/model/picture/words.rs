//! The texts of a picture, safe for any content of names and reasons.

use std::fmt::Write as _;

use super::{EdgeKind, GraphPicture, PictureEdge, PictureNode};
use crate::model::run::state::RunState;

/// The maximum length of a shown reason, in characters: an error may have thousands. The JSON has
/// the whole reason.
const MAX_REASON: usize = 300;

/// Marks a cut text.
const CUT: char = '…';

/// Escapes characters that are invisible or change the text direction. XML accepts all remaining
/// characters.
pub(super) fn shown(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if is_hidden(c) { shown.extend(c.escape_unicode()) } else { shown.push(c) }
    }
    shown
}

fn is_hidden(c: char) -> bool {
    let turns =
        matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let breaks = matches!(c, '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}');
    // XML does not allow these two characters, and most control characters.
    let is_no_character = matches!(c, '\u{fffe}' | '\u{ffff}');
    c.is_control() || turns || breaks || is_no_character
}

/// The approximate width of a text in cells of a monospaced font. The terminal decides the exact
/// width.
pub(super) fn cells(text: &str) -> usize {
    text.chars().map(cells_of).sum()
}

/// Two cells for East Asian scripts and for emoji: <https://www.unicode.org/reports/tr11/>.
fn cells_of(c: char) -> usize {
    match c {
        '\u{1100}'..='\u{115f}'
        | '\u{2e80}'..='\u{a4cf}'
        | '\u{ac00}'..='\u{d7a3}'
        | '\u{f900}'..='\u{faff}'
        | '\u{fe30}'..='\u{fe6f}'
        | '\u{ff00}'..='\u{ff60}'
        | '\u{ffe0}'..='\u{ffe6}'
        | '\u{1f300}'..='\u{1faff}'
        | '\u{20000}'..='\u{3fffd}' => 2,
        _ => 1,
    }
}

/// The beginning of a shown text, in at most `most` cells.
pub(super) fn cut(text: &str, most: usize) -> String {
    if cells(text) <= most {
        return text.to_owned();
    }
    let mut n_cells = cells_of(CUT);
    let fits = |c: &char| {
        n_cells += cells_of(*c);
        n_cells <= most
    };
    let mut kept: String = text.chars().take_while(fits).collect();
    kept.push(CUT);
    kept
}

/// The heading of a picture: `nightly: waiting, 3 nodes and 2 edges`.
pub(super) fn heading(picture: &GraphPicture) -> String {
    let mut heading = shown(&picture.graph) + ": ";
    if let Some(state) = picture.state {
        let _ = write!(heading, "{state}, ");
    }
    let counted = |n: usize, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
    heading + &counted(picture.nodes.len(), "node") + " and " + &counted(picture.edges.len(), "edge")
}

/// The kind of a node: `job merge`, or `gate`.
pub(super) fn kind(node: &PictureNode) -> String {
    node.job.as_ref().map_or_else(|| "gate".to_owned(), |job| format!("job {}", shown(job)))
}

/// The shown part of a node's reason.
pub(super) fn reason(node: &PictureNode) -> Option<String> {
    let reason = node.reason.as_ref()?;
    Some(match reason.char_indices().nth(MAX_REASON) {
        Some((end, _)) => format!("{}{CUT}", shown(&reason[..end])),
        None => shown(reason),
    })
}

/// The label of an edge: its condition and its parameters, such as `total`, `any end: total` or
/// `if true`. Empty for an edge that only orders after success. The part that may be cut comes
/// last.
pub(super) fn carried(edge: &PictureEdge) -> String {
    let carried = shown(&edge.parameters.join(", "));
    let end = match edge.on {
        EdgeKind::Success => return carried,
        EdgeKind::Condition => "if true",
        EdgeKind::Terminal => "any end",
    };
    if carried.is_empty() { end.to_owned() } else { format!("{end}: {carried}") }
}

/// The fill and outline colours of a node. Black text is readable on each fill. Colours only repeat
/// the words.
pub(super) const fn colours(state: Option<RunState>) -> (&'static str, &'static str) {
    match state {
        None => ("#ffffff", "#57606a"),
        Some(RunState::Queued) => ("#e3ecf9", "#3b6db0"),
        Some(RunState::Running) => ("#fff3bf", "#a66b00"),
        Some(RunState::Waiting) => ("#f3f4f6", "#6b7280"),
        Some(RunState::Blocked) => ("#ffe2cc", "#b4500b"),
        Some(RunState::Paused) => ("#ece4fb", "#6941b8"),
        Some(RunState::Completed) => ("#d8f3df", "#24713e"),
        Some(RunState::Failed) => ("#fbd9d9", "#b42318"),
        Some(RunState::Cancelled) => ("#e2e2e2", "#444444"),
    }
}
