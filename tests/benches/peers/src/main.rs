//! Measures one figure of one peer crate once, and prints one JSON line on stdout.
//!
//! `runledger-peers <who> <figure> [--name value]…` needs a fresh database in `DATABASE_URL`.
//! `runledger-peers list` prints the peers and figures.

mod body;
mod database;
mod figure;
mod measure;
mod peer;
mod peers;
mod process;

use std::error::Error;

use serde::Serialize;

use crate::{
    figure::{Figure, Outcome},
    peer::Entry,
};

/// The result of a measurement.
pub type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// A peer, a figure of that peer, and the figure's default settings.
#[derive(Serialize)]
struct Listed {
    #[serde(flatten)]
    figure: Figure,
    who: &'static str,
    version: String,
}

#[derive(Serialize)]
struct Line {
    #[serde(flatten)]
    figure: Figure,
    who: &'static str,
    version: String,
    #[serde(flatten)]
    outcome: Outcome,
    notes: String,
}

#[tokio::main]
async fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["list"] => list(),
        ["worker", who, figure, settings @ ..] => {
            let entry = peer::find(who)?;
            (entry.serve)(url()?, figure::parse(entry.figures, figure, settings)?).await
        }
        [who, figure, settings @ ..] => run(peer::find(who)?, figure, settings).await,
        [] | [_] => Err("usage: runledger-peers list | <who> <figure> [--name value]…".into()),
    }
}

fn list() -> Result<()> {
    for entry in peer::ALL {
        for figure in entry.figures {
            emit(&Listed { figure: *figure, who: entry.name, version: locked_version(entry.name)? })?;
        }
    }
    Ok(())
}

async fn run(entry: &Entry, figure: &str, settings: &[&str]) -> Result<()> {
    let figure = figure::parse(entry.figures, figure, settings)?;
    let (outcome, notes) = (entry.measure)(url()?, figure).await?;
    emit(&Line { figure, who: entry.name, version: locked_version(entry.name)?, outcome, notes })
}

fn url() -> Result<String> {
    Ok(std::env::var("DATABASE_URL").map_err(|_| "DATABASE_URL names no database")?)
}

/// The version that was built, from the lock file.
fn locked_version(name: &str) -> Result<String> {
    let head = format!("name = \"{name}\"\nversion = \"");
    let (_, rest) = include_str!("../Cargo.lock")
        .split_once(&head)
        .ok_or_else(|| format!("Cargo.lock does not name `{name}`"))?;
    Ok(rest.split('"').next().unwrap_or_default().to_owned())
}

#[expect(clippy::print_stdout, reason = "the lines are what the program is for")]
fn emit(line: &impl Serialize) -> Result<()> {
    println!("{}", serde_json::to_string(line)?);
    Ok(())
}
