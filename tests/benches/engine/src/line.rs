//! The JSON line that a measurement prints.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::arguments::Arguments;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Line {
    pub figure: String,
    /// Which system was measured.
    pub who: String,
    /// The version of that system.
    pub version: String,
    /// The commit of this project's sources.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    pub parameters: BTreeMap<String, serde_json::Value>,
    /// The duration of the measurement.
    pub seconds: f64,
    /// Units of work done.
    pub n: u64,
    /// Units per second, if the figure is a rate.
    pub rate: Option<f64>,
    /// The median latency, if the figure is a latency.
    pub p50_ms: Option<f64>,
    /// The 99th percentile of the latency.
    pub p99_ms: Option<f64>,
    #[serde(default)]
    pub more: BTreeMap<String, f64>,
    /// Notes for interpreting the numbers.
    pub notes: String,
}

impl Line {
    pub fn rate(who: &str, figure: &str, arguments: &Arguments, n: usize, took: Duration) -> Self {
        let seconds = took.as_secs_f64();
        let n = n as u64;
        #[expect(clippy::cast_precision_loss, reason = "counts of a benchmark are far below 2^52")]
        let rate = n as f64 / seconds;
        Self { rate: Some(rate), ..Self::new(who, figure, arguments, n, seconds) }
    }

    /// A measurement of latencies, reported as percentiles.
    pub fn latency(
        who: &str,
        figure: &str,
        arguments: &Arguments,
        durations: Vec<Duration>,
        took: Duration,
    ) -> Self {
        let n = durations.len() as u64;
        Self::new(who, figure, arguments, n, took.as_secs_f64()).with_latency(durations)
    }

    /// Numbers by name, which [`with`](Self::with) adds.
    pub fn named(who: &str, figure: &str, arguments: &Arguments, n: usize, took: Duration) -> Self {
        Self::new(who, figure, arguments, n as u64, took.as_secs_f64())
    }

    fn new(who: &str, figure: &str, arguments: &Arguments, n: u64, seconds: f64) -> Self {
        Self {
            figure: figure.to_owned(),
            who: who.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            commit: None,
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

    /// Adds another number.
    #[must_use]
    pub fn with(mut self, name: &str, value: f64) -> Self {
        self.more.insert(name.to_owned(), value);
        self
    }

    /// Adds the percentiles of latencies.
    #[must_use]
    pub fn with_latency(self, mut durations: Vec<Duration>) -> Self {
        durations.sort_unstable();
        let [p50_ms, p99_ms] = [50, 99].map(|share| percentile(&durations, share));
        Self { p50_ms, p99_ms, ..self }
    }

    /// Sets the notes.
    #[must_use]
    pub fn noting(self, notes: &str) -> Self {
        Self { notes: notes.to_owned(), ..self }
    }

    /// Sets the commit.
    #[must_use]
    pub fn of_commit(self, commit: String) -> Self {
        Self { commit: Some(commit), ..self }
    }

    #[expect(clippy::print_stdout, reason = "the results are what the program is for")]
    pub fn print(&self) {
        match serde_json::to_string(self) {
            Ok(text) => println!("{text}"),
            Err(error) => println!("{{\"error\":\"{error}\"}}"),
        }
    }
}

/// The nearest-rank percentile of sorted durations, in milliseconds.
pub fn percentile(sorted: &[Duration], share: usize) -> Option<f64> {
    let rank = (sorted.len() * share).div_ceil(100).max(1);
    sorted.get(rank - 1).map(|duration| duration.as_secs_f64() * 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentile_is_measured_duration() {
        let durations: Vec<_> = (1..=200).map(Duration::from_millis).collect();
        assert_eq!(percentile(&durations, 50), Some(100.0));
        assert_eq!(percentile(&durations, 99), Some(198.0));
        assert_eq!(percentile(&durations[..1], 99), Some(1.0));
        assert_eq!(percentile(&[], 50), None);
    }

    #[test]
    fn peer_line_with_null_numbers_is_read() {
        let text = r#"{"figure":"drain","parameters":{"jobs":5,"queued":false},"who":"p","version":"1","seconds":1.0,"n":5,"rate":5.0,"p50_ms":null,"p99_ms":null,"notes":""}"#;
        let line: Line = serde_json::from_str(text).unwrap();
        assert_eq!((line.rate, line.more.len()), (Some(5.0), 0));
    }
}
