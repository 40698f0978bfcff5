//! A plot of bars as SVG, without a library: rectangles and text.

use std::fmt::Write;

use super::plan::{Figure, whos};
use super::table::{main_value, median, thousands};
use crate::line::Line;

const WIDTH: f64 = 720.0;
const LABEL: f64 = 150.0;
const VALUE: f64 = 110.0;
const ROW: f64 = 30.0;
const HEAD: f64 = 34.0;

/// One bar a contender; the engine's own is dark.
pub fn bars(figure: &Figure, lines: &[&Line]) -> String {
    let values: Vec<(&str, f64)> =
        whos(figure).filter_map(|who| Some((who, median(lines, who, main_value)?))).collect();
    let most = values.iter().fold(f64::MIN_POSITIVE, |most, (_, value)| most.max(*value));
    #[expect(clippy::cast_precision_loss, reason = "a handful of rows")]
    let height = HEAD + ROW * values.len() as f64 + 8.0;
    let unit = if figure.unit.is_empty() { "ms, less is better" } else { figure.unit };
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" font-size=\"13\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n\
         <text x=\"8\" y=\"20\" font-weight=\"bold\">{} ({unit})</text>\n",
        figure.title
    );
    for (row, (who, value)) in values.iter().enumerate() {
        #[expect(clippy::cast_precision_loss, reason = "a handful of rows")]
        let y = HEAD + ROW * row as f64;
        let length = (WIDTH - LABEL - VALUE) * value / most;
        let fill = if *who == "runledger" { "#1b4965" } else { "#b8c7d1" };
        let shown = if figure.unit.is_empty() { format!("{value:.2}") } else { thousands(*value) };
        // Writing to a string does not fail.
        let _ = writeln!(
            svg,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{who}</text>\
             <rect x=\"{LABEL}\" y=\"{y}\" width=\"{length:.1}\" height=\"20\" fill=\"{fill}\"/>\
             <text x=\"{:.1}\" y=\"{}\">{shown}</text>",
            LABEL - 8.0,
            y + 15.0,
            LABEL + length + 6.0,
            y + 15.0
        );
    }
    svg + "</svg>\n"
}
