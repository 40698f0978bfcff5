//! The report's page of tables.

use std::fmt::Write;

use super::plan::{Figure, Mode, PLAN, Value, in_rounds, whos};
use super::results::{Entry, Head};
use super::target::sentence;
use crate::line::Line;

const HEAD: &str = "# Benchmarks

This page compares Runledger with bare SQL and with other job and workflow crates, on one machine.

- **The limit** is the bare SQL of the same work through the same driver, without an engine.
- **Peers** are crates from the registry with their best documented settings. A slow peer gets less work; its amount is
  beside its ratio.
- **A value** is the median of the rounds, with the lowest and the highest. The contenders take turns within a round.
- **A ratio** is Runledger's value divided by the other's, the median of the rounds. Compare ratios: absolute values
  belong to this machine.
- **Work is done** when the database shows it.

[Decision 0006](../decisions/0006-throughput.md) explains the missed targets.

";

/// The parameters that give the amount of work behind a value.
const AMOUNTS: [&str; 4] = ["jobs", "workflows", "steps", "runs"];

const COMMANDS: &str = "
## Repeat the measurements

```sh
cargo build --release -p runledger-bench
cargo build --release --manifest-path tests/benches/peers/Cargo.toml
target/release/bench report                  # everything; continues an interrupted report
target/release/bench report --quick          # smaller sizes, one round
target/release/bench report --only drain     # one figure, or a family such as `workflows`
target/release/bench report --only snapshot --hold 600   # holds the snapshot for ten minutes
```

The report writes this page, the plots, `results.jsonl` with one line per measurement, and the table in the README. It
fails if a contender failed. One measurement on an empty database:

```sh
DATABASE_URL=… target/release/bench runledger drain --jobs 100000   # or `limit` instead of `runledger`
```

`runledger-peers` measures one peer in the same way.

## What is not compared, and why

`tests/benches/peers/README.md` describes the figures of each peer. `graphile_worker` deletes its jobs and does not
fence its locks. Runledger keeps the history of its jobs. The limit of `workflows` contains no enqueue, claim or
settlement. The limit of `enqueue` writes one row, and Runledger writes two.

- **Recovery** has no limit, because bare SQL has no worker. Of the peers, only a restarted `dbos` process continues its
  own runs at its start. The other peers continue the jobs of a killed process after a fixed time, by default: 30 s
  (`underway`, `Task::heartbeat`), 60 s (`apalis-postgres`, `Config::heartbeat_interval` times `missed_heartbeats`), one
  hour (`riverqueue`, `ClientBuilder::with_rescue_after`), or never (`graphile_worker`, unless
  `WorkerOptions::worker_recovery` is on; then five minutes). These times are settings, not measurements.
- **Memory** has no limit, because bare SQL holds no workflow. A job of `graphile_worker` has no recorded steps.
  `underway` holds two connections per running task, and the server does not allow enough of them. `apalis-postgres` and
  `riverqueue` record no steps.
- **Idle** has no limit: bare SQL sends nothing without work.
- **Sleepers** have no peer. `dbos` keeps a sleeping workflow as a task of its process. `underway` reads all rows of a
  queue at each claim. The others have delayed jobs, but no workflows that sleep between recorded steps. One sleeper has
  run in the worker, and the others are copies of its rows, so the figure measures rows and wake-ups. The test
  `tests/leaks` measures what a worker keeps in memory for ten thousand suspended runs. The limit has fewer runs.
- **Backlogs**: `dbos` and `riverqueue` need minutes for a million jobs. `underway` reads all of them at each claim.
  `graphile_worker` keeps no finished jobs. The finished jobs of `apalis-postgres` are marked by one statement.
- **Snapshot**: `dbos` and `apalis-postgres` cannot enqueue many jobs in one transaction of the caller, and `riverqueue`
  needs ten seconds for it. `underway` has a smaller load, because it does not run 2,000 jobs per second.
- **Processes**: only the fastest peer by one process, `graphile_worker`.
- **1,000 per second**: `underway` does not run so many. `dbos` starts the jobs in the process that enqueues them.
";

pub fn page(head: &Head, entries: &[Entry]) -> String {
    let (machine, server) = machine_and_server(head);
    let mut page = format!(
        "{HEAD}{}\n\n- **Machine**: {machine}\n- **Server**: {server}\n\n{}",
        made(head),
        rounds(entries)
    );
    for figure in PLAN {
        let of_figure: Vec<&Entry> = entries.iter().filter(|entry| entry.figure == figure.name).collect();
        if of_figure.is_empty() {
            continue;
        }
        // Writing to a string does not fail.
        let _ = write!(page, "\n## {}\n\n{}.\n\n", figure.name, capital(&figure.heading(head.mode, entries)));
        if let Some(targets) = sentence(figure, entries) {
            let _ = writeln!(page, "Targets: {targets}.\n");
        }
        page += &table(figure, entries);
        page += &remarks(&of_figure);
        if let Some(again) = again(entries, figure.name) {
            let _ = writeln!(page, "- {again}");
        }
        if of_figure.iter().any(|entry| entry.line.is_some()) {
            let _ = writeln!(page, "\n![{0}]({0}.svg)", figure.name);
        }
    }
    page + COMMANDS
}

/// How long the rounds took, and which figures are in only some of them.
fn rounds(entries: &[Entry]) -> String {
    let last = entries.iter().map(|entry| entry.round).max().unwrap_or_default();
    let minutes: Vec<String> =
        (1..=last).map(|round| shown((seconds(entries, round) / 60.0).ceil())).collect();
    let named = |rounds| in_rounds(rounds).map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    format!(
        "The rounds took {} minutes. These figures were measured in one round, because they count or take long: {}. These in two rounds: {}.\n",
        minutes.join(", "),
        named(1),
        named(2)
    )
}

fn seconds(entries: &[Entry], round: usize) -> f64 {
    let of = |figure: &Figure| {
        let took = entries.iter().filter(|entry| entry.round == round && entry.figure == figure.name);
        let took = took.map(|entry| entry.took);
        if figure.together { took.fold(0.0, f64::max) } else { took.sum() }
    };
    PLAN.iter().map(of).sum()
}

/// The commit, date, processor and size of the report.
pub fn made(head: &Head) -> String {
    let size = match head.mode {
        Mode::Full => "",
        Mode::Smoke => " A smoke report with a hundredth of each size: its values have no meaning.",
        Mode::Quick => " A quick report with smaller sizes and more noise.",
    };
    let rounds = if head.rounds == 1 { "one round".to_owned() } else { format!("{} rounds", head.rounds) };
    let of = head.build.as_ref().map_or_else(String::new, |build| {
        let changes = if build.dirty { " with uncommitted changes" } else { "" };
        format!(" of commit `{}`{changes}", build.commit)
    });
    let (machine, _) = machine_and_server(head);
    let cores = machine.split(',').next().unwrap_or_default();
    format!("Measured on {}{of}, in {rounds}, on {cores}.{size}", head.date)
}

/// The descriptions of the machine and of its server.
fn machine_and_server(head: &Head) -> (&str, String) {
    let server = ", PostgreSQL ";
    let (machine, version) = head.machine.split_once(server).unwrap_or((&head.machine, ""));
    (machine, format!("PostgreSQL {version}"))
}

fn table(figure: &Figure, entries: &[Entry]) -> String {
    let mut text = String::from("| | median | lowest – highest | ratio |");
    for (heading, _) in figure.beside {
        text += &format!(" {heading} |");
    }
    text += &format!("\n|---|{}\n", "---|".repeat(3 + figure.beside.len()));
    let own = median(entries, figure.name, "runledger", figure.value);
    for who in whos(figure) {
        let Some(value) = median(entries, figure.name, who, figure.value) else {
            if let Some(why) = failure(entries, figure.name, who) {
                let _ = writeln!(text, "| `{who}` | failed: {why} |{}", " |".repeat(2 + figure.beside.len()));
            }
            continue;
        };
        let ratio = match own {
            Some(_) if who != "runledger" => {
                ratio(entries, figure, who) + &of_other_size(entries, figure.name, who)
            }
            _ => String::new(),
        };
        let (least, most) = range(entries, figure, who);
        let _ = write!(
            text,
            "| {} | {} {} | {} – {} | {ratio} |",
            name(entries, figure.name, who),
            shown(value),
            figure.unit,
            shown(least),
            shown(most)
        );
        for (_, value) in figure.beside {
            let beside = median(entries, figure.name, who, *value).map_or_else(String::new, shown);
            let _ = write!(text, " {beside} |");
        }
        text.push('\n');
    }
    text
}

/// The engine's value divided by another contender's. Empty if that contender's value is zero.
pub fn ratio(entries: &[Entry], figure: &Figure, who: &str) -> String {
    let times = times(entries, (figure.name, "runledger"), (figure.name, who), figure.value);
    times.filter(|times| times.is_finite()).map_or_else(String::new, shown)
}

/// The median over the rounds of one value divided by another, each named by figure and contender.
/// Only rounds with both values count. A faster machine in one round changes both values alike.
pub fn times(entries: &[Entry], one: (&str, &str), other: (&str, &str), value: Value) -> Option<f64> {
    let of = |(figure, who): (&str, &str), round: usize| {
        let here = entries.iter().filter(|entry| entry.round == round);
        let mut lines = here.filter(|entry| entry.figure == figure && entry.who == who);
        number(lines.find_map(|entry| entry.line.as_ref())?, value)
    };
    let last = entries.iter().map(|entry| entry.round).max()?;
    middle((1..=last).filter_map(|round| Some(of(one, round)? / of(other, round)?)).collect())
}

/// A contender's amount of work, if it differs from the engine's.
fn of_other_size(entries: &[Entry], figure: &str, who: &str) -> String {
    let size = |who: &str, name: &str| {
        let mut of_who = entries.iter().filter(|entry| entry.figure == figure && entry.who == who);
        of_who.find_map(|entry| entry.line.as_ref()?.parameters.get(name)?.as_u64())
    };
    let others = AMOUNTS.iter().filter_map(|name| {
        let (own, other) = (size("runledger", name)?, size(who, name)?);
        (own != other).then(|| format!(" (of {} {name})", shown(other as f64)))
    });
    others.collect()
}

/// The parameters and notes of each contender.
fn remarks(of_figure: &[&Entry]) -> String {
    let mut text = String::new();
    let mut seen = Vec::new();
    for entry in of_figure {
        let Some(line) = &entry.line else { continue };
        if seen.contains(&&entry.who) {
            continue;
        }
        seen.push(&entry.who);
        let sizes: Vec<String> =
            line.parameters.iter().map(|(name, value)| format!("{name} {value}")).collect();
        let notes = if line.notes.is_empty() { String::new() } else { format!("; {}", line.notes) };
        let _ = writeln!(text, "- {}: {}{notes}", entry.who, sizes.join(", "));
    }
    format!("\n{text}")
}

/// The date and commit if `--only` measured the figure again after the report.
pub fn again(entries: &[Entry], figure: &str) -> Option<String> {
    let entry = entries.iter().find(|entry| entry.figure == figure && entry.again.is_some())?;
    let commits = entries.iter().filter(|entry| entry.figure == figure);
    let commit = commits.filter_map(|entry| entry.line.as_ref()).find_map(|line| line.commit.as_deref());
    let of = commit.map_or_else(String::new, |commit| format!(" of commit `{commit}`"));
    Some(format!("measured alone on {}{of}", entry.again.as_deref()?))
}

pub fn median(entries: &[Entry], figure: &str, who: &str, value: Value) -> Option<f64> {
    middle(values(entries, figure, who, value).collect())
}

fn middle(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let (low, high) = (values.get(values.len().checked_sub(1)? / 2)?, values.get(values.len() / 2)?);
    Some(f64::midpoint(*low, *high))
}

fn range(entries: &[Entry], figure: &Figure, who: &str) -> (f64, f64) {
    values(entries, figure.name, who, figure.value)
        .fold((f64::INFINITY, f64::NEG_INFINITY), |(least, most), value| (value.min(least), value.max(most)))
}

fn values<'e>(
    entries: &'e [Entry],
    figure: &'e str,
    who: &'e str,
    value: Value,
) -> impl Iterator<Item = f64> + 'e {
    let of_who = entries.iter().filter(move |entry| entry.figure == figure && entry.who == who);
    of_who.filter_map(|entry| entry.line.as_ref()).filter_map(move |line| number(line, value))
}

fn number(line: &Line, value: Value) -> Option<f64> {
    match value {
        Value::Rate => line.rate,
        Value::P50 => line.p50_ms,
        Value::P99 => line.p99_ms,
        Value::Named(name) => line.more.get(name).copied(),
    }
}

/// Why a contender has no value.
pub fn failure<'e>(entries: &'e [Entry], figure: &str, who: &str) -> Option<&'e str> {
    let mut of_who = entries.iter().filter(|entry| entry.figure == figure && entry.who == who);
    of_who.find_map(|entry| entry.failed.as_deref())
}

/// A contender, with its version if it is a peer.
pub fn name(entries: &[Entry], figure: &str, who: &str) -> String {
    let mut of_who = entries.iter().filter(|entry| entry.figure == figure && entry.who == who);
    match (who, of_who.find_map(|entry| entry.line.as_ref())) {
        ("limit", _) => "the limit".to_owned(),
        (_, Some(line)) if line.who == "limit" => format!("the {who}"),
        ("runledger", _) => "**Runledger**".to_owned(),
        // The contender's name may append a setting to the crate's name.
        (_, Some(line)) => {
            format!("`{}` {}{}", line.who, line.version, who.strip_prefix(&*line.who).unwrap_or_default())
        }
        (_, None) => format!("`{who}`"),
    }
}

/// Formats a number: thousands separated, small numbers with up to three significant digits.
pub fn shown(value: f64) -> String {
    let digits = match value.abs() {
        0.0 => 0,
        ..0.1 => 3,
        ..10.0 => 2,
        ..100.0 => 1,
        _ => 0,
    };
    let text = format!("{value:.digits$}");
    match text.split_once('.') {
        Some((whole, part)) if part.trim_end_matches('0').is_empty() => whole.to_owned(),
        Some((whole, part)) => format!("{whole}.{}", part.trim_end_matches('0')),
        None => thousands(&text),
    }
}

fn thousands(digits: &str) -> String {
    let (sign, digits) = digits.split_at(digits.len() - digits.trim_start_matches('-').len());
    let groups: Vec<&str> = digits
        .as_bytes()
        .rchunks(3)
        .rev()
        .map(|group| std::str::from_utf8(group).unwrap_or_default())
        .collect();
    format!("{sign}{}", groups.join(","))
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::plan::figure;
    use crate::report::results::tests::measured;

    #[test]
    fn numbers_are_shown_with_significant_digits_and_grouped_thousands() {
        let written: Vec<String> =
            [0.0, 0.0412, 0.6, 1.5, 6.0, 42.26, 100.4, 1536.0, 1_234_567.8].map(shown).into();
        assert_eq!(written, ["0", "0.041", "0.6", "1.5", "6", "42.3", "100", "1,536", "1,234,568"]);
        assert_eq!(thousands("-123456"), "-123,456");
    }

    #[test]
    fn median_averages_middle_two_of_even_count() {
        let of = |values: &[f64]| {
            let entries: Vec<_> = values.iter().map(|value| measured(1, "drain", "limit", *value)).collect();
            median(&entries, "drain", "limit", Value::Rate)
        };
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[3.0]), Some(3.0));
        assert_eq!(of(&[9.0, 1.0]), Some(5.0));
        assert_eq!(of(&[9.0, 1.0, 2.0]), Some(2.0));
    }

    #[test]
    fn failed_contender_has_row_with_reason() {
        let mut failed = measured(1, "drain", "dbos", 1.0);
        (failed.line, failed.failed) = (None, Some("timed out".to_owned()));
        let entries = [measured(1, "drain", "limit", 100.0), measured(1, "drain", "runledger", 50.0), failed];
        let text = table(figure("drain").unwrap(), &entries);
        assert!(text.contains("| the limit | 100 jobs/s | 100 – 100 | 0.5 |\n"), "{text}");
        assert!(text.contains("| `dbos` | failed: timed out | | |\n"), "{text}");
        assert!(!text.contains("underway"), "{text}");
    }

    #[test]
    fn ratio_is_median_of_round_ratios() {
        let round = |round, limit, own| {
            [measured(round, "drain", "limit", limit), measured(round, "drain", "runledger", own)]
        };
        let mut entries = [round(1, 100.0, 50.0), round(2, 300.0, 180.0), round(3, 200.0, 110.0)].concat();
        let drain = figure("drain").unwrap();
        assert_eq!(ratio(&entries, drain, "limit"), "0.55");
        // Rounds without both values do not count.
        entries.push(measured(4, "drain", "runledger", 1.0));
        assert_eq!(ratio(&entries, drain, "limit"), "0.55");
        assert_eq!(ratio(&[measured(1, "drain", "limit", 0.0), entries[1].clone()], drain, "limit"), "");
        assert_eq!(ratio(&entries, drain, "dbos"), "");
    }

    #[test]
    fn ratio_of_different_workload_states_its_size() {
        let of = |who: &str, jobs: u64| {
            let mut entry = measured(1, "drain", who, 10.0);
            if let Some(line) = &mut entry.line {
                line.parameters.insert("jobs".to_owned(), jobs.into());
            }
            entry
        };
        let text =
            table(figure("drain").unwrap(), &[of("limit", 9), of("runledger", 9), of("underway", 5000)]);
        assert!(text.contains("| the limit | 10 jobs/s | 10 – 10 | 1 |\n"), "{text}");
        assert!(text.contains(" | 1 (of 5,000 jobs) |\n"), "{text}");
    }

    #[test]
    fn time_of_concurrent_measurements_is_counted_once() {
        let entries = [
            measured(1, "drain", "limit", 1.0),
            measured(1, "drain", "runledger", 1.0),
            measured(1, "idle", "runledger", 1.0),
            measured(1, "idle", "dbos", 1.0),
            measured(2, "drain", "limit", 1.0),
        ];
        assert_eq!([1, 2].map(|round| seconds(&entries, round)), [3.0, 1.0]);
        assert!(rounds(&entries).contains("`snapshot`") && !rounds(&entries).contains("`drain`"));
    }

    #[test]
    fn every_table_row_has_as_many_columns_as_header() {
        for figure in PLAN {
            let entries: Vec<_> = whos(figure).map(|who| measured(1, figure.name, who, 2.0)).collect();
            let text = table(figure, &entries);
            let columns: Vec<usize> = text.lines().map(|line| line.matches('|').count()).collect();
            assert!(columns.iter().all(|n| *n == columns[0]), "{text}");
        }
    }
}
