//! The page: medians of the rounds, ratios within rounds, and the limits of the comparison.

mod machine;
mod rows;

use std::fmt::Write;

pub use self::machine::describe;
use self::rows::{COSTS, COUNTS, Cost, Measure, ROWS, Row};
use crate::Line;
use crate::figure::{ALL, Who};

/// The pause between two polls of upstream's worker, by default, in milliseconds.
const POLL_MS: f64 = 500.0;

const HEAD: &str = "# Comparison with `runledger-postgres`

This page compares Runledger with the published crates `runledger-postgres` and `runledger-runtime` 0.12.0 (of
[bpcakes/runledger](https://github.com/bpcakes/runledger)). They share the name with this project, and nothing else. The
page calls them *upstream*.

- One program measured both in turns, on one PostgreSQL 18, which upstream needs. Each measurement has a new database.
- A value is the median of the rounds. A ratio is the median of the rounds' ratios: how many times better Runledger is.
- Compare ratios: absolute values belong to this machine. Work is done when the database shows it.

";

const SETTINGS: &str = "## Settings

- **Runledger**: `Db::connect` (10 connections) and `App::new(db).start()` (128 runs at once), without other settings.
- **upstream**: `PgPoolOptions::new()` (10 connections) and `Supervisor::builder_from_env` without variables: a poll every
  500 ms, 16 jobs per claim, 32 at once.
- **upstream, tuned**: the options of its README: a poll every 10 ms, 128 jobs per claim and at once, 32 connections, no
  promoter of intents. Figures without a worker have no such column.

The worker and the client share a process, and the worker has its own connections. Bodies do nothing. A run has about
100 bytes of input and no output. Edges only order the nodes.

";

const MEANING: &str = "## What is measured

- **Enqueued, submitted**: calls without a key, each in its own transaction. Where the row says 1,000 per transaction,
  Runledger sends a batch. Upstream sends one call after another, because it has no batches. No worker runs. The clients
  share a pool of 10 connections.
- **Bare inserts**: the same payloads in one table with a primary key, without an engine. A graph is one statement.
- **On an idle system**: one graph at a time, from the call that submits it until the database shows its end. The
  program reads the database every millisecond. It waits 300 ms to 800 ms before the next graph, so that graphs do not
  always start right after a poll. p50 is the median of the rounds' medians. p99 is over the graphs of all rounds; with
  so few graphs it is one of the two slowest. A fan-out has one node, a hundred dependents, and a node that depends on
  them.
- **At once**: the graphs are submitted and the tables analysed before the worker starts. The time runs from the start of
  the worker until all graphs have ended, for at most a minute. The rate counts the graphs that completed.
- **Statements** are counted by `pg_stat_statements` for the engine's role, including the beginnings and ends of
  transactions. They count from before the first graph until after the pause behind the last one. The row \"beyond an
  idle worker\" subtracts the statements that an idle worker sends in the same time, measured for four seconds before.
- **Commits** are records in the WAL (`pg_walinspect`) of transactions that wrote.
- **WAL** is the WAL of the whole server, on which nothing else runs. Page images are separate, because they depend on
  the time of the last checkpoint.
- **Deadlocks** are `pg_stat_database.deadlocks` after all sessions have ended. Failed nodes are failed runs of Runledger
  and dead-lettered jobs of upstream. Repeated attempts exclude the first attempt of each node.

";

const LIMITS: &str = "## Limits of the comparison

- Upstream also writes a row for each event and each attempt. Runledger writes a row only for a failed attempt. Programs
  that need a row for each start and end get it only from upstream.
- Upstream's worker polls by design. Runledger's worker receives notifications. The tuned column shows upstream with
  short pauses; an idle worker then sends a hundred claims per second.
- A single client waits for each commit, in both engines. The bare inserts show what the disk allows, and *possible* is
  their ratio to upstream. Only Runledger lets concurrent clients share commits.
- p99 of so few graphs is uncertain. In upstream, a job whose end was lost in a deadlock continues after its lease of one
  minute. This time is part of its p99 and of the siblings.
- Upstream gets fewer graphs in the slow figures. So its tables are smaller, which favours upstream.
";

pub struct Report {
    made: String,
    pub lines: Vec<Line>,
}

impl Report {
    pub fn new(made: String) -> Self {
        Self { made, lines: Vec::new() }
    }

    pub fn page(&self) -> String {
        let rounds = self.lines.iter().map(|line| line.round).max().unwrap_or_default();
        let mut page = format!(
            "{HEAD}{}\n\n{rounds} rounds of this command:\n\n```sh\n{}\n```\n\n",
            self.made,
            machine::command()
        );
        page.push_str("## Speed\n\n| | Runledger | upstream | ratio | target | upstream, tuned | ratio | bare inserts |\n|---|---|---|---|---|---|---|---|\n");
        for row in ROWS.iter().filter(|row| self.value(row, Who::Runledger).is_some()) {
            self.speed(&mut page, row);
        }
        self.polls(&mut page);
        page.push_str("\n## Cost of one graph\n\n| | Runledger | upstream | ratio | upstream, tuned | ratio |\n|---|---|---|---|---|---|\n");
        for cost in COSTS.iter().filter(|cost| self.cost(cost, Who::Runledger).is_some()) {
            self.costs(&mut page, cost);
        }
        page.push_str("\n## Conflicts in all rounds\n\n| | Runledger | upstream | upstream, tuned |\n|---|---|---|---|\n");
        for (figure, key, title) in COUNTS {
            let sums = Who::ENGINES.map(|who| self.sum(figure, key, who).map_or("–".to_owned(), number));
            if self.lines.iter().any(|line| line.figure == *figure) {
                // Writing into a `String` does not fail.
                let _ = writeln!(page, "| {title} | {} |", sums.join(" | "));
            }
        }
        self.amounts(&mut page);
        self.errors(&mut page);
        for part in [SETTINGS, MEANING, LIMITS] {
            page.push_str(part);
        }
        page
    }

    fn speed(&self, page: &mut String, row: &Row) {
        let text = |who| {
            self.value(row, who).map_or("–".to_owned(), |value| format!("{} {}", number(value), row.unit))
        };
        let ratio = |who| self.ratio(row, who);
        let times =
            |ratio: Option<f64>| ratio.map_or("–".to_owned(), |ratio| format!("{} ×", number(ratio)));
        let goal = match (row.goal, ratio(Who::Upstream)) {
            (Some(goal), Some(ratio)) if ratio >= goal => format!("{goal} ×: met"),
            (Some(goal), Some(_)) => {
                let most = self.quotient(row, Who::Bare, Who::Upstream).filter(|most| *most < goal);
                let most = most.map(|most| format!("; {} × is possible", number(most)));
                format!("{goal} ×: **not met**{}", most.unwrap_or_default())
            }
            _ => String::new(),
        };
        let (upstream, tuned) = (Who::Upstream, Who::UpstreamTuned);
        let _ = writeln!(
            page,
            "| {} | {} | {} | {} | {goal} | {} | {} | {} |",
            row.title,
            text(Who::Runledger),
            text(upstream),
            times(ratio(upstream)),
            text(tuned),
            times(ratio(tuned)),
            text(Who::Bare),
        );
    }

    /// Tells how much of a chain's time is waiting for polls.
    fn polls(&self, page: &mut String) {
        for (figure, length) in [("chain-3", 3.0), ("chain-10", 10.0)] {
            let row = ROWS.iter().find(|row| row.figure == figure && row.measure == Measure::Median);
            let Some(took) = row.and_then(|row| self.value(row, Who::Upstream)) else { continue };
            // The first node waits half a pause on average. Each later node waits nearly a whole
            // one, because it was released just after a poll.
            let polls = (length - 0.5) * POLL_MS;
            let _ = writeln!(
                page,
                "\nUpstream needs {} ms for a chain of {length}. About {} ms of this are pauses between its polls.",
                number(took),
                number(polls)
            );
        }
    }

    fn costs(&self, page: &mut String, cost: &Cost) {
        let text = |who| self.cost(cost, who).map_or("–".to_owned(), number);
        let ratio = |who| {
            let ratio = Some((self.cost(cost, who)?, self.cost(cost, Who::Runledger)?))
                .filter(|(_, ours)| *ours > 0.0);
            ratio.map(|(theirs, ours)| format!("{} ×", number(theirs / ours)))
        };
        let ratio = |who| ratio(who).unwrap_or("–".to_owned());
        let (upstream, tuned) = (Who::Upstream, Who::UpstreamTuned);
        let _ = writeln!(
            page,
            "| {} | {} | {} | {} | {} | {} |",
            cost.title,
            text(Who::Runledger),
            text(upstream),
            ratio(upstream),
            text(tuned),
            ratio(tuned),
        );
    }

    fn amounts(&self, page: &mut String) {
        page.push_str(
            "\nAmount of work per round, for Runledger, upstream, upstream tuned and bare inserts:\n\n",
        );
        for figure in ALL {
            let amounts = Who::ALL.map(|who| {
                let line = self.lines.iter().rfind(|line| line.figure == figure.name && line.who == who)?;
                let done = line.outcome.waits_ms.len();
                Some(if done > 0 { done.to_string() } else { number(line.amount as f64) })
            });
            if amounts.iter().any(Option::is_some) {
                let amounts = amounts.map(|amount| amount.unwrap_or("–".to_owned()));
                let _ = writeln!(page, "- `{}`: {}", figure.name, amounts.join(", "));
            }
        }
        page.push('\n');
    }

    fn errors(&self, page: &mut String) {
        for line in &self.lines {
            if let Some(error) = &line.error {
                let _ = writeln!(
                    page,
                    "- **not measured**: `{}` of {:?} in round {}: {error}",
                    line.figure, line.who, line.round
                );
            }
        }
        page.push('\n');
    }

    fn value(&self, row: &Row, who: Who) -> Option<f64> {
        match row.measure {
            Measure::Slow => {
                let lines = self.of(row.figure, who);
                percentile(lines.flat_map(|line| line.outcome.waits_ms.iter().copied()).collect(), 99)
            }
            Measure::Rate | Measure::Median => {
                median(self.of(row.figure, who).filter_map(|line| in_round(row, line)).collect())
            }
        }
    }

    /// How many times better this engine is.
    fn ratio(&self, row: &Row, who: Who) -> Option<f64> {
        self.quotient(row, Who::Runledger, who)
    }

    /// How many times better `one` is than `other`.
    fn quotient(&self, row: &Row, one: Who, other: Who) -> Option<f64> {
        match row.measure {
            Measure::Slow => Some(self.value(row, other)? / self.value(row, one)?),
            Measure::Rate | Measure::Median => {
                let of_round = |its: &Line| {
                    let one = self.of(row.figure, one).find(|one| one.round == its.round)?;
                    let (one, other) = (in_round(row, one)?, in_round(row, its)?);
                    // A round in which nothing completed has no ratio. Another table counts
                    // completions.
                    Some(if row.measure == Measure::Rate { one / other } else { other / one })
                        .filter(|ratio| ratio.is_finite())
                };
                median(self.of(row.figure, other).filter_map(of_round).collect())
            }
        }
    }

    fn cost(&self, cost: &Cost, who: Who) -> Option<f64> {
        let of_round = |line: &Line| {
            let value = |key| line.outcome.values.get(key).copied();
            let less = cost.less.map_or(Some(0.0), value)?;
            Some(value(cost.key)? - less)
        };
        median(self.of(cost.figure, who).filter_map(of_round).collect())
    }

    fn sum(&self, figure: &str, key: &str, who: Who) -> Option<f64> {
        let values: Vec<f64> =
            self.of(figure, who).filter_map(|line| line.outcome.values.get(key).copied()).collect();
        if values.is_empty() { None } else { Some(values.iter().sum()) }
    }

    fn of(&self, figure: &str, who: Who) -> impl Iterator<Item = &Line> {
        self.lines.iter().filter(move |line| line.figure == figure && line.who == who)
    }
}

fn in_round(row: &Row, line: &Line) -> Option<f64> {
    match row.measure {
        Measure::Rate => line.outcome.values.get("rate").copied(),
        Measure::Median => percentile(line.outcome.waits_ms.clone(), 50),
        Measure::Slow => None,
    }
}

/// The nearest-rank percentile.
fn percentile(mut values: Vec<f64>, percent: usize) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let rank = (values.len() * percent).div_ceil(100).max(1);
    values.get(rank - 1).copied()
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let upper = values.get(values.len() / 2)?;
    let lower = values.get((values.len() - 1) / 2)?;
    Some(f64::midpoint(*lower, *upper))
}

/// Formats a number with three significant digits, or a whole number in groups of three.
fn number(value: f64) -> String {
    if value.abs() < 100.0 && value.fract() != 0.0 {
        let digits = if value.abs() < 10.0 { 2 } else { 1 };
        return format!("{value:.digits$}");
    }
    let text = format!("{value:.0}");
    let mut grouped = String::new();
    for (at, digit) in text.char_indices() {
        if at > 0 && (text.len() - at) % 3 == 0 && !grouped.ends_with('-') {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::Outcome;

    fn line(who: Who, round: usize, rate: f64) -> Line {
        let values = [("rate".to_owned(), rate)].into();
        Line {
            figure: "siblings".to_owned(),
            who,
            round,
            amount: 1,
            outcome: Outcome { values, waits_ms: vec![rate] },
            error: None,
        }
    }

    #[test]
    fn ratio_is_median_of_rounds_not_ratio_of_medians() {
        let mut report = Report::new(String::new());
        for (round, (ours, theirs)) in [(10.0, 1.0), (40.0, 20.0), (90.0, 10.0)].into_iter().enumerate() {
            report.lines.extend([line(Who::Runledger, round, ours), line(Who::Upstream, round, theirs)]);
        }
        let row = ROWS.iter().find(|row| row.figure == "siblings").unwrap();
        assert_eq!(report.value(row, Who::Runledger), Some(40.0));
        assert_eq!(report.ratio(row, Who::Upstream), Some(9.0));
        assert!(report.page().contains("10 ×: **not met** |"));
    }

    #[test]
    fn unreachable_goal_states_largest_possible_ratio() {
        let mut report = Report::new(String::new());
        for (who, rate) in [(Who::Runledger, 30.0), (Who::Upstream, 10.0), (Who::Bare, 40.0)] {
            report.lines.push(line(who, 1, rate));
        }
        assert!(report.page().contains("| 10 ×: **not met**; 4 × is possible |"), "{}", report.page());
    }

    #[test]
    fn numbers_have_three_digits_and_grouped_thousands() {
        let texts = [0.123, 12.34, 123.4, 3.0, 1_234_567.8, -1234.5].map(number);
        assert_eq!(texts, ["0.12", "12.3", "123", "3", "1,234,568", "-1,234"]);
    }

    #[test]
    fn percentile_is_measured_value() {
        assert_eq!(percentile((1..=200).map(f64::from).collect(), 99), Some(198.0));
        assert_eq!(percentile(vec![7.0], 99), Some(7.0));
        assert_eq!(percentile(Vec::new(), 50), None);
    }
}
