//! What can be measured, with its settings, and what comes out.

use std::{collections::BTreeMap, time::Duration};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Result;

/// One figure and its settings, in the words of the command line and of the printed line.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(tag = "figure", content = "parameters", rename_all = "lowercase")]
pub enum Figure {
    /// Single jobs, each in a transaction of its own.
    Enqueue { jobs: u64, clients: u64 },
    /// Single jobs, each with a row of the application in its transaction.
    #[serde(rename = "enqueue-tx")]
    EnqueueTx { jobs: u64, clients: u64 },
    /// Batches from one client.
    Bulk { jobs: u64, batch: u64 },
    /// Jobs enqueued ahead, run by one worker.
    Drain { jobs: u64, concurrency: u64 },
    /// The same, for what a job costs the server: each session has told it.
    Costs { jobs: u64, concurrency: u64 },
    /// The same, with so many more in the queue, so many finished, and so many of a job that nobody serves.
    Backlog { jobs: u64, queued: u64, finished: u64, unknown: u64, concurrency: u64 },
    /// Jobs that one transaction brings to a worker that waits.
    #[serde(rename = "one-transaction")]
    OneTransaction { jobs: u64, concurrency: u64 },
    /// The same, `windows` times before a snapshot is taken, and as often after it was held for a while under load.
    Snapshot { jobs: u64, windows: u64, rate: u64, seconds: u64, concurrency: u64 },
    /// The same, to several worker processes.
    Processes { processes: u64, jobs: u64, concurrency: u64 },
    /// What a worker process weighs with nothing to do, and with so many under way.
    Memory { workflows: u64 },
    /// A worker process is killed, and started anew.
    Recovery { workflows: u64, restart: u64 },
    /// What a worker with nothing to do asks of the server.
    Idle { seconds: u64 },
    /// Whole workflows, so many at a time.
    Workflows { workflows: u64, steps: u64, concurrency: u64 },
    /// The same, for what a step costs the server.
    #[serde(rename = "step-costs")]
    StepCosts { workflows: u64, steps: u64, concurrency: u64 },
    /// One workflow alone.
    Step { steps: u64 },
    /// From the call of enqueue to the first line of the body; `rate` 0 is one at a time on an idle system.
    /// `queued` false is a start without a queue, where the peer knows one; `local` 1 is a queue within the process, where it knows one.
    Latency { rate: u64, seconds: u64, concurrency: u64, queued: bool, local: u64 },
}

/// The figure of this name among those a peer can do, with the settings `--name value`… in place of its own.
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

/// What one run measured.
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
    /// So much work in so much time.
    pub fn rate(n: u64, took: Duration) -> Self {
        let seconds = took.as_secs_f64();
        Self { seconds, n, rate: Some(rounded(n as f64 / seconds)), ..Self::default() }
    }

    /// These waits, in a run of this length.
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

    /// Numbers by their names, which [`with`](Self::with) adds.
    pub fn named(n: u64, took: Duration) -> Self {
        Self { seconds: took.as_secs_f64(), n, ..Self::default() }
    }

    /// The same with another number.
    pub fn with(mut self, name: &'static str, value: f64) -> Self {
        self.more.insert(name, rounded(value));
        self
    }
}

/// The nearest rank, in milliseconds.
fn percentile(sorted: &[Duration], percent: usize) -> Option<f64> {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).map(|wait| rounded(wait.as_secs_f64() * 1e3))
}

/// Three digits behind the point: the rest is noise.
fn rounded(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: &[Figure] = &[Figure::Bulk { jobs: 7, batch: 3 }];

    #[test]
    fn a_setting_takes_the_place_of_the_peers_own() {
        let figure = parse(KNOWN, "bulk", &["--jobs", "9"]).unwrap();
        assert_eq!(
            serde_json::to_value(figure).unwrap(),
            serde_json::json!({ "figure": "bulk", "parameters": { "jobs": 9, "batch": 3 } })
        );
    }

    #[test]
    fn what_the_figure_does_not_have_is_refused_with_what_it_has() {
        let refused = |name, settings: &[&str]| parse(KNOWN, name, settings).unwrap_err().to_string();
        assert_eq!(refused("drain", &[]), "this peer has no figure `drain`; it has: bulk");
        assert!(refused("bulk", &["--clients", "1"]).contains("there is no `--clients` here"));
        assert_eq!(refused("bulk", &["--jobs"]), "`--jobs` has no value");
        assert!(parse(KNOWN, "bulk", &["--jobs", "-1"]).is_err());
    }

    #[test]
    fn a_percentile_is_a_wait_that_was_measured() {
        let waits: Vec<_> = (1..=200).map(Duration::from_millis).collect();
        assert_eq!(percentile(&waits, 50), Some(100.0));
        assert_eq!(percentile(&waits, 99), Some(198.0));
        assert_eq!(percentile(&waits[..1], 99), Some(1.0));
        assert_eq!(percentile(&[], 50), None);
    }
}
