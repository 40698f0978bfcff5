//! Measures this project's engine and upstream's crates on one PostgreSQL 18, in turns, and writes the page about it.
//!
//! `runledger-upstream [--rounds N] [--smoke] [--page FILE] [FIGURE]…` prints one JSON line a measurement.

mod engine;
mod figure;
mod measure;
mod ours;
mod report;
mod server;
mod upstream;

use std::error::Error;
use std::path::PathBuf;

use serde::Serialize;

use crate::figure::{ALL, Figure, Who};
use crate::measure::{Outcome, measure};
use crate::report::{Report, describe};
use crate::server::Server;

/// What every step of a measurement returns.
pub type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

/// How often everything is measured, where nobody says.
const ROUNDS: usize = 3;

/// One measurement.
#[derive(Debug, Serialize)]
struct Line {
    figure: &'static str,
    who: Who,
    round: usize,
    /// How many were asked for.
    amount: u64,
    #[serde(flatten)]
    outcome: Outcome,
    /// Why there is no outcome.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

struct Settings {
    rounds: usize,
    smoke: bool,
    page: Option<PathBuf>,
    only: Vec<String>,
}

#[tokio::main]
async fn main() -> Result<()> {
    let settings = settings(std::env::args().skip(1))?;
    let mut server = Server::start().await?;
    let measured = all(&settings, &mut server).await;
    server.end().await?;
    measured
}

async fn all(settings: &Settings, server: &mut Server) -> Result<()> {
    let mut report = Report::new(describe(server.admin()).await?);
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
        // After each round: whoever interrupts the program keeps the rounds that are whole.
        if let Some(page) = &settings.page {
            std::fs::write(page, report.page())?;
        }
    }
    if settings.smoke && report.lines.iter().any(|line| line.error.is_some()) {
        return Err("something could not be measured".into());
    }
    Ok(())
}

/// What goes wrong with one measurement is in its line, and the others go on.
async fn one(server: &mut Server, figure: &Figure, who: Who, round: usize, amount: u64) -> Result<Line> {
    let mut place = server.place(&format!("{}_{who:?}_{round}", figure.name).to_lowercase()).await?;
    let outcome = match who {
        Who::Runledger => measure::<ours::Ours>(&mut place, figure.kind, amount).await,
        Who::Upstream => measure::<upstream::Upstream<false>>(&mut place, figure.kind, amount).await,
        Who::UpstreamTuned => measure::<upstream::Upstream<true>>(&mut place, figure.kind, amount).await,
    };
    server.clear(place).await?;
    let (outcome, error) = match outcome {
        Ok(outcome) => (outcome, None),
        Err(error) => (Outcome::default(), Some(error.to_string())),
    };
    Ok(Line { figure: figure.name, who, round, amount, outcome, error })
}

fn settings(mut words: impl Iterator<Item = String>) -> Result<Settings> {
    let mut settings = Settings { rounds: ROUNDS, smoke: false, page: None, only: Vec::new() };
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("`{word}` needs a value"));
        match word.as_str() {
            "--rounds" => settings.rounds = value()?.parse()?,
            "--page" => settings.page = Some(value()?.into()),
            "--smoke" => (settings.smoke, settings.rounds) = (true, 1),
            name if ALL.iter().any(|figure| figure.name == name) => settings.only.push(word),
            other => {
                let names: Vec<&str> = ALL.iter().map(|figure| figure.name).collect();
                return Err(format!(
                    "`{other}`: there are --rounds N, --smoke, --page FILE, and the figures {}",
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
}

#[expect(clippy::print_stdout, reason = "the lines are what the program is for")]
fn emit(line: &Line) -> Result<()> {
    println!("{}", serde_json::to_string(line)?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(words: &str) -> Result<Settings> {
        settings(words.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn figures_that_are_named_are_measured_and_no_others() {
        let settings = read("--rounds 2 siblings").unwrap();
        let wanted: Vec<_> =
            ALL.iter().filter(|figure| settings.wants(figure)).map(|figure| figure.name).collect();
        assert_eq!((settings.rounds, wanted), (2, vec!["siblings"]));
    }

    #[test]
    fn what_is_not_there_is_refused_with_what_is() {
        let refused = |words| read(words).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(refused("sibling").contains("chain-10, fan-out-100"));
        assert_eq!(refused("--page"), "`--page` needs a value");
    }
}
