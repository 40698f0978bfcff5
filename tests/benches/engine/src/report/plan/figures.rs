//! All figures.

use std::time::Duration;

use super::{Figure, Run, Value};
use crate::report::target::Target;

/// The time limit of one measurement. Figures that hold a snapshot or wake sleepers have [`LONG`].
const SHORT: Duration = Duration::from_secs(180);
const LONG: Duration = Duration::from_secs(1200);

const fn run(who: &'static str) -> Run {
    sized(who, &[])
}

const fn sized(who: &'static str, arguments: &'static [&'static str]) -> Run {
    named(who, who, arguments)
}

const fn named(name: &'static str, who: &'static str, arguments: &'static [&'static str]) -> Run {
    Run { name, who, arguments }
}

const BASE: Figure = Figure {
    name: "",
    program: "",
    title: "",
    unit: "jobs/s",
    value: Value::Rate,
    less: false,
    beside: &[],
    arguments: &[],
    quick: &[],
    runs: &[],
    rounds: usize::MAX,
    limit: SHORT,
    targets: &[],
    headline: false,
    together: false,
};

/// All figures, in the order of measurement within a round.
pub const PLAN: &[Figure] = &[
    Figure {
        name: "enqueue-1",
        program: "enqueue",
        title: "single enqueue, 1 client",
        arguments: &["--clients", "1", "--jobs", "5000"],
        quick: &["--jobs", "2000"],
        runs: SINGLY,
        targets: &[Target::OfWho("limit", 0.5)],
        ..BASE
    },
    Figure {
        name: "enqueue-8",
        program: "enqueue",
        title: "single enqueue, 8 clients",
        arguments: &["--clients", "8", "--jobs", "10000"],
        quick: &["--jobs", "3000"],
        runs: SINGLY,
        targets: &[Target::OfWho("limit", 0.5)],
        headline: true,
        ..BASE
    },
    Figure {
        name: "enqueue-32",
        program: "enqueue",
        title: "single enqueue, 32 clients",
        arguments: &["--clients", "32", "--jobs", "10000"],
        quick: &["--jobs", "5000"],
        runs: SINGLY,
        targets: &[Target::OfWho("limit", 0.5)],
        ..BASE
    },
    Figure {
        name: "enqueue-tx",
        program: "enqueue-tx",
        title: "enqueue in the transaction of a business row, 32 clients",
        arguments: &["--clients", "32", "--jobs", "10000"],
        quick: &["--jobs", "3000"],
        runs: &[run("limit"), run("runledger"), run("graphile_worker"), run("riverqueue"), run("underway")],
        targets: &[Target::OfWho("limit", 0.5)],
        ..BASE
    },
    Figure {
        name: "bulk",
        program: "bulk",
        title: "bulk enqueue, one client, batches of 1,000",
        arguments: &["--jobs", "100000"],
        quick: &["--jobs", "30000"],
        runs: &[
            run("limit"),
            run("runledger"),
            run("graphile_worker"),
            run("apalis-postgres"),
            run("underway"),
            sized("riverqueue", &["--jobs", "30000"]),
        ],
        targets: &[Target::OfWho("limit", 0.6)],
        ..BASE
    },
    Figure {
        name: "drain",
        program: "drain",
        title: "no-op jobs that were enqueued before, one worker process",
        arguments: &["--jobs", "100000"],
        quick: &["--jobs", "50000"],
        runs: &[
            run("limit"),
            // As many connections as a draining worker keeps busy: one claims, one settles.
            named("limit, 2 connections", "limit", &["--connections", "2"]),
            run("runledger"),
            run("graphile_worker"),
            run("apalis-postgres"),
            run("riverqueue"),
            // These take a second for each thousand or two thousand jobs.
            sized("dbos", &["--jobs", "10000"]),
            sized("underway", &["--jobs", "5000"]),
        ],
        targets: &[Target::OfWho("limit", 0.6), Target::OfWho("graphile_worker", 1.0)],
        headline: true,
        ..BASE
    },
    Figure {
        name: "workflows-1",
        program: "workflows",
        title: "workflows of ten steps, one at a time",
        unit: "steps/s",
        arguments: &["--concurrency", "1", "--workflows", "500"],
        quick: &["--workflows", "200"],
        runs: &[run("limit"), run("runledger"), run("dbos"), sized("underway", &["--workflows", "200"])],
        ..BASE
    },
    Figure {
        name: "workflows-8",
        program: "workflows",
        title: "workflows of ten steps, 8 at a time",
        unit: "steps/s",
        arguments: &["--concurrency", "8", "--workflows", "2000"],
        quick: &["--workflows", "1000"],
        runs: &[run("limit"), run("runledger"), run("dbos")],
        ..BASE
    },
    Figure {
        name: "workflows-64",
        program: "workflows",
        title: "workflows of ten steps, 64 at a time",
        unit: "steps/s",
        arguments: &["--concurrency", "64", "--workflows", "10000"],
        quick: &["--workflows", "4000"],
        runs: &[run("limit"), run("runledger"), sized("dbos", &["--workflows", "5000"])],
        targets: &[Target::OfFigure("workflows-8", 1.0)],
        ..BASE
    },
    Figure {
        name: "workflows-256",
        program: "workflows",
        title: "workflows of ten steps, 256 at a time",
        unit: "steps/s",
        arguments: &["--concurrency", "256", "--workflows", "20000"],
        quick: &["--workflows", "8000"],
        runs: &[
            run("limit"),
            run("runledger"),
            sized("dbos", &["--workflows", "5000"]),
            // It holds two connections per slot for the length of a task. With more slots its pool
            // times out.
            sized("underway", &["--workflows", "200", "--concurrency", "16"]),
        ],
        targets: &[
            Target::OfWho("limit", 0.5),
            Target::OfWho("dbos", 15.0),
            Target::OfFigure("workflows-64", 1.0),
        ],
        headline: true,
        ..BASE
    },
    Figure {
        name: "workflows-512",
        program: "workflows",
        title: "workflows of ten steps, 512 at a time",
        unit: "steps/s",
        arguments: &["--concurrency", "512", "--workflows", "20000"],
        quick: &["--workflows", "8000"],
        runs: &[run("limit"), run("runledger"), sized("dbos", &["--workflows", "5000"])],
        targets: &[Target::OfFigure("workflows-256", 1.0)],
        ..BASE
    },
    Figure {
        name: "step",
        program: "step",
        title: "steps of a single workflow",
        unit: "steps/s",
        arguments: &["--steps", "2000"],
        quick: &["--steps", "1000"],
        runs: &[run("limit"), run("runledger"), run("dbos"), sized("underway", &["--steps", "1000"])],
        targets: &[Target::OfWho("limit", 1.0 / 1.3)],
        ..BASE
    },
    Figure {
        name: "latency-idle",
        program: "latency",
        title: "time from enqueue to the start of the body, one job at a time",
        unit: "ms",
        value: Value::P50,
        less: true,
        beside: P99,
        arguments: &["--rate", "0", "--seconds", "5"],
        quick: &["--seconds", "3"],
        runs: &[
            run("limit"),
            run("runledger"),
            run("graphile_worker"),
            run("dbos"),
            run("apalis-postgres"),
            run("riverqueue"),
            run("underway"),
        ],
        targets: &[Target::AtMost(1.5), Target::BesideAtMost("p99", Value::P99, 10.0)],
        headline: true,
        ..BASE
    },
    Figure {
        name: "latency-1000",
        program: "latency",
        title: "time from enqueue to the start of the body, 1,000 jobs per second",
        unit: "ms",
        value: Value::P50,
        less: true,
        beside: P99,
        arguments: &["--rate", "1000", "--seconds", "6"],
        quick: &["--seconds", "3"],
        runs: &[
            run("limit"),
            run("runledger"),
            run("graphile_worker"),
            named("graphile_worker, local queue", "graphile_worker", &["--local", "1"]),
            run("dbos"),
            run("apalis-postgres"),
            run("riverqueue"),
        ],
        targets: &[Target::AtMost(5.0), Target::BesideAtMost("p99", Value::P99, 25.0)],
        ..BASE
    },
    Figure {
        name: "recovery",
        program: "recovery",
        title: "time from kill -9 of a worker until another resumes its {workflows} workflows, default timings",
        arguments: &["--fast", "0", "--workflows", "256"],
        targets: &[Target::AtMost(6.0)],
        headline: true,
        ..RECOVERY
    },
    Figure {
        name: "recovery-fast",
        program: "recovery",
        title: "time from kill -9 of a worker until another resumes its {workflows} workflows, fast timings",
        arguments: &["--fast", "1", "--workflows", "256"],
        targets: &[Target::AtMost(1.5)],
        ..RECOVERY
    },
    Figure {
        name: "recovery-restart",
        program: "recovery",
        title: "time from a restart under the same name until it resumes its {workflows} workflows",
        runs: &[run("runledger"), run("dbos")],
        arguments: &["--restart", "1", "--workflows", "256"],
        targets: &[Target::AtMost(1.0)],
        ..RECOVERY
    },
    Figure {
        name: "backlog-20k",
        title: "{jobs} jobs beside {queued} that stay queued",
        arguments: &["--jobs", "50000", "--queued", "20000"],
        quick: &["--jobs", "30000"],
        runs: &[run("limit"), run("runledger"), run("graphile_worker"), run("apalis-postgres")],
        ..BACKLOG
    },
    Figure {
        name: "backlog-1m",
        title: "{jobs} jobs beside {queued} that stay queued",
        arguments: &["--jobs", "50000", "--queued", "1000000"],
        quick: &["--jobs", "30000", "--queued", "200000"],
        runs: &[run("limit"), run("runledger"), run("graphile_worker"), run("apalis-postgres")],
        targets: FLAT,
        ..BACKLOG
    },
    Figure {
        name: "backlog-finished",
        title: "{jobs} jobs beside {queued} queued and {finished} finished jobs",
        arguments: &["--jobs", "50000", "--queued", "20000", "--finished", "1000000"],
        quick: &["--jobs", "30000", "--finished", "200000"],
        runs: &[run("limit"), run("runledger"), run("apalis-postgres")],
        targets: FLAT,
        ..BACKLOG
    },
    Figure {
        name: "backlog-unknown",
        title: "{jobs} jobs beside {queued} queued jobs and {unknown} that no worker serves",
        arguments: &["--jobs", "50000", "--queued", "20000", "--unknown", "200000"],
        quick: &["--jobs", "30000"],
        runs: &[run("limit"), run("runledger"), run("graphile_worker")],
        targets: FLAT,
        ..BACKLOG
    },
    Figure {
        name: "one-transaction",
        program: "one-transaction",
        title: "{jobs} jobs of one transaction, from its commit",
        beside: &[("until the first begins, ms", Value::Named("began_ms"))],
        arguments: &["--jobs", "10000"],
        runs: &[
            run("limit"),
            run("runledger"),
            run("graphile_worker"),
            run("riverqueue"),
            sized("underway", &["--jobs", "1000"]),
        ],
        targets: FLAT,
        ..BASE
    },
    Figure {
        name: "snapshot",
        title: "rate of a long-running worker under a snapshot held for {seconds} s at {rate} jobs per second, relative to its rate without",
        runs: &[
            run("limit"),
            run("runledger"),
            run("graphile_worker"),
            // It runs at most 200 jobs per second.
            sized("underway", &["--jobs", "1000", "--rate", "100"]),
        ],
        targets: &[Target::AtLeast(0.9)],
        ..SNAPSHOT
    },
    Figure {
        name: "snapshot-fresh",
        title: "rate of a fresh worker under a snapshot held for {seconds} s at {rate} jobs per second, relative to its rate without",
        runs: &[sized("runledger", &["--fresh", "1"])],
        ..SNAPSHOT
    },
    Figure {
        name: "snapshot-10m",
        title: "rate of a long-running worker under a snapshot held for {seconds} s at {rate} jobs per second, relative to its rate without",
        runs: &[sized("runledger", &["--seconds", "600"])],
        targets: &[Target::AtLeast(0.9)],
        ..SNAPSHOT
    },
    Figure {
        name: "sleepers",
        program: "sleepers",
        title: "{runs} sleeping workflows that are due at one instant",
        unit: "runs/s",
        beside: &[
            ("memory before, MiB", Value::Named("idle_mib")),
            ("growth while they sleep, MiB", Value::Named("growth_mib")),
        ],
        arguments: &["--runs", "1000000"],
        quick: &["--runs", "100000"],
        runs: &[sized("limit", &["--runs", "200000"]), run("runledger")],
        rounds: 1,
        limit: LONG,
        targets: &[
            Target::AtLeast(5000.0),
            Target::BesideAtMost("MiB grown", Value::Named("growth_mib"), 2.0),
        ],
        ..BASE
    },
    Figure { name: "processes-1", arguments: &["--processes", "1", "--jobs", "100000"], ..PROCESSES },
    Figure {
        name: "processes-2",
        arguments: &["--processes", "2", "--jobs", "100000"],
        targets: &[Target::OfFigure("processes-1", 1.0)],
        ..PROCESSES
    },
    Figure {
        name: "processes-4",
        arguments: &["--processes", "4", "--jobs", "100000"],
        targets: &[Target::OfFigure("processes-2", 1.0)],
        ..PROCESSES
    },
    Figure {
        name: "processes-8",
        arguments: &["--processes", "8", "--jobs", "100000"],
        targets: &[Target::OfFigure("processes-4", 1.0)],
        ..PROCESSES
    },
    Figure {
        name: "processes-16",
        arguments: &["--processes", "16", "--jobs", "100000"],
        targets: &[Target::OfFigure("processes-8", 1.0)],
        ..PROCESSES
    },
    Figure {
        name: "idle",
        program: "idle",
        together: true,
        title: "statements per second of an idle worker",
        unit: "per second",
        value: Value::Named("queries"),
        less: true,
        beside: &[("connections beyond the pool", Value::Named("beyond_pool"))],
        arguments: &["--seconds", "20"],
        quick: &["--seconds", "10"],
        runs: &[
            run("runledger"),
            run("graphile_worker"),
            run("dbos"),
            run("underway"),
            run("apalis-postgres"),
            run("riverqueue"),
        ],
        rounds: 1,
        targets: &[
            Target::AtMost(1.0),
            Target::BesideAtMost("connections beyond the pool", Value::Named("beyond_pool"), 3.0),
        ],
        ..BASE
    },
    Figure {
        name: "wal-job",
        program: "costs",
        title: "WAL of a no-op job: enqueue, claim and settlement",
        unit: "bytes",
        value: Value::Named("wal_bytes"),
        less: true,
        beside: &[
            ("of its enqueue", Value::Named("wal_enqueue")),
            ("of its run", Value::Named("wal_run")),
            ("commits of its run", Value::Named("commits")),
        ],
        arguments: &["--jobs", "20000"],
        runs: &[
            run("limit"),
            run("runledger"),
            run("graphile_worker"),
            run("apalis-postgres"),
            run("riverqueue"),
            sized("dbos", &["--jobs", "5000"]),
            sized("underway", &["--jobs", "5000"]),
        ],
        rounds: 1,
        targets: &[Target::AtMost(1536.0), Target::BesideAtMost("commits", Value::Named("commits"), 1.0)],
        ..BASE
    },
    Figure {
        name: "wal-step",
        program: "step-costs",
        title: "WAL of a step and a tenth of its workflow",
        unit: "bytes",
        value: Value::Named("wal_bytes"),
        less: true,
        beside: &[("commits", Value::Named("commits"))],
        arguments: &["--workflows", "3000", "--concurrency", "64"],
        runs: &[
            run("limit"),
            run("runledger"),
            sized("dbos", &["--workflows", "500"]),
            sized("underway", &["--workflows", "100", "--concurrency", "16"]),
        ],
        rounds: 1,
        targets: &[Target::BesideAtMost("commits", Value::Named("commits"), 1.0)],
        ..BASE
    },
    Figure {
        name: "memory",
        program: "memory",
        title: "resident memory of a worker with {workflows} active workflows",
        unit: "MiB",
        value: Value::Named("busy_mib"),
        less: true,
        beside: &[("idle", Value::Named("idle_mib"))],
        arguments: &["--workflows", "512"],
        runs: &[run("runledger"), run("dbos"), run("graphile_worker")],
        rounds: 1,
        ..BASE
    },
];

const SINGLY: &[Run] = &[
    run("limit"),
    run("runledger"),
    run("dbos"),
    run("graphile_worker"),
    run("apalis-postgres"),
    run("riverqueue"),
    run("underway"),
];

const P99: &[(&str, Value)] = &[("p99 ms", Value::P99)];

/// Within 15 % of the figure with few rows in the tables.
const FLAT: &[Target] = &[Target::OfFigure("backlog-20k", 0.85)];

const RECOVERY: Figure = Figure {
    unit: "s",
    value: Value::Named("claimed_s"),
    less: true,
    beside: &[("until all have ended, s", Value::Named("ended_s"))],
    runs: &[run("runledger")],
    ..BASE
};

const BACKLOG: Figure = Figure {
    program: "backlog",
    beside: &[
        ("p50 of a higher priority, ms", Value::P50),
        ("p99", Value::P99),
        ("p50 of another queue, ms", Value::Named("other_p50_ms")),
        ("p99", Value::Named("other_p99_ms")),
    ],
    rounds: 2,
    ..BASE
};

const SNAPSHOT: Figure = Figure {
    program: "snapshot",
    unit: "of the rate without a snapshot",
    value: Value::Named("kept"),
    beside: &[
        ("before it, jobs/s", Value::Named("before")),
        ("under it, jobs/s", Value::Named("after")),
        ("after it, jobs/s", Value::Named("released")),
    ],
    arguments: &["--seconds", "60", "--rate", "2000", "--jobs", "30000"],
    quick: &["--seconds", "10"],
    rounds: 1,
    limit: LONG,
    ..BASE
};

const PROCESSES: Figure = Figure {
    program: "processes",
    title: "{jobs} no-op jobs that are due at one instant, worker processes: {processes}",
    quick: &["--jobs", "50000"],
    runs: &[run("limit"), run("runledger"), run("graphile_worker")],
    rounds: 2,
    ..BASE
};
