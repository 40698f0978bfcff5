//! Draws bar plots as SVG, without a library.

use std::fmt::Write;

use super::plan::{Figure, Mode, whos};
use super::results::Entry;
use super::table::{median, shown};

const WIDTH: f64 = 720.0;
const LABEL: f64 = 150.0;
const VALUE: f64 = 110.0;
const ROW: f64 = 30.0;
const HEAD: f64 = 34.0;

/// Draws one bar per contender. The engine's bar is dark.
pub fn bars(figure: &Figure, mode: Mode, entries: &[Entry]) -> String {
    let values: Vec<(&str, f64)> = whos(figure)
        .filter_map(|who| Some((who, median(entries, figure.name, who, figure.value)?)))
        .collect();
    let most = values.iter().fold(f64::MIN_POSITIVE, |most, (_, value)| most.max(*value));
    #[expect(clippy::cast_precision_loss, reason = "a handful of rows")]
    let height = HEAD + ROW * values.len() as f64 + 8.0;
    let less = if figure.less { ", less is better" } else { "" };
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" font-size=\"13\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n\
         <text x=\"8\" y=\"20\" font-weight=\"bold\">{} ({}{less})</text>\n",
        figure.heading(mode, entries),
        figure.unit
    );
    for (row, (who, value)) in values.iter().enumerate() {
        #[expect(clippy::cast_precision_loss, reason = "a handful of rows")]
        let y = HEAD + ROW * row as f64;
        let length = (WIDTH - LABEL - VALUE) * value.max(0.0) / most;
        let fill = if *who == "runledger" { "#1b4965" } else { "#b8c7d1" };
        // Writing to a string does not fail.
        let _ = writeln!(
            svg,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{who}</text>\
             <rect x=\"{LABEL}\" y=\"{y}\" width=\"{length:.1}\" height=\"20\" fill=\"{fill}\"/>\
             <text x=\"{:.1}\" y=\"{}\">{}</text>",
            LABEL - 8.0,
            y + 15.0,
            LABEL + length + 6.0,
            y + 15.0,
            shown(*value)
        );
    }
    svg + "</svg>\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::plan::figure;
    use crate::report::results::tests::measured;

    #[test]
    fn bar_lengths_are_proportional_to_values() {
        let lines = [measured(1, "drain", "limit", 100.0), measured(1, "drain", "runledger", 50.0)];
        let svg = bars(figure("drain").unwrap(), Mode::Full, &lines);
        assert!(svg.contains("width=\"460.0\"") && svg.contains("width=\"230.0\""), "{svg}");
        assert_eq!(svg.matches("<text").count(), 1 + 2 * 2);
    }
}
