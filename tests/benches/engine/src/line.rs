//! The line that a measurement prints.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::arguments::Arguments;

/// One measurement.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Line {
    /// What was measured.
    pub figure: String,
    /// Who was measured.
    pub who: String,
    /// Its version.
    pub version: String,
    /// With which sizes.
    pub parameters: BTreeMap<String, serde_json::Value>,
    /// How long it took.
    pub seconds: f64,
    /// How many units of work were done.
    pub n: u64,
    /// Units a second, where that is the figure.
    pub rate: Option<f64>,
    /// The median of the single durations, where they are the figure.
    pub p50_ms: Option<f64>,
    /// Their 99th percentile.
    pub p99_ms: Option<f64>,
    /// Other numbers, by name.
    #[serde(default)]
    pub more: BTreeMap<String, f64>,
    /// What must be known to read it.
    pub notes: String,
}

impl Line {
    /// A rate.
    pub fn rate(who: &str, figure: &str, arguments: &Arguments, n: usize, took: Duration) -> Self {
        let seconds = took.as_secs_f64();
        let n = n as u64;
        #[expect(clippy::cast_precision_loss, reason = "counts of a benchmark are far below 2^52")]
        let rate = n as f64 / seconds;
        Self { rate: Some(rate), ..Self::new(who, figure, arguments, n, seconds) }
    }

    /// Single durations, of which the middle and the slow ones count.
    pub fn latency(
        who: &str,
        figure: &str,
        arguments: &Arguments,
        mut durations: Vec<Duration>,
        took: Duration,
    ) -> Self {
        durations.sort_unstable();
        let at = |share: usize| {
            let index = (durations.len() * share / 100).min(durations.len().saturating_sub(1));
            durations.get(index).map(|duration| duration.as_secs_f64() * 1e3)
        };
        let (p50_ms, p99_ms) = (at(50), at(99));
        let n = durations.len() as u64;
        Self { p50_ms, p99_ms, ..Self::new(who, figure, arguments, n, took.as_secs_f64()) }
    }

    fn new(who: &str, figure: &str, arguments: &Arguments, n: u64, seconds: f64) -> Self {
        Self {
            figure: figure.to_owned(),
            who: who.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            parameters: arguments.used().into_iter().map(|(name, value)| (name, value.into())).collect(),
            seconds,
            n,
            rate: None,
            p50_ms: None,
            p99_ms: None,
            more: BTreeMap::new(),
            notes: String::new(),
        }
    }

    /// The same with another number.
    #[must_use]
    pub fn with(mut self, name: &str, value: f64) -> Self {
        self.more.insert(name.to_owned(), value);
        self
    }

    /// The same with what must be known to read it.
    #[must_use]
    pub fn noting(self, notes: &str) -> Self {
        Self { notes: notes.to_owned(), ..self }
    }

    /// Prints it.
    #[expect(clippy::print_stdout, reason = "the results are what the program is for")]
    pub fn print(&self) {
        match serde_json::to_string(self) {
            Ok(text) => println!("{text}"),
            Err(error) => println!("{{\"error\":\"{error}\"}}"),
        }
    }
}
