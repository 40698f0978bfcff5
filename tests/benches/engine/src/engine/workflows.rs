//! Workflows of several steps: many at once, and one alone.

use std::sync::Arc;
use std::time::Instant;

use runledger::enqueue_all;
use runledger::prelude::*;

use super::drain::Tally;
use super::{WHO, client};
use crate::Res;
use crate::arguments::Arguments;
use crate::line::Line;
use crate::work::{Costs, NOTE, connect, number, until};

#[workflow]
async fn steps_in_a_row(wf: &Wf, steps: usize, #[inject] tally: &Arc<Tally>) -> Result<usize> {
    for n in 0..steps {
        wf.step("step", || async move { Ok::<_, Error>((n, NOTE.to_owned())) }).await?;
    }
    tally.count();
    Ok(steps)
}

const DONE: &str = "select count(*) from runledger.outcome where state = 'completed'";

/// Measures whole workflows: enqueue, claim, steps, outcome.
pub async fn many(url: &str, figure: &str, arguments: &Arguments) -> Res<Line> {
    let (workflows, concurrency) = (arguments.count("workflows", 5000), arguments.count("concurrency", 256));
    let steps = arguments.count("steps", 10);
    let db = client(url, 10).await?;
    let mut connection = connect(url).await?;
    let tally = Tally::of(workflows);
    let app = App::new(db.clone()).with(jobs![steps_in_a_row]).provide(Arc::clone(&tally));
    let worker = app.concurrency(concurrency).start().await?;
    let before = Costs::of(url).await?;
    let began = Instant::now();
    for first in (0..workflows).step_by(1000) {
        enqueue_all((first..(first + 1000).min(workflows)).map(|_| steps_in_a_row(steps)), &db).await?;
    }
    tally.all().await;
    until(&mut connection, DONE, workflows).await?;
    let took = began.elapsed();
    let recorded = number(&mut connection, "select count(*) from runledger.step").await?;
    worker.stop().await;
    db.pool().close().await;
    let after = Costs::when_all_have_told(url, 1).await?;
    let n = workflows * steps;
    if usize::try_from(recorded)? != n {
        return Err(format!("{recorded} of {n} steps are recorded").into());
    }
    Ok(Line::rate(WHO, figure, arguments, n, took)
        .with("wal_bytes", after.wal_each(before, n))
        .with("commits", after.transactions_each(before, n)))
}

/// Measures the steps of one workflow, one after the other, on an otherwise idle system.
pub async fn one(url: &str, arguments: &Arguments) -> Res<Line> {
    let steps = arguments.count("steps", 2000);
    let db = client(url, 10).await?;
    let worker = App::new(db.clone()).with(jobs![steps_in_a_row]).provide(Tally::of(2)).start().await?;
    steps_in_a_row(1).enqueue(&db).await?.result().await?;
    let run = steps_in_a_row(steps).enqueue(&db).await?;
    run.result().await?;
    // From the first recorded step to the last, by the database: excludes the claim and the
    // outcome.
    let mut connection = connect(url).await?;
    let span = "select (extract(epoch from max(recorded_at) - min(recorded_at)) * 1000000)::bigint from runledger.step where run_id = $1";
    let micros: i64 = sqlx::query_scalar(span).bind(run.id()).fetch_one(&mut connection).await?;
    worker.stop().await;
    let took = std::time::Duration::from_micros(u64::try_from(micros)?);
    Ok(Line::rate(WHO, "step", arguments, steps - 1, took))
}
