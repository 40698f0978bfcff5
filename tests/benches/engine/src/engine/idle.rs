//! The load that an idle worker puts on the server.

use std::time::{Duration, Instant};

use runledger::prelude::*;

use super::drain::{Tally, no_op};
use super::{WHO, client};
use crate::Res;
use crate::arguments::Arguments;
use crate::line::Line;
use crate::work::{Costs, NOTE, connect, sessions, until};

/// After this time every session has reported its earlier work to the statistics.
const SETTLES: Duration = Duration::from_secs(12);

/// Transactions per second of one idle worker (one statement each), and its connections.
pub async fn measure(url: &str, arguments: &Arguments) -> Res<Line> {
    let seconds = arguments.count("seconds", 60);
    let db = client(url, arguments.count("connections", 10)).await?;
    let tally = Tally::of(1);
    let worker = App::new(db.clone()).with(jobs![no_op]).provide(tally.clone()).start().await?;
    no_op(0, NOTE).enqueue(&db).await?;
    tally.all().await;
    let mut beside = connect(url).await?;
    until(&mut beside, "select count(*) from runledger.outcome", 1).await?;
    tokio::time::sleep(SETTLES).await;
    let (before, began) = (Costs::of(url).await?, Instant::now());
    tokio::time::sleep(Duration::from_secs(seconds as u64)).await;
    let (after, took) = (Costs::of(url).await?, began.elapsed());
    let sessions = sessions(&mut beside).await? - i64::from(db.pool().size());
    worker.stop().await;
    #[expect(clippy::cast_precision_loss, reason = "a handful of connections")]
    let beyond = sessions as f64;
    Ok(Line::named(WHO, "idle", arguments, seconds, took)
        .with("queries", after.transactions_each(before, seconds))
        .with("beyond_pool", beyond)
        .noting("transactions a second by pg_stat_database, those of autovacuum included; an idle worker's have one statement each"))
}
