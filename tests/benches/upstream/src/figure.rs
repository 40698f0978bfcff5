//! The figures: which work, on which system, and how much.

use serde::{Deserialize, Serialize};

use crate::engine::Shape;

/// The measured system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Who {
    Runledger,
    Upstream,
    UpstreamTuned,
    /// No engine: the same payloads in one table, with the fewest statements. A lower bound for
    /// every engine.
    Bare,
}

impl Who {
    /// In the order of measurement within a round.
    pub const ALL: [Self; 4] = [Self::Runledger, Self::Upstream, Self::UpstreamTuned, Self::Bare];

    /// The systems that execute work. [`Self::Bare`] only stores it.
    pub const ENGINES: [Self; 3] = [Self::Runledger, Self::Upstream, Self::UpstreamTuned];
}

#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// Enqueues single runs, from this many clients.
    Enqueue(u64),
    /// Enqueues this many runs per transaction, from one client.
    Bulk(u64),
    /// Submits graphs, from one client.
    Submit(Shape),
    /// Runs graphs one after the other on an idle system.
    Alone(Shape),
    /// Runs graphs that were submitted before the worker starts.
    Together(Shape),
}

pub struct Figure {
    pub name: &'static str,
    pub kind: Kind,
    /// The amount for each of [`Who::ALL`], and the amount in `--smoke`. Zero skips the
    /// measurement.
    amounts: [u64; 4],
    smoke: u64,
}

impl Figure {
    /// The amount for one system.
    pub fn amount(&self, who: Who, smoke: bool) -> u64 {
        let amount = self.amounts[who as usize];
        if smoke { amount.min(self.smoke) } else { amount }
    }
}

const fn figure(name: &'static str, kind: Kind, amounts: [u64; 4], smoke: u64) -> Figure {
    Figure { name, kind, amounts, smoke }
}

/// Figures without a worker skip the tuned one, because the tuning affects only workers. Upstream
/// gets less work in figures where it needs half a second per node.
pub const ALL: &[Figure] = &[
    figure("enqueue-1", Kind::Enqueue(1), [3000, 3000, 0, 3000], 50),
    figure("enqueue-8", Kind::Enqueue(8), [6000, 6000, 0, 6000], 50),
    figure("enqueue-64", Kind::Enqueue(64), [60_000, 10_000, 0, 30_000], 64),
    figure("bulk", Kind::Bulk(1000), [200_000, 10_000, 0, 200_000], 1000),
    figure("submit-3", Kind::Submit(Shape::Chain(3)), [1000, 500, 0, 1000], 10),
    figure("submit-100", Kind::Submit(Shape::FanOut(100)), [100, 30, 0, 100], 3),
    figure("chain-3", Kind::Alone(Shape::Chain(3)), [25, 10, 20, 0], 1),
    figure("chain-10", Kind::Alone(Shape::Chain(10)), [25, 6, 20, 0], 1),
    figure("fan-out-100", Kind::Alone(Shape::FanOut(100)), [15, 4, 8, 0], 1),
    figure("chains-10", Kind::Together(Shape::Chain(10)), [500, 50, 100, 0], 3),
    figure("fan-outs-100", Kind::Together(Shape::FanOut(100)), [200, 10, 20, 0], 2),
    figure("siblings", Kind::Together(Shape::Siblings), [500, 50, 100, 0], 3),
];
