//! Jobs at an even pace, each by a task of its own so that a slow enqueue delays no other, and how long each took to begin.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::Res;

/// The pause between two jobs of an idle system.
pub const IDLE: Duration = Duration::from_millis(20);

/// A job that has not begun by then never will.
const LOST: Duration = Duration::from_secs(60);

/// The instants at which bodies began, by number.
#[derive(Clone, Debug, Default)]
pub struct Starts(Arc<Mutex<Vec<(usize, Instant)>>>);

impl Starts {
    /// The body of this number begins.
    pub fn add(&self, n: usize) {
        let now = Instant::now();
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push((n, now));
    }

    fn n(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

/// The pause between two of so many a second; at 0 that of an idle system.
pub fn pause(rate: u64) -> Res<Duration> {
    Ok(if rate == 0 { IDLE } else { Duration::from_secs(1) / u32::try_from(rate)? })
}

/// Enqueues until the end, and gives how long each job took from the call to its first line.
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
