//! The figures, their settings and their results.

use std::{collections::BTreeMap, time::Duration};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Result;

/// One figure and its settings, named as on the command line and in the printed line.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(tag = "figure", content = "parameters", rename_all = "lowercase")]
pub enum Figure {
    /// Enqueues single jobs, each in its own transaction.
    Enqueue { jobs: u64, clients: u64 },
    /// Enqueues single jobs, each with an application row in the same transaction.
    #[serde(rename = "enqueue-tx")]
    EnqueueTx { jobs: u64, clients: u64 },
    /// Enqueues batches from one client.
    Bulk { jobs: u64, batch: u64 },
    /// One worker runs jobs that were enqueued before.
    Drain { jobs: u64, concurrency: u64 },
    /// Like `Drain`, for a job's cost to the server. Reads the cost after every session has
    /// reported it.
    Costs { jobs: u64, concurrency: u64 },
    /// Like `Drain`, with further queued jobs, finished jobs, and jobs that no worker serves.
    Backlog { jobs: u64, queued: u64, finished: u64, unknown: u64, concurrency: u64 },
    /// One transaction enqueues all jobs for a waiting worker.
    #[serde(rename = "one-transaction")]
    OneTransaction { jobs: u64, concurrency: u64 },
    /// Like `OneTransaction`, `windows` times each before a snapshot, after holding it under load,
    /// and after its release.
    Snapshot { jobs: u64, windows: u64, rate: u64, seconds: u64, concurrency: u64 },
    /// Like `OneTransaction`, for several worker processes.
    Processes { processes: u64, jobs: u64, concurrency: u64 },
    /// The memory of a worker process, idle and with workflows in progress.
    Memory { workflows: u64 },
    /// Kills a worker process and starts it again.
    Recovery { workflows: u64, restart: u64 },
    /// An idle worker's load on the server.
    Idle { seconds: u64 },
    /// Runs whole workflows, `concurrency` at a time.
    Workflows { workflows: u64, steps: u64, concurrency: u64 },
    /// Like `Workflows`, for a step's cost to the server.
    #[serde(rename = "step-costs")]
    StepCosts { workflows: u64, steps: u64, concurrency: u64 },
    /// Runs one workflow alone.
    Step { steps: u64 },
    /// From the enqueue call to the first line of the body. `rate` 0 means one at a time on an idle
    /// system. `queued` false starts without a queue and `local` 1 uses a queue within the process,
    /// if the peer has them.
    Latency { rate: u64, seconds: u64, concurrency: u64, queued: bool, local: u64 },
}

/// Finds a figure by name among a peer's figures, and applies the settings `--name value`….
pub fn parse(known: &[Figure], name: &str, settings: &[&str]) -> Result<Figure> {
    let mut figures = Vec::new();
    for figure in known {
        figures.push(serde_json::to_value(figure)?);
    }
    let Some(mut figure) = figures.iter().find(|figure| figure["figure"] == name).cloned() else {
        let names: Vec<_> = figures.iter().filter_map(|figure| figure["figure"].as_str()).collect();
        return Err(format!("this peer has no figure `{name}`; it has: {}", names.join(", ")).into());
    };
    for setting in settings.chunks(2) {
        let &[name, value] = setting else {
            return Err(format!("`{}` has no value", setting.join(" ")).into());
        };
        let known = name.strip_prefix("--").and_then(|name| figure["parameters"].get_mut(name));
        let Some(known) = known else {
            return Err(
                format!("there is no `{name}` here; the settings are {}", figure["parameters"]).into()
            );
        };
        *known = serde_json::from_str::<Value>(value)?;
    }
    Ok(serde_json::from_value(figure)?)
}

#[derive(Default, Serialize)]
pub struct Outcome {
    seconds: f64,
    n: u64,
    rate: Option<f64>,
    p50_ms: Option<f64>,
    p99_ms: Option<f64>,
    more: BTreeMap<&'static str, f64>,
}

impl Outcome {
    /// `n` units of work in the time `took`.
    pub fn rate(n: u64, took: Duration) -> Self {
        let seconds = took.as_secs_f64();
        Self { seconds, n, rate: Some(rounded(n as f64 / seconds)), ..Self::default() }
    }

    /// These latencies, in a run of this length.
    pub fn waits(mut waits: Vec<Duration>, took: Duration) -> Self {
        waits.sort_unstable();
        Self {
            seconds: took.as_secs_f64(),
            n: waits.len() as u64,
            p50_ms: percentile(&waits, 50),
            p99_ms: percentile(&waits, 99),
            ..Self::default()
        }
    }

    /// Numbers by name, which [`with`](Self::with) adds.
    pub fn named(n: u64, took: Duration) -> Self {
        Self { seconds: took.as_secs_f64(), n, ..Self::default() }
    }

    /// Adds another number.
    pub fn with(mut self, name: &'static str, value: f64) -> Self {
        self.more.insert(name, rounded(value));
        self
    }
}

/// The nearest-rank percentile, in milliseconds.
fn percentile(sorted: &[Duration], percent: usize) -> Option<f64> {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).map(|wait| rounded(wait.as_secs_f64() * 1e3))
}

/// Rounds to three decimals: the rest is noise.
fn rounded(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: &[Figure] = &[Figure::Bulk { jobs: 7, batch: 3 }];

    #[test]
    fn setting_overrides_peer_default() {
        let figure = parse(KNOWN, "bulk", &["--jobs", "9"]).unwrap();
        assert_eq!(
            serde_json::to_value(figure).unwrap(),
            serde_json::json!({ "figure": "bulk", "parameters": { "jobs": 9, "batch": 3 } })
        );
    }

    #[test]
    fn unknown_figure_and_invalid_settings_are_refused_with_reason() {
        let refused = |name, settings: &[&str]| parse(KNOWN, name, settings).unwrap_err().to_string();
        assert_eq!(refused("drain", &[]), "this peer has no figure `drain`; it has: bulk");
        assert!(refused("bulk", &["--clients", "1"]).contains("there is no `--clients` here"));
        assert_eq!(refused("bulk", &["--jobs"]), "`--jobs` has no value");
        assert!(parse(KNOWN, "bulk", &["--jobs", "-1"]).is_err());
    }

    #[test]
    fn percentile_is_measured_wait() {
        let waits: Vec<_> = (1..=200).map(Duration::from_millis).collect();
        assert_eq!(percentile(&waits, 50), Some(100.0));
        assert_eq!(percentile(&waits, 99), Some(198.0));
        assert_eq!(percentile(&waits[..1], 99), Some(1.0));
        assert_eq!(percentile(&[], 50), None);
    }
}
