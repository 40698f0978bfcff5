//! The words of a picture: what a person reads, whatever a name or a reason has in it.

use std::fmt::Write as _;

use super::{EdgeKind, GraphPicture, PictureEdge, PictureNode};
use crate::model::state::RunState;

/// How much of a reason is shown, in characters: an error may have thousands. The JSON has all of it.
const MAX_REASON: usize = 300;

/// Stands for what was cut off.
const CUT: char = '…';

/// Text as it is shown: what is not to be seen, or turns the direction of what follows, is spelled out, and so nothing that is left is refused by XML.
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
    // XML has no word for these two, nor for most that control.
    let is_no_character = matches!(c, '\u{fffe}' | '\u{ffff}');
    c.is_control() || turns || breaks || is_no_character
}

/// How many cells of a fixed pitch a text takes, nearly: a terminal decides.
pub(super) fn cells(text: &str) -> usize {
    text.chars().map(cells_of).sum()
}

/// Two for the scripts of East Asia and for pictures: <https://www.unicode.org/reports/tr11/>.
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

/// The beginning of a text that is shown, in at most so many cells.
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

/// What a node is: `job merge`, or `gate`.
pub(super) fn kind(node: &PictureNode) -> String {
    node.job.as_ref().map_or_else(|| "gate".to_owned(), |job| format!("job {}", shown(job)))
}

/// Why a node stands where it does, as far as it is shown.
pub(super) fn reason(node: &PictureNode) -> Option<String> {
    let reason = node.reason.as_ref()?;
    Some(match reason.char_indices().nth(MAX_REASON) {
        Some((end, _)) => format!("{}{CUT}", shown(&reason[..end])),
        None => shown(reason),
    })
}

/// What an edge carries, and on which end: `total`, `any end: total`, `if true`; nothing for order alone after a success. What may be cut off is at the end.
pub(super) fn carried(edge: &PictureEdge) -> String {
    let carried = shown(&edge.parameters.join(", "));
    let end = match edge.on {
        EdgeKind::Success => return carried,
        EdgeKind::Condition => "if true",
        EdgeKind::Terminal => "any end",
    };
    if carried.is_empty() { end.to_owned() } else { format!("{end}: {carried}") }
}

/// The colours of a node: inside, and of its outline. Black text is readable on each, and none of them says what the words do not.
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
