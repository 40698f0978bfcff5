//! What is measured, with which sizes, by whom, and what is to be reached.

mod figures;

use std::time::Duration;

use super::results::Entry;
use super::table::shown;
use super::target::Target;
pub use figures::PLAN;

/// What a report of hundredths has less of.
const SIZES: [&str; 8] =
    ["--jobs", "--workflows", "--steps", "--runs", "--queued", "--finished", "--unknown", "--seconds"];

/// Which of a line's numbers is the figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value {
    Rate,
    P50,
    P99,
    Named(&'static str),
}

/// How large a report is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    Full,
    Quick,
    /// A hundredth of everything: whether all of it runs, and nothing else.
    Smoke,
}

/// One figure of the report.
#[derive(Debug)]
pub struct Figure {
    /// Its name, and that of its plot.
    pub name: &'static str,
    /// What it is called on the command line.
    pub program: &'static str,
    /// What it is, in a few words, with the names of sizes in braces.
    pub title: &'static str,
    /// The unit of its value.
    pub unit: &'static str,
    /// Which number it is.
    pub value: Value,
    /// Whether less is better.
    pub less: bool,
    /// Other numbers that stand beside it, with their headings.
    pub beside: &'static [(&'static str, Value)],
    /// What is asked of everybody.
    pub arguments: &'static [&'static str],
    /// What is asked instead in a quick report.
    pub quick: &'static [&'static str],
    /// Who is measured.
    pub runs: &'static [Run],
    /// In how many rounds at most.
    pub rounds: usize,
    /// Whether all are measured at the same time, each on a database of its own: what they wait for costs nothing.
    pub together: bool,
    /// How long one measurement may take.
    pub limit: Duration,
    /// What is to be reached.
    pub targets: &'static [Target],
    /// Whether the table of the project's README has it.
    pub headline: bool,
}

/// One contender.
#[derive(Debug)]
pub struct Run {
    /// Its name in the report: one may stand there with two settings.
    pub name: &'static str,
    /// Its name on the command line.
    pub who: &'static str,
    /// What is asked of it alone: where both are given, it overrules the figure's.
    pub arguments: &'static [&'static str],
}

impl Figure {
    /// Whether it is about a snapshot that somebody holds.
    pub fn holds(&self) -> bool {
        self.program.starts_with("snapshot")
    }

    /// The arguments of one run. The last of a name counts, so what is asked of one contender alone holds in every mode.
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

    /// What it is, with the sizes in the place of their names: those that were measured, or else those of this mode.
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

    /// Its contenders in a round: each begins one further, so that nobody is always the first on a fresh server, or behind the same other.
    pub fn turns(&self, round: usize) -> impl Iterator<Item = &Run> {
        let first = (round - 1) % self.runs.len().max(1);
        self.runs[first..].iter().chain(&self.runs[..first])
    }
}

/// The figures that no report has in more rounds than these.
pub fn in_rounds(rounds: usize) -> impl Iterator<Item = &'static str> {
    PLAN.iter().filter(move |figure| figure.rounds == rounds).map(|figure| figure.name)
}

/// The contenders of a figure in their order.
pub fn whos(figure: &Figure) -> impl Iterator<Item = &'static str> + '_ {
    figure.runs.iter().map(|run| run.name)
}

/// The figure of this name.
pub fn figure(name: &str) -> Option<&'static Figure> {
    PLAN.iter().find(|figure| figure.name == name)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::report::results::tests::measured;

    #[test]
    fn every_figure_has_a_name_of_its_own_and_is_one_of_the_programs() {
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
    fn every_target_speaks_of_a_figure_that_was_measured_before_or_of_a_contender() {
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
    fn all_arguments_are_pairs_of_a_name_and_a_whole_number() {
        for figure in PLAN {
            for run in figure.runs {
                let given = figure.arguments(run, Mode::Quick);
                crate::arguments::Arguments::parse(&given).unwrap();
            }
        }
    }

    #[test]
    fn a_heading_tells_the_sizes_that_were_measured() {
        let million = figure("backlog-1m").unwrap();
        assert_eq!(million.heading(Mode::Full, &[]), "draining 50,000 jobs while 1,000,000 more stay queued");
        assert_eq!(million.heading(Mode::Quick, &[]), "draining 30,000 jobs while 200,000 more stay queued");
        for figure in PLAN {
            assert!(!figure.heading(Mode::Full, &[]).contains('{'), "{}", figure.title);
        }
        let mut measured = measured(1, "backlog-1m", "runledger", 1.0);
        let line = measured.line.as_mut().unwrap();
        line.parameters.insert("queued".to_owned(), 7.into());
        assert_eq!(million.heading(Mode::Full, &[measured]), "draining 50,000 jobs while 7 more stay queued");
    }

    #[test]
    fn what_is_asked_of_one_contender_overrules_the_figure_in_every_mode() {
        let drain = figure("drain").unwrap();
        let dbos = drain.runs.iter().find(|run| run.who == "dbos").unwrap();
        for mode in [Mode::Full, Mode::Quick] {
            assert_eq!(drain.arguments(dbos, mode).last().map(String::as_str), Some("10000"));
        }
        assert_eq!(drain.arguments(dbos, Mode::Smoke).last().map(String::as_str), Some("100"));
    }

    #[test]
    fn every_contender_has_a_turn_in_every_round_and_another_is_the_first() {
        let drain = figure("drain").unwrap();
        let whos = |round| drain.turns(round).map(|run| run.who).collect::<Vec<_>>();
        assert_eq!(whos(1).len(), drain.runs.len());
        assert_eq!(whos(1)[1..], whos(2)[..drain.runs.len() - 1]);
        assert_eq!(whos(1), whos(1 + drain.runs.len()));
    }
}
