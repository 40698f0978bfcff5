//! The page of tables.

use std::fmt::Write;

use super::plan::{Figure, PLAN, whos};
use crate::line::Line;

const HEAD: &str = "# Benchmarks

Every figure of the engine, beside its limit (the bare SQL of the same work through the same driver) and peers from the crate registry at their best
documented settings, interleaved in one run. The value is the median of the rounds, with the lowest and the highest. Read ratios: absolute figures are those of one
small machine. Work counts as done when the database says so.

";

const COMMANDS: &str = "
## To make it again

```sh
cargo build --release -p runledger-bench
cargo build --release --manifest-path tests/benches/peers/Cargo.toml
target/release/bench report                      # everything, three rounds; this page, the plots, and results.jsonl
target/release/bench report --only drain         # one figure
```

`tests/benches/peers/README.md` says what each peer's figure includes: `graphile_worker` deletes its jobs where the engine keeps their history, and its locks
are not fenced. A lone enqueue or step of a peer may do less than ours; the limit of `workflows` has no enqueue, claim or settlement.
";

/// The whole page.
pub fn page(machine: &str, rounds: usize, lines: &[(&str, Line)]) -> String {
    let mut page = format!("{HEAD}{machine} Rounds: {rounds}.\n");
    for figure in PLAN {
        let of_figure: Vec<&Line> =
            lines.iter().filter(|(name, _)| *name == figure.name).map(|(_, line)| line).collect();
        if !of_figure.is_empty() {
            // Writing to a string does not fail.
            let _ = write!(
                page,
                "\n## {}\n\n{}\n![{1}]({}.svg)\n",
                figure.name,
                table(figure, &of_figure),
                figure.name
            );
        }
    }
    page + COMMANDS
}

fn table(figure: &Figure, lines: &[&Line]) -> String {
    let mut text = format!("{}.\n\n", figure.title);
    text += if figure.unit.is_empty() {
        "| | p50 ms | p99 ms | Runledger's p50 to its |\n|---|---|---|---|\n"
    } else {
        "| | median | from – to | Runledger to it |\n|---|---|---|---|\n"
    };
    let own = median(lines, "runledger", main_value);
    for who in whos(figure) {
        let Some(value) = median(lines, who, main_value) else { continue };
        let ratio = own.map_or_else(String::new, |own| {
            if who == "runledger" { "1".to_owned() } else { format!("{:.2}", own / value) }
        });
        let name = version(lines, who);
        let _ = if figure.unit.is_empty() {
            let p99 = median(lines, who, |line| line.p99_ms).unwrap_or(f64::NAN);
            writeln!(text, "| {name} | {value:.2} | {p99:.2} | {ratio} |")
        } else {
            let (least, most) = range(lines, who);
            writeln!(
                text,
                "| {name} | {} {} | {} – {} | {ratio} |",
                thousands(value),
                figure.unit,
                thousands(least),
                thousands(most)
            )
        };
    }
    text
}

/// The value that is compared: the rate, or the median duration.
pub fn main_value(line: &Line) -> Option<f64> {
    line.rate.or(line.p50_ms)
}

/// The median over the rounds.
pub fn median(lines: &[&Line], who: &str, value: impl Fn(&Line) -> Option<f64>) -> Option<f64> {
    let mut values: Vec<f64> =
        lines.iter().filter(|line| line.who == who).filter_map(|line| value(line)).collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

fn range(lines: &[&Line], who: &str) -> (f64, f64) {
    let values = lines.iter().filter(|line| line.who == who).filter_map(|line| main_value(line));
    values.fold((f64::INFINITY, 0.0), |(least, most), value| (value.min(least), value.max(most)))
}

fn version(lines: &[&Line], who: &str) -> String {
    match (who, lines.iter().find(|line| line.who == who)) {
        ("limit" | "runledger", _) | (_, None) => who.to_owned(),
        (_, Some(line)) => format!("`{who}` {}", line.version),
    }
}

/// A number with its thousands apart.
pub fn thousands(value: f64) -> String {
    let digits = format!("{value:.0}");
    let groups: Vec<&str> = digits
        .as_bytes()
        .rchunks(3)
        .rev()
        .map(|group| std::str::from_utf8(group).unwrap_or_default())
        .collect();
    groups.join(",")
}
