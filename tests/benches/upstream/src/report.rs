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

const HEAD: &str = "# Beside upstream\n\n\
    This engine and the published crates `runledger-postgres` and `runledger-runtime` 0.12.0 (of [bpcakes/runledger](https://github.com/bpcakes/runledger); beside the name they have nothing \
    in common), measured in turns by one program on one PostgreSQL 18, which upstream needs. Each measurement has a fresh database. A value is the median of the rounds, a ratio that of the rounds' ratios, and \
    says how many times better this engine is. Read ratios: absolute figures are those of one small machine. Work counts as done when the database says so.\n\n";

const SETTINGS: &str = "## Settings\n\
    - **Runledger**: `Db::connect` (10 connections), `App::new(db).start()` (128 runs at once), nothing else.\n\
    - **upstream**: `PgPoolOptions::new()` (10 connections) and what `Supervisor::builder_from_env` takes where no variable is set: polled each 500 ms, 16 jobs a claim, 32 at once.\n\
    - **upstream, tuned**: with what its README offers: polled each 10 ms, 128 jobs a claim and at once, 32 connections, the promoter of intents off. Where no worker takes part it would be the same.\n\n\
    The worker, with connections of its own, and the client share a process. Bodies do nothing; a run carries about 100 bytes and gives nothing, edges are of order alone.\n\n";

const MEANING: &str = "## What is measured\n\
    - **Enqueued, submitted**: without a key, each in a transaction of its own, but where it is said that there are 1,000 in one: a batch here, and there one call after the other, since it has no other way; no worker runs. Clients share a pool of 10 connections. **Bare inserts** are no engine: the same payloads, those of a graph by one statement, in one table with a primary key.\n\
    - **On an idle system**: one graph at a time, from the call that submits it until a look at the database, one each millisecond, finds it completed. 300 to 800 ms pass before the next, so that a graph does not \
      always come just behind a poll. p50 is the median of the rounds' medians, p99 that of the graphs of all rounds; with so few it is the slowest or next to it. A fan-out is one node, a hundred that need it, and one that needs them.\n\
    - **At once**: submitted before the worker starts and the tables analysed, then timed from its start until all have ended, at most a minute; what completed by then is the rate.\n\
    - **Statements** are counted by `pg_stat_statements`, for the role of the engine, client and worker together, with those that begin and end transactions; from before the first graph to after the pause behind the \
      last. The row beyond those of an idle worker is without as many as the idle worker sends in the same time, which was watched for four seconds before.\n\
    - **Commits** are records of the WAL (`pg_walinspect`): transactions that wrote. **WAL** is that of the whole server, in which nothing else happens but its own background work. Images of pages, which are written at the first change after \
      a checkpoint, depend on when that was, and are told apart.\n\
    - **Deadlocks** are `pg_stat_database.deadlocks`, once all sessions of the engine have ended; failed nodes are outcomes that failed here, and dead-lettered jobs there; repeated attempts are those beyond the first of each node.\n\n";

const LIMITS: &str = "## What cannot be compared\n\
    - Upstream writes more than it needs for the result: events and attempts of each job as rows of their own. Here an attempt leaves a row only where it failed. Who wants each start and end as a row has them there and not here.\n\
    - Upstream's worker polls by design, here it is notified. The tuned column shows what remains without long pauses, at the price of a hundred claims a second of an idle worker.\n\
    - One client that stores one thing after the other waits for a commit each time, here and there: the bare inserts are as much as this disk gives, and *the most* is their ratio to upstream. Clients at the same time share commits here, and not there.\n\
    - p99 of so few graphs says little; a job of upstream whose end was lost in a deadlock goes on only after its lease of a minute, which is then in the p99 and in the siblings.\n\
    - Upstream gets fewer graphs where it needs longer; so its tables are smaller, which is to its advantage.\n";

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
        let mut page =
            format!("{HEAD}{}\n\nRounds: {rounds}, by\n\n```sh\n{}\n```\n\n", self.made, machine::command());
        page.push_str("## Speed\n\n| | Runledger | upstream | ratio | to reach | upstream, tuned | ratio | bare inserts |\n|---|---|---|---|---|---|---|---|\n");
        for row in ROWS.iter().filter(|row| self.value(row, Who::Runledger).is_some()) {
            self.speed(&mut page, row);
        }
        self.polls(&mut page);
        page.push_str("\n## Costs of one graph, alone\n\n| | Runledger | upstream | ratio | upstream, tuned | ratio |\n|---|---|---|---|---|---|\n");
        for cost in COSTS.iter().filter(|cost| self.cost(cost, Who::Runledger).is_some()) {
            self.costs(&mut page, cost);
        }
        page.push_str("\n## Conflicts, in all rounds\n\n| | Runledger | upstream | upstream, tuned |\n|---|---|---|---|\n");
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
                let most = most.map(|most| format!("; {} × is the most", number(most)));
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
                "\nOf the {} ms of upstream's chain of {length} at its defaults about {} ms are the pauses of its poll.",
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
        page.push_str("\nHow many a round, of Runledger, upstream, upstream tuned and bare inserts:\n\n");
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
    fn a_ratio_is_the_median_of_the_rounds_and_not_the_ratio_of_the_medians() {
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
    fn where_a_goal_cannot_be_met_the_page_says_how_much_can() {
        let mut report = Report::new(String::new());
        for (who, rate) in [(Who::Runledger, 30.0), (Who::Upstream, 10.0), (Who::Bare, 40.0)] {
            report.lines.push(line(who, 1, rate));
        }
        assert!(report.page().contains("| 10 ×: **not met**; 4 × is the most |"), "{}", report.page());
    }

    #[test]
    fn numbers_have_three_digits_and_groups() {
        let texts = [0.123, 12.34, 123.4, 3.0, 1_234_567.8, -1234.5].map(number);
        assert_eq!(texts, ["0.12", "12.3", "123", "3", "1,234,568", "-1,234"]);
    }

    #[test]
    fn a_percentile_is_a_value_that_was_measured() {
        assert_eq!(percentile((1..=200).map(f64::from).collect(), 99), Some(198.0));
        assert_eq!(percentile(vec![7.0], 99), Some(7.0));
        assert_eq!(percentile(Vec::new(), 50), None);
    }
}
