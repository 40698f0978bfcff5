//! Measures this project's engine and upstream's crates in turns on one PostgreSQL 18, and writes
//! the page about it.
//!
//! `runledger-upstream [--rounds N] [--smoke] [--page FILE] [FIGURE]…` prints one JSON line about
//! the machine and one per measurement. `runledger-upstream --again LINES --page FILE` writes the
//! page from such lines without measuring.

mod bare;
mod engine;
mod figure;
mod measure;
mod ours;
mod report;
mod server;
mod upstream;

use std::error::Error;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::figure::{ALL, Figure, Who};
use crate::measure::{Outcome, measure, stored};
use crate::report::{Report, describe};
use crate::server::Server;

/// The result of a measurement.
pub type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

/// The default number of rounds.
const ROUNDS: usize = 3;

/// The date, the commit and the machine of the lines that follow.
#[derive(Debug, Serialize, Deserialize)]
struct Head {
    made: String,
}

#[derive(Debug, Serialize, Deserialize)]
struct Line {
    figure: String,
    who: Who,
    round: usize,
    /// The amount of work requested.
    amount: u64,
    #[serde(flatten)]
    outcome: Outcome,
    /// The reason if there is no outcome.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

struct Settings {
    rounds: usize,
    smoke: bool,
    page: Option<PathBuf>,
    again: Option<PathBuf>,
    only: Vec<String>,
}

#[tokio::main]
async fn main() -> Result<()> {
    let settings = settings(std::env::args().skip(1))?;
    if let Some(lines) = &settings.again {
        return settings.write(&read(&std::fs::read_to_string(lines)?)?);
    }
    let mut server = Server::start().await?;
    let measured = all(&settings, &mut server).await;
    server.end().await?;
    measured
}

async fn all(settings: &Settings, server: &mut Server) -> Result<()> {
    let head = Head { made: describe(server.admin()).await? };
    emit(&head)?;
    let mut report = Report::new(head.made);
    for round in 1..=settings.rounds {
        for figure in ALL.iter().filter(|figure| settings.wants(figure)) {
            for who in Who::ALL {
                let amount = figure.amount(who, settings.smoke);
                if amount > 0 {
                    let line = one(server, figure, who, round, amount).await?;
                    emit(&line)?;
                    report.lines.push(line);
                }
            }
        }
        // Writes the page after each round, so that an interrupted program keeps its complete
        // rounds.
        settings.write(&report)?;
    }
    if settings.smoke && report.lines.iter().any(|line| line.error.is_some()) {
        return Err("something could not be measured".into());
    }
    Ok(())
}

/// Takes one measurement. An error goes into its line, and the other measurements continue.
async fn one(server: &mut Server, figure: &Figure, who: Who, round: usize, amount: u64) -> Result<Line> {
    let mut place = server.place(&format!("{}_{who:?}_{round}", figure.name).to_lowercase()).await?;
    let outcome = match who {
        Who::Runledger => measure::<ours::Ours>(&mut place, figure.kind, amount).await,
        Who::Upstream => measure::<upstream::Upstream<false>>(&mut place, figure.kind, amount).await,
        Who::UpstreamTuned => measure::<upstream::Upstream<true>>(&mut place, figure.kind, amount).await,
        Who::Bare => stored::<bare::Bare>(&mut place, figure.kind, amount).await,
    };
    server.clear(place).await?;
    let (outcome, error) = match outcome {
        Ok(outcome) => (outcome, None),
        Err(error) => (Outcome::default(), Some(error.to_string())),
    };
    Ok(Line { figure: figure.name.to_owned(), who, round, amount, outcome, error })
}

fn settings(mut words: impl Iterator<Item = String>) -> Result<Settings> {
    let mut settings = Settings { rounds: ROUNDS, smoke: false, page: None, again: None, only: Vec::new() };
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("`{word}` needs a value"));
        match word.as_str() {
            "--rounds" => settings.rounds = value()?.parse()?,
            "--page" => settings.page = Some(value()?.into()),
            "--again" => settings.again = Some(value()?.into()),
            "--smoke" => (settings.smoke, settings.rounds) = (true, 1),
            name if ALL.iter().any(|figure| figure.name == name) => settings.only.push(word),
            other => {
                let names: Vec<&str> = ALL.iter().map(|figure| figure.name).collect();
                return Err(format!(
                    "`{other}`: there are --rounds N, --smoke, --page FILE, --again LINES, and the figures {}",
                    names.join(", ")
                )
                .into());
            }
        }
    }
    Ok(settings)
}

impl Settings {
    fn wants(&self, figure: &Figure) -> bool {
        self.only.is_empty() || self.only.iter().any(|name| name == figure.name)
    }

    fn write(&self, report: &Report) -> Result<()> {
        match &self.page {
            Some(page) => Ok(std::fs::write(page, report.page())?),
            None => Ok(()),
        }
    }
}

/// Parses lines that an earlier call printed.
fn read(text: &str) -> Result<Report> {
    let mut lines = text.lines();
    let head: Head = serde_json::from_str(lines.next().unwrap_or_default())?;
    let mut report = Report::new(head.made);
    for line in lines {
        report.lines.push(serde_json::from_str(line)?);
    }
    Ok(report)
}

#[expect(clippy::print_stdout, reason = "the lines are what the program is for")]
fn emit(line: &impl Serialize) -> Result<()> {
    println!("{}", serde_json::to_string(line)?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(words: &str) -> Result<Settings> {
        settings(words.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn only_named_figures_are_measured() {
        let settings = told("--rounds 2 siblings").unwrap();
        let wanted: Vec<_> =
            ALL.iter().filter(|figure| settings.wants(figure)).map(|figure| figure.name).collect();
        assert_eq!((settings.rounds, wanted), (2, vec!["siblings"]));
    }

    #[test]
    fn unknown_figure_or_missing_value_is_refused() {
        let refused = |words| told(words).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(refused("sibling").contains("chain-10, fan-out-100"));
        assert_eq!(refused("--page"), "`--page` needs a value");
    }

    #[test]
    fn printed_lines_reproduce_their_page() {
        let printed = r#"{"made":"Made on paper."}
{"figure":"siblings","who":"runledger","round":1,"amount":2,"rate":30.0,"deadlocks":0.0}
{"figure":"siblings","who":"upstream","round":1,"amount":2,"rate":2.0,"deadlocks":9.0}
{"figure":"chain-3","who":"runledger","round":1,"amount":1,"waits_ms":[7.5]}
{"figure":"chain-3","who":"upstream-tuned","round":1,"amount":1,"error":"broken"}"#;
        let report = read(printed).unwrap();
        let page = report.page();
        for part in ["Made on paper.", "| 15 × | 10 ×: met |", "| 7.50 ms |", "in round 1: broken"] {
            assert!(page.contains(part), "{part}: {page}");
        }
        let again: Vec<String> =
            report.lines.iter().map(|line| serde_json::to_string(line).unwrap()).collect();
        assert_eq!(read(&format!("{{\"made\":\"\"}}\n{}", again.join("\n"))).unwrap().lines.len(), 4);
    }
}
