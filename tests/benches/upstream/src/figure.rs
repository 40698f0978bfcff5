//! What is measured, of whom, and how much.

use serde::{Deserialize, Serialize};

use crate::engine::Shape;

/// Whose figure it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Who {
    Runledger,
    Upstream,
    UpstreamTuned,
    /// No engine: the same payloads in one table, by the fewest statements. Nobody who stores them can be faster.
    Bare,
}

impl Who {
    /// In the order in which a round measures them.
    pub const ALL: [Self; 4] = [Self::Runledger, Self::Upstream, Self::UpstreamTuned, Self::Bare];

    /// Those that do work, and not only store it.
    pub const ENGINES: [Self; 3] = [Self::Runledger, Self::Upstream, Self::UpstreamTuned];
}

/// What is done.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// Single runs, by so many clients.
    Enqueue(u64),
    /// Runs by one client, so many in a transaction.
    Bulk(u64),
    /// Graphs, by one client.
    Submit(Shape),
    /// Graphs one after the other on an idle system.
    Alone(Shape),
    /// Graphs that were submitted before the worker starts.
    Together(Shape),
}

/// One figure.
pub struct Figure {
    pub name: &'static str,
    pub kind: Kind,
    /// How many of [`Who::ALL`] each, and how few a test of the program takes; none where a figure says nothing of one.
    amounts: [u64; 4],
    smoke: u64,
}

impl Figure {
    /// How many of this one.
    pub fn amount(&self, who: Who, smoke: bool) -> u64 {
        let amount = self.amounts[who as usize];
        if smoke { amount.min(self.smoke) } else { amount }
    }
}

/// Where no worker takes part, tuning it changes nothing. Where upstream needs half a second for a node, it gets less to do.
pub const ALL: &[Figure] = &[
    Figure { name: "enqueue-1", kind: Kind::Enqueue(1), amounts: [3000, 3000, 0, 3000], smoke: 50 },
    Figure { name: "enqueue-8", kind: Kind::Enqueue(8), amounts: [6000, 6000, 0, 6000], smoke: 50 },
    Figure { name: "enqueue-64", kind: Kind::Enqueue(64), amounts: [60_000, 10_000, 0, 30_000], smoke: 64 },
    Figure { name: "bulk", kind: Kind::Bulk(1000), amounts: [200_000, 10_000, 0, 200_000], smoke: 1000 },
    Figure {
        name: "submit-3",
        kind: Kind::Submit(Shape::Chain(3)),
        amounts: [1000, 500, 0, 1000],
        smoke: 10,
    },
    Figure {
        name: "submit-100",
        kind: Kind::Submit(Shape::FanOut(100)),
        amounts: [100, 30, 0, 100],
        smoke: 3,
    },
    Figure { name: "chain-3", kind: Kind::Alone(Shape::Chain(3)), amounts: [25, 10, 20, 0], smoke: 1 },
    Figure { name: "chain-10", kind: Kind::Alone(Shape::Chain(10)), amounts: [25, 6, 20, 0], smoke: 1 },
    Figure { name: "fan-out-100", kind: Kind::Alone(Shape::FanOut(100)), amounts: [15, 4, 8, 0], smoke: 1 },
    Figure {
        name: "chains-10",
        kind: Kind::Together(Shape::Chain(10)),
        amounts: [500, 50, 100, 0],
        smoke: 3,
    },
    Figure {
        name: "fan-outs-100",
        kind: Kind::Together(Shape::FanOut(100)),
        amounts: [200, 10, 20, 0],
        smoke: 2,
    },
    Figure { name: "siblings", kind: Kind::Together(Shape::Siblings), amounts: [500, 50, 100, 0], smoke: 3 },
];
