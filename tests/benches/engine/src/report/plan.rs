//! The plan: the figures, with their sizes, contenders and targets.

mod figures;

use std::time::Duration;

use super::results::Entry;
use super::table::shown;
use super::target::Target;
pub use figures::PLAN;

/// The parameters that a smoke report divides by 100.
const SIZES: [&str; 8] =
    ["--jobs", "--workflows", "--steps", "--runs", "--queued", "--finished", "--unknown", "--seconds"];

/// Which number of a line is the figure's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value {
    Rate,
    P50,
    P99,
    Named(&'static str),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    Full,
    Quick,
    /// One hundredth of every size: shows only that every figure runs.
    Smoke,
}

#[derive(Debug)]
pub struct Figure {
    /// Also the name of its plot.
    pub name: &'static str,
    /// Its name on the command line.
    pub program: &'static str,
    /// A short description, with the names of sizes in braces.
    pub title: &'static str,
    pub unit: &'static str,
    pub value: Value,
    pub less: bool,
    /// Further numbers for the table, with their headings.
    pub beside: &'static [(&'static str, Value)],
    /// The arguments of every contender.
    pub arguments: &'static [&'static str],
    /// The arguments that replace them in a quick or smoke report.
    pub quick: &'static [&'static str],
    pub runs: &'static [Run],
    /// At most this many rounds measure the figure.
    pub rounds: usize,
    /// Whether all contenders run at the same time, each on its own database. For figures whose
    /// contenders mostly wait.
    pub together: bool,
    /// The time limit of one measurement.
    pub limit: Duration,
    pub targets: &'static [Target],
    /// Whether the figure is in the README's table.
    pub headline: bool,
}

#[derive(Debug)]
pub struct Run {
    /// Its name in the report. A contender with two settings has two names.
    pub name: &'static str,
    pub who: &'static str,
    /// Arguments for this contender only. They override the figure's.
    pub arguments: &'static [&'static str],
}

impl Figure {
    /// Whether the figure holds a snapshot.
    pub fn holds(&self) -> bool {
        self.program.starts_with("snapshot")
    }

    /// The arguments of one run. The last value of a name counts, so a contender's own arguments
    /// apply in every mode.
    pub fn arguments(&self, run: &Run, mode: Mode) -> Vec<String> {
        let quick = if mode == Mode::Full { &[] } else { self.quick };
        let mut arguments: Vec<String> =
            [self.arguments, quick, run.arguments].concat().into_iter().map(str::to_owned).collect();
        if mode == Mode::Smoke {
            for pair in arguments.chunks_mut(2) {
                if let [name, value] = pair
                    && SIZES.contains(&name.as_str())
                    && let Ok(size) = value.parse::<u64>()
                {
                    *value = (size / 100).max(1).to_string();
                }
            }
        }
        arguments
    }

    /// The title with the sizes filled in: the measured ones, or else those of `mode`.
    pub fn heading(&self, mode: Mode, entries: &[Entry]) -> String {
        let own = Run { name: "runledger", who: "runledger", arguments: &[] };
        let mut text = self.title.to_owned();
        let mut put = |name: &str, value: &str| {
            let size = value.parse().map_or_else(|_| value.to_owned(), shown);
            text = text.replace(&format!("{{{name}}}"), &size);
        };
        let measured = entries.iter().filter(|entry| entry.figure == self.name && entry.who == own.who);
        for line in measured.filter_map(|entry| entry.line.as_ref()) {
            line.parameters.iter().for_each(|(name, value)| put(name, &value.to_string()));
        }
        for pair in self.arguments(&own, mode).chunks(2).rev() {
            if let [name, value] = pair {
                put(name.trim_start_matches('-'), value);
            }
        }
        text
    }

    /// The contenders in the order of a round. Each round begins with the next contender, so that
    /// none always runs first on a fresh server or always after the same other.
    pub fn turns(&self, round: usize) -> impl Iterator<Item = &Run> {
        let first = (round - 1) % self.runs.len().max(1);
        self.runs[first..].iter().chain(&self.runs[..first])
    }
}

/// The figures that are measured in at most `rounds` rounds.
pub fn in_rounds(rounds: usize) -> impl Iterator<Item = &'static str> {
    PLAN.iter().filter(move |figure| figure.rounds == rounds).map(|figure| figure.name)
}

pub fn whos(figure: &Figure) -> impl Iterator<Item = &'static str> + '_ {
    figure.runs.iter().map(|run| run.name)
}

pub fn figure(name: &str) -> Option<&'static Figure> {
    PLAN.iter().find(|figure| figure.name == name)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::report::results::tests::measured;

    #[test]
    fn figure_names_are_unique_and_programs_know_their_figures() {
        let names: BTreeSet<&str> = PLAN.iter().map(|figure| figure.name).collect();
        assert_eq!(names.len(), PLAN.len());
        for figure in PLAN {
            for run in figure.runs {
                let known = match run.who {
                    "runledger" => crate::engine::FIGURES,
                    "limit" => crate::limit::FIGURES,
                    _ => continue,
                };
                assert!(known.contains(&figure.program), "{} has no {}", run.who, figure.program);
            }
        }
    }

    #[test]
    fn every_target_refers_to_earlier_figure_or_own_contender() {
        for (position, figure) in PLAN.iter().enumerate() {
            for target in figure.targets {
                let known = match target {
                    Target::OfFigure(other, _) => PLAN[..position].iter().any(|one| one.name == *other),
                    Target::OfWho(who, _) => figure.runs.iter().any(|run| run.who == *who),
                    _ => true,
                };
                assert!(known, "{}: {target:?}", figure.name);
            }
        }
    }

    #[test]
    fn all_arguments_parse_as_name_integer_pairs() {
        for figure in PLAN {
            for run in figure.runs {
                let given = figure.arguments(run, Mode::Quick);
                crate::arguments::Arguments::parse(&given).unwrap();
            }
        }
    }

    #[test]
    fn heading_states_measured_sizes() {
        let million = figure("backlog-1m").unwrap();
        assert_eq!(million.heading(Mode::Full, &[]), "50,000 jobs beside 1,000,000 that stay queued");
        assert_eq!(million.heading(Mode::Quick, &[]), "30,000 jobs beside 200,000 that stay queued");
        for figure in PLAN {
            assert!(!figure.heading(Mode::Full, &[]).contains('{'), "{}", figure.title);
        }
        let mut measured = measured(1, "backlog-1m", "runledger", 1.0);
        let line = measured.line.as_mut().unwrap();
        line.parameters.insert("queued".to_owned(), 7.into());
        assert_eq!(million.heading(Mode::Full, &[measured]), "50,000 jobs beside 7 that stay queued");
    }

    #[test]
    fn contender_arguments_override_figure_arguments_in_every_mode() {
        let drain = figure("drain").unwrap();
        let dbos = drain.runs.iter().find(|run| run.who == "dbos").unwrap();
        for mode in [Mode::Full, Mode::Quick] {
            assert_eq!(drain.arguments(dbos, mode).last().map(String::as_str), Some("10000"));
        }
        assert_eq!(drain.arguments(dbos, Mode::Smoke).last().map(String::as_str), Some("100"));
    }

    #[test]
    fn every_round_includes_every_contender_starting_with_another() {
        let drain = figure("drain").unwrap();
        let whos = |round| drain.turns(round).map(|run| run.who).collect::<Vec<_>>();
        assert_eq!(whos(1).len(), drain.runs.len());
        assert_eq!(whos(1)[1..], whos(2)[..drain.runs.len() - 1]);
        assert_eq!(whos(1), whos(1 + drain.runs.len()));
    }
}
