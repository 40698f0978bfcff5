//! Enqueues jobs at a steady pace, each in its own task, so that a slow enqueue delays no other,
//! and measures when each body starts.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::Res;

/// The pause between two jobs on an idle system.
pub const IDLE: Duration = Duration::from_millis(20);

/// A job that has not started after this time counts as lost.
const LOST: Duration = Duration::from_secs(60);

/// When each body started, by its number.
#[derive(Clone, Debug, Default)]
pub struct Starts(Arc<Mutex<Vec<(usize, Instant)>>>);

impl Starts {
    /// Records that body `n` starts now.
    pub fn add(&self, n: usize) {
        let now = Instant::now();
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push((n, now));
    }

    fn n(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

/// The pause between two jobs at `rate` per second. Rate 0 means [`IDLE`].
pub fn pause(rate: u64) -> Res<Duration> {
    Ok(if rate == 0 { IDLE } else { Duration::from_secs(1) / u32::try_from(rate)? })
}

/// Enqueues until `end`, and returns for each job the time from the call to its first line.
pub async fn keep<F, Fut>(
    pause: Duration,
    begun: &Starts,
    end: impl Future<Output = ()>,
    enqueue: F,
) -> Res<Vec<Duration>>
where
    F: Fn(usize) -> Fut,
    Fut: Future<Output = Res<()>> + Send + 'static,
{
    let (mut sent, mut calls) = (Vec::new(), JoinSet::new());
    let mut tick = tokio::time::interval(pause);
    tokio::pin!(end);
    loop {
        tokio::select! {
            biased;
            () = &mut end => break,
            _ = tick.tick() => {}
        }
        let call = enqueue(sent.len());
        sent.push(Instant::now());
        calls.spawn(call);
    }
    while let Some(call) = calls.join_next().await {
        call??;
    }
    let patience = Instant::now();
    while begun.n() < sent.len() {
        if patience.elapsed() > LOST {
            return Err(format!("{} of {} jobs began", begun.n(), sent.len()).into());
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let begun = begun.0.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(begun.iter().map(|(n, at)| *at - sent[*n]).collect())
}
