//! Fan-out: one call for each item of a list.

use std::convert::Infallible;
use std::future::{Future, IntoFuture};
use std::panic::Location;
use std::pin::Pin;
use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use uuid::Uuid;

use super::Wf;
use crate::definition::call::Call;
use crate::definition::job::Job;
use crate::definition::step_error::StepError;
use crate::model::replay::Line;

/// The default number of calls in flight.
const DEFAULT_LIMIT: usize = 64;

impl Wf {
    /// Calls a job for each item and returns the outputs in the order of the items:
    /// `wf.map(&order.skus, |sku| reserve(sku, 1).key(sku)).limit(8).await?`.
    ///
    /// Each call is a step of this run, in this worker, under the key of the call. With
    /// [`as_child_runs`](Map::as_child_runs), each call is a separate run. Steps are built in the
    /// order of the items, as earlier steps end.
    #[track_caller]
    pub fn map<'wf, I, J, F>(&'wf self, items: I, mut call: F) -> Map<'wf, J>
    where
        I: IntoIterator,
        F: FnMut(I::Item) -> Call<J>,
        J: Job,
    {
        let calls = items.into_iter().map(&mut call).collect();
        Map { wf: self, calls, limit: None, spread: false, line: Location::caller() }
    }
}

/// Calls of a job for the items of a list, made by [`Wf::map`].
#[must_use = "a map does nothing until it is awaited"]
#[derive(Debug)]
pub struct Map<'wf, J> {
    wf: &'wf Wf,
    calls: Vec<Call<J>>,
    limit: Option<usize>,
    spread: bool,
    line: Line,
}

type Settled<J> = Result<<J as Job>::Output, StepError>;

impl<'wf, J: Job> Map<'wf, J> {
    /// Sets how many calls are in flight at once. Default 64; no limit with
    /// [`as_child_runs`](Self::as_child_runs).
    ///
    /// You can change the limit while runs are in flight, except with `as_child_runs`.
    pub fn limit(self, limit: usize) -> Self {
        Self { limit: Some(limit.max(1)), ..self }
    }

    /// Starts a child run for each item, so that all workers share the work.
    ///
    /// The children are cancelled if this run is cancelled or fails. Without a limit, this run
    /// wakes once, after the last child has ended.
    pub fn as_child_runs(self) -> Self {
        Self { spread: true, ..self }
    }

    /// Returns the outcome of every item, in the order of the items. A failure does not stop the
    /// others.
    pub async fn settle_all(self) -> Vec<Settled<J>> {
        let mut outcomes = Vec::with_capacity(self.calls.len());
        let Ok(()) = self
            .each(|place, outcome| {
                outcomes.push((place, outcome));
                Ok::<(), Infallible>(())
            })
            .await;
        in_order(outcomes)
    }

    /// Returns at the first failure and drops the other calls.
    async fn outputs(self) -> Result<Vec<J::Output>, StepError> {
        let mut outputs = Vec::with_capacity(self.calls.len());
        self.each(|place, outcome| {
            outputs.push((place, outcome?));
            Ok(())
        })
        .await?;
        Ok(in_order(outputs))
    }

    async fn each<E>(self, mut ended: impl FnMut(usize, Settled<J>) -> Result<(), E>) -> Result<(), E> {
        let Self { wf, calls, limit, spread, line } = self;
        if spread && limit.is_none() {
            return all_at_once(wf, calls, line, ended).await;
        }
        let limit = limit.unwrap_or(DEFAULT_LIMIT);
        let mut waiting = calls.into_iter().enumerate().peekable();
        let mut under_way = FuturesUnordered::new();
        // If the run started under a higher limit, more of its recorded steps must be claimed now.
        let is_due = |(_, call): &(usize, Call<J>)| {
            wf.attempt.is_due(&wf.scope, J::DEFINITION.oldest_name(), call.key.as_deref())
        };
        loop {
            while let Some((place, call)) = waiting.next_if(|next| under_way.len() < limit || is_due(next)) {
                under_way.push(one(wf, place, call, spread, line));
            }
            match under_way.next().await {
                Some((place, outcome)) => ended(place, outcome)?,
                None => return Ok(()),
            }
        }
    }
}

impl<'wf, J: Job> IntoFuture for Map<'wf, J> {
    type Output = Result<Vec<J::Output>, StepError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'wf>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.outputs())
    }
}

/// Builds the step at once, not when the future is first polled.
fn one<'wf, J: Job>(
    wf: &'wf Wf,
    place: usize,
    call: Call<J>,
    spread: bool,
    line: Line,
) -> Pin<Box<dyn Future<Output = (usize, Settled<J>)> + Send + 'wf>> {
    if spread {
        let start = wf.start_at(call, line);
        Box::pin(async move {
            match start.await {
                Ok(child) => (place, child.result_at(line).await),
                Err(error) => (place, Err(error)),
            }
        })
    } else {
        let step = wf.run_with(call, None, line);
        Box::pin(async move { (place, step.await) })
    }
}

/// Starts all children, then waits until the last of them has ended.
async fn all_at_once<J: Job, E>(
    wf: &Wf,
    calls: Vec<Call<J>>,
    line: Line,
    mut ended: impl FnMut(usize, Settled<J>) -> Result<(), E>,
) -> Result<(), E> {
    let mut children = Vec::with_capacity(calls.len());
    let mut waiting = calls.into_iter().enumerate();
    let mut under_way = FuturesUnordered::new();
    loop {
        while under_way.len() < DEFAULT_LIMIT
            && let Some((place, call)) = waiting.next()
        {
            let start = wf.start_at(call, line);
            under_way.push(async move { (place, start.await) });
        }
        match under_way.next().await {
            Some((place, Ok(child))) => children.push((place, child)),
            Some((place, Err(error))) => ended(place, Err(error))?,
            None => break,
        }
    }
    children.sort_unstable_by_key(|(place, _)| *place);
    let all: Arc<[Uuid]> = children.iter().map(|(_, child)| child.id()).collect();
    let mut results: FuturesUnordered<_> = children
        .iter()
        .map(|(place, child)| {
            let result = child.result_of_all(Arc::clone(&all), line);
            async move { (*place, result.await) }
        })
        .collect();
    while let Some((place, outcome)) = results.next().await {
        ended(place, outcome)?;
    }
    Ok(())
}

fn in_order<T>(mut items: Vec<(usize, T)>) -> Vec<T> {
    items.sort_unstable_by_key(|(place, _)| *place);
    items.into_iter().map(|(_, item)| item).collect()
}
