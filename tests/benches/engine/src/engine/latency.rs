//! The latency from the enqueue call to the first line of the body.

use std::future::Future;
use std::time::{Duration, Instant};

use runledger::Db;
use runledger::prelude::*;

use super::{WHO, client};
use crate::Res;
use crate::arguments::Arguments;
use crate::line::Line;
use crate::pace::{self, Starts};
use crate::work::{NOTE, connect, until};

#[job]
pub async fn starts(user_id: usize, note: &str, #[inject] begun: &Starts) -> Result<()> {
    begun.add(user_id);
    let _ = note;
    Ok(())
}

/// Which jobs are enqueued, and at what interval.
#[derive(Debug)]
pub struct Pace {
    pub pause: Duration,
    pub priority: i16,
    pub queue: &'static str,
}

impl Default for Pace {
    fn default() -> Self {
        Self { pause: pace::IDLE, priority: 0, queue: "default" }
    }
}

impl Pace {
    /// Enqueues until `end`, and returns the latency of each job.
    pub async fn keep(&self, db: &Db, begun: &Starts, end: impl Future<Output = ()>) -> Res<Vec<Duration>> {
        pace::keep(self.pause, begun, end, |n| {
            let call = starts(n, NOTE).priority(self.priority).queue(self.queue);
            let db = db.clone();
            async move { Ok(call.enqueue(&db).await.map(drop)?) }
        })
        .await
    }
}

/// Enqueues at `--rate` per second. Rate 0 means one job per 20 ms to an idle worker.
pub async fn measure(url: &str, arguments: &Arguments) -> Res<Line> {
    let (rate, seconds) = (arguments.get("rate", 0), arguments.get("seconds", 10));
    let db = client(url, 32).await?;
    let begun = Starts::default();
    let worker = App::new(client(url, 10).await?).with(jobs![starts]).provide(begun.clone()).start().await?;
    let began = Instant::now();
    let pace = Pace { pause: pace::pause(rate)?, ..Pace::default() };
    let waits = pace.keep(&db, &begun, tokio::time::sleep(Duration::from_secs(seconds))).await?;
    let took = began.elapsed();
    let mut connection = connect(url).await?;
    until(&mut connection, "select count(*) from runledger.outcome where state = 'completed'", waits.len())
        .await?;
    worker.stop().await;
    Ok(Line::latency(WHO, "latency", arguments, waits, took))
}
