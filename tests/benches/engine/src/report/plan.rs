//! What is measured, with which sizes, by whom.

use std::time::Duration;

/// How long one measurement may take at most.
pub const LIMIT: Duration = Duration::from_secs(300);

/// One figure of the report.
#[derive(Debug)]
pub struct Figure {
    /// Its name, and that of its plot.
    pub name: &'static str,
    /// What it is called on the command line.
    pub program: &'static str,
    /// What it is, in a few words.
    pub title: &'static str,
    /// The unit of its rate; milliseconds where it has none.
    pub unit: &'static str,
    /// What is asked of everybody.
    pub arguments: &'static [&'static str],
    /// Who is measured.
    pub runs: &'static [Run],
}

/// One contender.
#[derive(Debug)]
pub struct Run {
    /// Its name on the command line.
    pub who: &'static str,
    /// What is asked of it alone.
    pub arguments: &'static [&'static str],
}

const fn run(who: &'static str) -> Run {
    Run { who, arguments: &[] }
}

const fn sized(who: &'static str, arguments: &'static [&'static str]) -> Run {
    Run { who, arguments }
}

/// All figures, in the order in which they are measured in every round.
pub const PLAN: &[Figure] = &[
    Figure {
        name: "enqueue-1",
        program: "enqueue",
        title: "single enqueue, 1 client",
        unit: "jobs/s",
        arguments: &["--clients", "1", "--jobs", "5000"],
        runs: &[
            run("limit"),
            run("runledger"),
            run("dbos"),
            run("graphile_worker"),
            run("apalis-postgres"),
            run("riverqueue"),
            run("underway"),
        ],
    },
    Figure {
        name: "enqueue-8",
        program: "enqueue",
        title: "single enqueue, 8 clients",
        unit: "jobs/s",
        arguments: &["--clients", "8", "--jobs", "10000"],
        runs: &[run("limit"), run("runledger"), run("dbos")],
    },
    Figure {
        name: "enqueue-32",
        program: "enqueue",
        title: "single enqueue, 32 clients",
        unit: "jobs/s",
        arguments: &["--clients", "32", "--jobs", "20000"],
        runs: &[
            run("limit"),
            run("runledger"),
            run("dbos"),
            run("graphile_worker"),
            run("apalis-postgres"),
            run("riverqueue"),
            run("underway"),
        ],
    },
    Figure {
        name: "enqueue-tx",
        program: "enqueue-tx",
        title: "enqueue in the transaction of a business row, 32 clients",
        unit: "jobs/s",
        arguments: &["--clients", "32", "--jobs", "10000"],
        runs: &[run("runledger")],
    },
    Figure {
        name: "bulk",
        program: "bulk",
        title: "bulk enqueue, one client, batches of 1,000",
        unit: "jobs/s",
        arguments: &["--jobs", "100000"],
        runs: &[
            run("limit"),
            run("runledger"),
            run("graphile_worker"),
            run("apalis-postgres"),
            run("underway"),
            run("riverqueue"),
        ],
    },
    Figure {
        name: "drain",
        program: "drain",
        title: "no-op jobs, enqueued ahead, one worker process",
        unit: "jobs/s",
        arguments: &[],
        runs: &[
            run("limit"),
            run("runledger"),
            sized("graphile_worker", &["--jobs", "100000"]),
            sized("apalis-postgres", &["--jobs", "20000"]),
            sized("riverqueue", &["--jobs", "20000"]),
            sized("dbos", &["--jobs", "2000"]),
            sized("underway", &["--jobs", "2000"]),
        ],
    },
    Figure {
        name: "workflows-8",
        program: "workflows",
        title: "whole workflows of ten steps, 8 at a time",
        unit: "steps/s",
        arguments: &["--concurrency", "8"],
        runs: &[sized("limit", &["--workflows", "2000"]), sized("runledger", &["--workflows", "2000"])],
    },
    Figure {
        name: "workflows-64",
        program: "workflows",
        title: "whole workflows of ten steps, 64 at a time",
        unit: "steps/s",
        arguments: &["--concurrency", "64"],
        runs: &[sized("limit", &["--workflows", "10000"]), sized("runledger", &["--workflows", "10000"])],
    },
    Figure {
        name: "workflows-256",
        program: "workflows",
        title: "whole workflows of ten steps, 256 at a time",
        unit: "steps/s",
        arguments: &["--concurrency", "256"],
        runs: &[
            sized("limit", &["--workflows", "20000"]),
            sized("runledger", &["--workflows", "20000"]),
            sized("dbos", &["--workflows", "1000"]),
            sized("underway", &["--workflows", "200"]),
        ],
    },
    Figure {
        name: "workflows-512",
        program: "workflows",
        title: "whole workflows of ten steps, 512 at a time",
        unit: "steps/s",
        arguments: &["--concurrency", "512"],
        runs: &[sized("limit", &["--workflows", "20000"]), sized("runledger", &["--workflows", "20000"])],
    },
    Figure {
        name: "step",
        program: "step",
        title: "the steps of one workflow, alone",
        unit: "steps/s",
        arguments: &[],
        runs: &[run("limit"), run("runledger"), run("dbos"), sized("underway", &["--steps", "200"])],
    },
    Figure {
        name: "latency-idle",
        program: "latency",
        title: "from enqueue to the first line of the body, one at a time",
        unit: "",
        arguments: &["--rate", "0", "--seconds", "10"],
        runs: &[
            run("runledger"),
            run("graphile_worker"),
            run("dbos"),
            run("apalis-postgres"),
            run("riverqueue"),
            run("underway"),
        ],
    },
    Figure {
        name: "latency-1000",
        program: "latency",
        title: "from enqueue to the first line of the body, 1,000 a second",
        unit: "",
        arguments: &["--rate", "1000", "--seconds", "10"],
        runs: &[run("runledger"), run("graphile_worker"), run("dbos")],
    },
];

/// The contenders of a figure in their order.
pub fn whos(figure: &Figure) -> impl Iterator<Item = &'static str> + '_ {
    figure.runs.iter().map(|run| run.who)
}
