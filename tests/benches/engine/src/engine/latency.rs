//! From the call of enqueue to the first line of the body.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use runledger::Db;
use runledger::prelude::*;
use tokio::task::JoinSet;

use super::{WHO, client};
use crate::Res;
use crate::arguments::Arguments;
use crate::line::Line;
use crate::work::{NOTE, connect, until};

/// The instants at which bodies began, by number.
pub type Starts = Arc<Mutex<Vec<(usize, Instant)>>>;

#[job]
pub async fn starts(user_id: usize, note: &str, #[inject] starts: &Starts) -> Result<()> {
    let now = Instant::now();
    let _ = note;
    starts.lock().unwrap_or_else(PoisonError::into_inner).push((user_id, now));
    Ok(())
}

/// The pause between two jobs of an idle system.
const IDLE: Duration = Duration::from_millis(20);

/// A job that has not begun by then never will.
const LOST: Duration = Duration::from_secs(60);

/// Which jobs are enqueued, and how far apart, each by a task of its own so that a slow enqueue delays no other.
#[derive(Debug)]
pub struct Pace {
    pub pause: Duration,
    pub priority: i16,
    pub queue: &'static str,
}

impl Default for Pace {
    fn default() -> Self {
        Self { pause: IDLE, priority: 0, queue: "default" }
    }
}

impl Pace {
    /// Enqueues until the end, and gives how long each job took to begin.
    pub async fn keep(&self, db: &Db, begun: &Starts, end: impl Future<Output = ()>) -> Res<Vec<Duration>> {
        let (mut sent, mut calls) = (Vec::new(), JoinSet::new());
        let mut tick = tokio::time::interval(self.pause);
        tokio::pin!(end);
        loop {
            tokio::select! {
                biased;
                () = &mut end => break,
                _ = tick.tick() => {}
            }
            let call = starts(sent.len(), NOTE).priority(self.priority).queue(self.queue);
            let db = db.clone();
            sent.push(Instant::now());
            calls.spawn(async move { call.enqueue(&db).await.map(drop) });
        }
        while let Some(call) = calls.join_next().await {
            call??;
        }
        let patience = Instant::now();
        while n_begun(begun) < sent.len() {
            if patience.elapsed() > LOST {
                return Err(format!("{} of {} jobs began", n_begun(begun), sent.len()).into());
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let begun = begun.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(begun.iter().map(|(n, at)| *at - sent[*n]).collect())
    }
}

fn n_begun(begun: &Starts) -> usize {
    begun.lock().unwrap_or_else(PoisonError::into_inner).len()
}

/// At `--rate` a second; at rate 0 each 20 ms, to an idle worker.
pub async fn measure(url: &str, arguments: &Arguments) -> Res<Line> {
    let (rate, seconds) = (arguments.get("rate", 0), arguments.get("seconds", 10));
    let db = client(url, 32).await?;
    let begun = Starts::default();
    let worker =
        App::new(client(url, 10).await?).with(jobs![starts]).provide(Arc::clone(&begun)).start().await?;
    let pause = if rate == 0 { IDLE } else { Duration::from_secs(1) / u32::try_from(rate)? };
    let began = Instant::now();
    let pace = Pace { pause, ..Pace::default() };
    let waits = pace.keep(&db, &begun, tokio::time::sleep(Duration::from_secs(seconds))).await?;
    let took = began.elapsed();
    let mut connection = connect(url).await?;
    until(&mut connection, "select count(*) from runledger.outcome where state = 'completed'", waits.len())
        .await?;
    worker.stop().await;
    Ok(Line::latency(WHO, "latency", arguments, waits, took))
}
