//! The rows of the tables.

/// Which number of a figure a row shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// Units per second.
    Rate,
    /// The median latency.
    Median,
    /// The 99th percentile of the latencies.
    Slow,
}

/// A row about speed.
pub struct Row {
    pub figure: &'static str,
    pub measure: Measure,
    pub title: &'static str,
    pub unit: &'static str,
    /// How many times better than upstream's defaults the engine should be.
    pub goal: Option<f64>,
}

const fn rate(figure: &'static str, title: &'static str, unit: &'static str) -> Row {
    Row { figure, measure: Measure::Rate, title, unit, goal: Some(10.0) }
}

const fn median(figure: &'static str, title: &'static str, goal: f64) -> Row {
    Row { figure, measure: Measure::Median, title, unit: "ms", goal: Some(goal) }
}

const fn slow(figure: &'static str, title: &'static str) -> Row {
    Row { figure, measure: Measure::Slow, title, unit: "ms", goal: None }
}

pub const ROWS: &[Row] = &[
    rate("enqueue-1", "single runs enqueued, 1 client", "runs/s"),
    rate("enqueue-8", "single runs enqueued, 8 clients", "runs/s"),
    rate("enqueue-64", "single runs enqueued, 64 clients", "runs/s"),
    rate("bulk", "runs enqueued by 1 client, 1,000 per transaction", "runs/s"),
    rate("submit-3", "chains of 3 submitted, 1 client", "graphs/s"),
    rate("submit-100", "fan-outs of 100 submitted, 1 client", "graphs/s"),
    median("chain-3", "chain of 3 on an idle system, p50", 100.0),
    slow("chain-3", "… p99"),
    median("chain-10", "chain of 10 on an idle system, p50", 100.0),
    slow("chain-10", "… p99"),
    // In nodes per second the ratio is the same.
    median("fan-out-100", "fan-out of 100 (102 nodes) on an idle system, p50", 10.0),
    slow("fan-out-100", "… p99"),
    rate("chains-10", "chains of 10, at once", "graphs/s"),
    rate("fan-outs-100", "fan-outs of 100, at once", "graphs/s"),
    rate("siblings", "siblings: eight chains of 2 per graph, at once", "graphs/s"),
];

/// A row about the cost of a graph.
pub struct Cost {
    pub figure: &'static str,
    pub key: &'static str,
    /// A value to subtract.
    pub less: Option<&'static str>,
    pub title: &'static str,
}

const fn cost(figure: &'static str, key: &'static str, title: &'static str) -> Cost {
    Cost { figure, key, less: None, title }
}

/// Excludes page images: their volume depends on when the last checkpoint was.
const fn records(figure: &'static str) -> Cost {
    Cost {
        figure, key: "wal_bytes", less: Some("image_bytes"), title: "… bytes of WAL without page images"
    }
}

pub const COSTS: &[Cost] = &[
    cost("chain-3", "statements", "chain of 3: statements beyond an idle worker"),
    cost("chain-3", "statements_with_idle", "… all statements, including the pauses"),
    cost("chain-3", "commits", "… commits"),
    records("chain-3"),
    cost("chain-3", "image_bytes", "… bytes of page images"),
    cost("chain-10", "statements", "chain of 10: statements beyond an idle worker"),
    cost("chain-10", "statements_with_idle", "… all statements, including the pauses"),
    cost("chain-10", "commits", "… commits"),
    records("chain-10"),
    cost("chain-10", "image_bytes", "… bytes of page images"),
    cost("fan-out-100", "statements", "fan-out of 100: statements beyond an idle worker"),
    cost("fan-out-100", "commits", "… commits"),
    records("fan-out-100"),
    cost("fan-out-100", "image_bytes", "… bytes of page images"),
    cost("chain-10", "idle_statements_per_second", "idle worker: statements per second"),
];

/// The figure, the value and the title of each count over all rounds.
pub const COUNTS: &[(&str, &str, &str)] = &[
    ("siblings", "submitted", "siblings: graphs submitted"),
    ("siblings", "completed", "… completed in time"),
    ("siblings", "deadlocks", "… deadlocks"),
    ("siblings", "failed_nodes", "… failed nodes"),
    ("siblings", "repeated_attempts", "… repeated attempts"),
    ("chains-10", "submitted", "chains of 10 at once: graphs submitted"),
    ("chains-10", "completed", "… completed in time"),
    ("chains-10", "deadlocks", "… deadlocks"),
    ("fan-outs-100", "submitted", "fan-outs of 100 at once: graphs submitted"),
    ("fan-outs-100", "completed", "… completed in time"),
    ("fan-outs-100", "deadlocks", "… deadlocks"),
    ("chain-10", "deadlocks", "chain of 10, idle system: deadlocks"),
    ("fan-out-100", "deadlocks", "fan-out of 100, idle system: deadlocks"),
];
