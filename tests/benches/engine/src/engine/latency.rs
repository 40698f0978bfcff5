//! From the call of enqueue to the first line of the body.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use runledger::prelude::*;

use super::{WHO, client};
use crate::Res;
use crate::arguments::Arguments;
use crate::line::Line;
use crate::work::NOTE;

/// The instants at which bodies began, by number.
type Starts = Arc<Mutex<Vec<(usize, Instant)>>>;

#[job]
async fn starts(user_id: usize, note: &str, #[inject] starts: &Starts) -> Result<()> {
    let now = Instant::now();
    let _ = note;
    starts.lock().unwrap_or_else(PoisonError::into_inner).push((user_id, now));
    Ok(())
}

/// The pause between two jobs of an idle system.
const IDLE: Duration = Duration::from_millis(20);

/// At `--rate` a second, each by a task of its own; at rate 0 one after the other.
pub async fn measure(url: &str, arguments: &Arguments) -> Res<Line> {
    let (rate, seconds) = (arguments.get("rate", 0), arguments.get("seconds", 10));
    let db = client(url, 32).await?;
    let begun: Starts = Arc::default();
    let worker =
        App::new(client(url, 10).await?).with(jobs![starts]).provide(Arc::clone(&begun)).start().await?;
    let pause = if rate == 0 { IDLE } else { Duration::from_secs(1) / u32::try_from(rate)? };
    let (began, mut sent) = (Instant::now(), Vec::new());
    let mut calls = tokio::task::JoinSet::new();
    let mut tick = tokio::time::interval(pause);
    while began.elapsed() < Duration::from_secs(seconds) {
        tick.tick().await;
        let (db, n) = (db.clone(), sent.len());
        sent.push(Instant::now());
        calls.spawn(async move { starts(n, NOTE).enqueue(&db).await.map(drop) });
    }
    while let Some(call) = calls.join_next().await {
        call??;
    }
    let took = began.elapsed();
    loop {
        let n = begun.lock().unwrap_or_else(PoisonError::into_inner).len();
        if n >= sent.len() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    worker.stop().await;
    let durations =
        begun.lock().unwrap_or_else(PoisonError::into_inner).iter().map(|(n, at)| *at - sent[*n]).collect();
    Ok(Line::latency(WHO, "latency", arguments, durations, took))
}
