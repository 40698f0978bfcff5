//! The results in `results.jsonl`: a head that describes the report, then one line per measurement.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::plan::{Mode, PLAN};
use crate::Res;
use crate::build::Build;
use crate::line::Line;

/// Describes the report that the results belong to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    pub mode: Mode,
    pub rounds: usize,
    /// The day on which the report started.
    pub date: String,
    /// The machine, the server and its settings.
    pub machine: String,
    /// The measured build. `None` in files of older programs.
    #[serde(default)]
    pub build: Option<Build>,
    /// The `--hold` seconds, if given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold: Option<u64>,
}

/// One measurement, or the reason for its failure.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Entry {
    pub round: usize,
    pub figure: String,
    pub who: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<Line>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
    /// The duration in seconds, including the untimed parts: creating and filling the database.
    #[serde(default)]
    pub took: f64,
    /// The day of the measurement, if `--only` took it after the report.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub again: Option<String>,
}

/// A measurement that the report still needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    pub round: usize,
    pub figure: &'static str,
    pub who: &'static str,
}

/// The results, in memory and in the file.
#[derive(Debug)]
pub struct Results {
    path: PathBuf,
    pub head: Head,
    pub entries: Vec<Entry>,
}

impl Results {
    /// Reads the file. Returns `None` without a file, or if an older program wrote it. Skips an
    /// incomplete last line.
    pub fn read(path: &Path) -> Option<Self> {
        let text = fs::read_to_string(path).ok()?;
        let (head, rest) = text.split_once('\n')?;
        let entries = rest.lines().map_while(|line| serde_json::from_str(line).ok()).collect();
        Some(Self { path: path.to_owned(), head: serde_json::from_str(head).ok()?, entries })
    }

    /// Starts an empty file.
    pub fn begin(path: &Path, head: Head) -> Res<Self> {
        let results = Self { path: path.to_owned(), head, entries: Vec::new() };
        results.write()?;
        Ok(results)
    }

    /// Adds a measurement and appends it to the file.
    pub fn add(&mut self, entry: Entry) -> Res<()> {
        let mut file = fs::OpenOptions::new().append(true).open(&self.path)?;
        writeln!(file, "{}", serde_json::to_string(&entry)?)?;
        self.entries.push(entry);
        Ok(())
    }

    /// Removes the figures that are measured again, and an incomplete last line.
    pub fn forget(&mut self, wanted: &[Wanted]) -> Res<()> {
        self.entries.retain(|entry| !wanted.iter().any(|wanted| wanted.figure == entry.figure));
        self.write()
    }

    /// The measurements that these figures still lack, in the report's order.
    pub fn missing(&self, only: &[String]) -> Vec<Wanted> {
        let mut all = wanted(self.head.rounds, only);
        all.retain(|wanted| {
            !self.entries.iter().any(|entry| {
                (entry.round, entry.figure.as_str(), entry.who.as_str())
                    == (wanted.round, wanted.figure, wanted.who)
            })
        });
        all
    }

    /// Replaces the whole file in one step, so that a killed report loses nothing.
    fn write(&self) -> Res<()> {
        let mut text = serde_json::to_string(&self.head)? + "\n";
        for entry in &self.entries {
            text += &(serde_json::to_string(entry)? + "\n");
        }
        let fresh = self.path.with_extension("jsonl.new");
        fs::write(&fresh, text)?;
        Ok(fs::rename(&fresh, &self.path)?)
    }
}

/// All measurements of these figures (of every figure if `only` is empty), by round, figure and
/// contender.
pub fn wanted(rounds: usize, only: &[String]) -> Vec<Wanted> {
    let mut all = Vec::new();
    for round in 1..=rounds {
        let chosen = PLAN.iter().filter(|figure| {
            round <= figure.rounds && (only.is_empty() || only.iter().any(|name| names(name, figure.name)))
        });
        for figure in chosen {
            all.extend(figure.turns(round).map(|run| Wanted { round, figure: figure.name, who: run.name }));
        }
    }
    all
}

/// Whether a command-line word names a figure: its full name, or its family before a hyphen.
fn names(word: &str, figure: &str) -> bool {
    figure.strip_prefix(word).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
}

#[cfg(test)]
pub mod tests {
    use std::time::Duration;

    use super::*;
    use crate::arguments::Arguments;

    /// An entry with a number for every value.
    pub fn measured(round: usize, figure: &str, who: &str, value: f64) -> Entry {
        let mut line = Line::named(who, figure, &Arguments::default(), 1, Duration::from_secs(1));
        (line.rate, line.p50_ms, line.p99_ms) = (Some(value), Some(value), Some(value * 10.0));
        let (figure, who) = (figure.to_owned(), who.to_owned());
        Entry { round, figure, who, line: Some(line), failed: None, took: 1.0, again: None }
    }

    fn head() -> Head {
        Head {
            mode: Mode::Quick,
            rounds: 2,
            date: "2026-01-01".to_owned(),
            machine: "m".to_owned(),
            build: None,
            hold: None,
        }
    }

    fn file(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("runledger-bench-{name}-{}.jsonl", std::process::id()))
    }

    #[test]
    fn interrupted_report_resumes_where_it_stopped() {
        let path = file("cut");
        let mut results = Results::begin(&path, head()).unwrap();
        let all = wanted(2, &[]);
        for wanted in &all[..3] {
            results.add(measured(wanted.round, wanted.figure, wanted.who, 1.0)).unwrap();
        }
        let mut half = fs::read_to_string(&path).unwrap();
        half.push_str("{\"round\":1,\"fig");
        fs::write(&path, half).unwrap();
        let mut again = Results::read(&path).unwrap();
        assert_eq!(again.head, head());
        assert_eq!(again.missing(&[]), all[3..]);
        again.forget(&[]).unwrap();
        again.add(measured(1, all[3].figure, all[3].who, 1.0)).unwrap();
        assert_eq!(Results::read(&path).unwrap().missing(&[]), all[4..]);
        fs::remove_file(path).unwrap();
    }

    #[test]
    fn remeasured_figure_keeps_results_of_others() {
        let path = file("again");
        let mut results = Results::begin(&path, head()).unwrap();
        results.add(measured(1, "drain", "limit", 1.0)).unwrap();
        results.add(measured(1, "bulk", "limit", 1.0)).unwrap();
        results.forget(&wanted(2, &["drain".to_owned()])).unwrap();
        let kept: Vec<_> =
            Results::read(&path).unwrap().entries.into_iter().map(|entry| entry.figure).collect();
        assert_eq!(kept, ["bulk"]);
        fs::remove_file(path).unwrap();
    }

    #[test]
    fn figure_filter_matches_name_or_family_but_not_prefix() {
        assert!(names("workflows", "workflows-8") && names("workflows-8", "workflows-8"));
        assert!(!names("workflows-6", "workflows-64") && !names("processes-1", "processes-16"));
    }

    #[test]
    fn heavy_figures_are_measured_only_in_first_round() {
        let snapshot = wanted(3, &["snapshot".to_owned()]);
        assert!(!snapshot.is_empty() && snapshot.iter().all(|wanted| wanted.round == 1));
    }
}
