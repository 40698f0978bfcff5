//! One backlog, several worker processes.

use std::time::Duration;

use super::drain::no_op;
use super::process::Process;
use super::{WHO, client, copies, ended};
use crate::Res;
use crate::arguments::Arguments;
use crate::line::Line;
use crate::work::{NOTE, connect, number, until};

/// Measures no-op jobs that all fall due at once, after every process has started and is idle.
pub async fn measure(url: &str, arguments: &Arguments) -> Res<Line> {
    let (processes, jobs) = (arguments.count("processes", 4), arguments.count("jobs", 100_000));
    let concurrency = arguments.count("concurrency", 512);
    let ahead = arguments.get("ahead", 5 + jobs as u64 / 15_000 + processes as u64 / 2);
    let db = client(url, 4).await?;
    let mut connection = connect(url).await?;
    let first = no_op(0, NOTE).delay(Duration::from_secs(ahead)).enqueue(&db).await?.id();
    copies::make(&mut connection, first, &["run", "ready"], jobs - 1).await?;
    let mut workers = Vec::new();
    for _ in 0..processes {
        workers.push(Process::start(url, &[("concurrency", concurrency)]).await?);
    }
    let (due, _) = copies::due(&mut connection).await?;
    until(&mut connection, "select count(*) from runledger.outcome where state = 'completed'", jobs).await?;
    let took = ended::nth(&mut connection, "no_op", &due, jobs).await?;
    let took_part =
        number(&mut connection, "select count(distinct worker_id) from runledger.outcome").await?;
    #[expect(clippy::cast_precision_loss, reason = "a handful of processes")]
    let took_part = took_part as f64;
    Ok(Line::rate(WHO, "processes", arguments, jobs, took)
        .with("took_part", took_part)
        .noting("from the instant at which all jobs fell due until the last was recorded as completed"))
}
